"""Identities off the wire: what is in order is taken as it stands, everything else goes through the model.

Every entry brings an identity of its own, so this is most of what decoding costs. The short way accepts a part of what
the model accepts, to an equal object, and refuses nothing: what it cannot vouch for is validated by the model, whose
errors are the only ones. `tests/schemas/test_identity_wire.py` holds the two against each other.
"""

import msgspec

from .digests import is_digest
from .identity import DIMENSIONS, LONGEST_NAME, LONGEST_TENANT, Identity

_TEXTS_KEPT = 32_768
_FIELDS_KEPT = 1_024
_IS_DIGEST = {name: dimension.form == "digest" for name, dimension in DIMENSIONS.items()}
_UNKNOWN = dict.fromkeys(Identity.model_fields)
_map = msgspec.json.Decoder(dict[str, str])
_set = object.__setattr__


class IdentityReader:
    """Reads identities. Equal texts become one object, since most of them repeat: that is what makes comparing and
    hashing identities cheap later."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._digests: dict[str, str] = {"": ""}
        self._fields: dict[tuple[str, ...], set[str]] = {}

    def read(self, raw: bytes) -> Identity:
        """One identity. Raises `msgspec.DecodeError` for what is no map of strings, `BadInput` as the model does."""
        given = _map.decode(raw)
        if not self._in_order(given):
            return Identity.from_wire(given)
        identity = Identity.__new__(Identity)
        # What the model's own validation sets; held by the tests against the model.
        _set(identity, "__dict__", {**_UNKNOWN, **given})
        _set(identity, "__pydantic_fields_set__", self._known(given))
        _set(identity, "__pydantic_extra__", None)
        _set(identity, "__pydantic_private__", None)
        return identity

    def _known(self, given: dict[str, str]) -> set[str]:
        """The names, one set for all identities that know the same dimensions: a frozen model never changes it."""
        names = tuple(given)
        known = self._fields.get(names)
        if known is None:
            if len(self._fields) >= _FIELDS_KEPT:
                self._fields.clear()
            known = self._fields[names] = set(names)
        return known

    def _in_order(self, given: dict[str, str]) -> bool:
        """Whether every dimension is known and holds what it must; equal texts are replaced by one object."""
        tenant = given.get("tenant_id")
        if not tenant or len(tenant) > LONGEST_TENANT or tenant.isspace():
            return False
        names, digests = self._names, self._digests
        if len(names) + len(digests) > _TEXTS_KEPT:
            names.clear()
            digests.clear()
        for name, value in given.items():
            digest = _IS_DIGEST.get(name)
            if digest:
                kept = digests.get(value)
                if kept is None:
                    if value and not is_digest(value):
                        return False
                    digests[value] = value
                    continue
            else:
                kept = names.get(value)
                if kept is None:
                    if digest is None or len(value) > LONGEST_NAME:
                        return False
                    names[value] = value
                    continue
            given[name] = kept
        return True
