"""Identities in little memory: what many entries share is a small integer, what is an entry's own stays in its row.

Digests of the tokens, the parent or the media are as many as there are entries; everything else repeats. So a row
holds the number of the shared part, and its own digests packed; comparisons of shared parts are memoised per pair.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from operator import itemgetter
from sys import intern
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, json

from ..schemas.identity import DIMENSIONS, Identity

if TYPE_CHECKING:
    from .comparison import Comparator

UNKNOWN = -1
_OBJECTS_KEPT = 2_048
_MADE_KEPT = 4_096
OWN = ("media_digest", "embedding_digest", "parent_digest", "block_digest", "prefix_digest", "token_ids_digest")
"""Dimensions that are an entry's own."""
SHARED = tuple(name for name in DIMENSIONS if name not in OWN and name != "principal")
"""Dimensions that many entries have in common. Principals are few for an entry and many for a fleet: rows name them."""
_TENANT, _DOMAIN = SHARED.index("tenant_id"), SHARED.index("isolation_domain")
_EPOCH, _ADAPTER_KIND = SHARED.index("epoch"), SHARED.index("adapter_kind")
_BITS = tuple(1 << place for place in range(len(SHARED)))
_own_of = itemgetter(*OWN)
_json = json.Encoder().encode
"""What `canonical_json` makes of texts and nulls, in a tenth of the time."""
_shared_of = itemgetter(*SHARED)
_ABSENT, _NONE, _SHA256, _TEXT = range(4)
CONTENT_MASK = sum(
    _TEXT << 2 * place
    for place, name in enumerate(OWN)
    if name in ("media_digest", "prefix_digest", "token_ids_digest")
)
"""Bits of the mask that say that an entry's content is known."""
Packed = bytes | tuple[str, ...]


class Carrier(Protocol):
    """What carries an identity: `identity` numbers the shared part; `mask` says which own digests are known, two bits
    each; `own` holds them; `principal` is None where it is unknown."""

    @property
    def identity(self) -> int: ...

    @property
    def mask(self) -> int: ...

    @property
    def own(self) -> Packed: ...

    @property
    def principal(self) -> str | None: ...


class Who(Struct, gc=False, eq=False, frozen=True):
    """An identity as the ledger keeps it."""

    identity: int
    mask: int
    own: Packed
    principal: str | None = None


NOBODY = Who(UNKNOWN, 0, b"")


class Identities:
    """Numbers shared parts by value. Numbers are dense, so that a snapshot can list them; one that nothing refers to
    any more is given again, and is an empty part until then."""

    def __init__(self) -> None:
        self.values: list[tuple[str | None, ...]] = []
        self.tenants: list[str] = []
        self.domains: list[str] = []
        self.known: list[int] = []
        """Bits of the places whose values are known."""
        self.activated: list[bool] = []
        self._digests: dict[int, bytes] = {}
        self._masks: dict[int, int] = {}
        self._made: dict[int, Identity] = {}
        self._by_value: dict[tuple[str | None, ...], int] = {}
        self._free: list[int] = []
        self._by_object: dict[int, tuple[Identity, Who]] = {}
        self._by_object_before: dict[int, tuple[Identity, Who]] = {}

    def intern(self, identity: Identity | None) -> Who:
        """The identity as the ledger keeps it; `NOBODY` for None. Equal identities give equal parts."""
        if identity is None:
            return NOBODY
        # A decoder hands out one object per identity; the object is kept, so its id() cannot be taken by another.
        seen = self._by_object.get(id(identity))
        if seen is not None:
            return seen[1]
        seen = self._by_object_before.get(id(identity))
        if seen is not None:
            self._by_object[id(identity)] = seen
            return seen[1]
        values = identity.__dict__
        mask, own = pack_own(_own_of(values))
        mask = self._masks.setdefault(mask, mask)  # few values, one object each
        principal = values["principal"]
        who = Who(self.number(_shared_of(values)), mask, own, None if principal is None else intern(principal))
        if len(self._by_object) >= _OBJECTS_KEPT:
            self._by_object_before, self._by_object = self._by_object, {}
        self._by_object[id(identity)] = (identity, who)
        return who

    def restore(self, parts: Iterable[tuple[str | None, ...]]) -> None:
        """The shared parts of a snapshot, under the numbers that they had."""
        for shared in parts:
            number = len(self.values)
            self._extend()
            if shared:
                self._set(number, tuple(None if value is None else intern(value) for value in shared))
            else:
                self._free.insert(0, number)

    def number(self, shared: tuple[str | None, ...]) -> int:
        """The number of a shared part: its values in the order of `SHARED`."""
        number = self._by_value.get(shared)
        if number is None:
            if self._free:
                number = self._free.pop()
            else:
                number = len(self.values)
                self._extend()
            # A decoder makes new strings for every identity; equal ones are kept once.
            self._set(number, tuple([None if value is None else intern(value) for value in shared]))
        return number

    def _extend(self) -> None:
        self.values.append(())
        self.tenants.append("")
        self.domains.append("")
        self.known.append(0)
        self.activated.append(False)

    def _set(self, number: int, shared: tuple[str | None, ...]) -> None:
        self._by_value[shared] = number
        self.values[number] = shared
        self.tenants[number] = shared[_TENANT] or ""
        self.domains[number] = shared[_DOMAIN] or ""
        self.known[number] = sum([bit for bit, value in zip(_BITS, shared, strict=True) if value is not None])
        self.activated[number] = shared[_ADAPTER_KIND] == "activated"

    def free(self, used: set[int], comparator: "Comparator") -> None:
        """Numbers that nothing refers to any more may be given again."""
        self._free = [number for number in range(len(self.values) - 1, -1, -1) if number not in used]
        if not self._free:
            return
        for number in self._free:
            self._by_value.pop(self.values[number], None)
            self.values[number] = ()
        comparator.forget()
        self._digests.clear()
        self._made.clear()
        self._by_object.clear()
        self._by_object_before.clear()

    def get(self, number: int) -> Identity:
        """A shared part as an identity; its own digests and its principal are unknown there."""
        made = self._made.get(number)
        if made is None:
            if len(self._made) >= _MADE_KEPT:
                self._made.clear()
            values: dict[str, Any] = dict(zip(SHARED, self.values[number], strict=True))
            made = self._made[number] = Identity.model_construct(**values)
        return made

    def digest(self, number: int) -> bytes:
        """SHA-256 over a shared part: the same in every judge."""
        found = self._digests.get(number)
        if found is None:
            found = self._digests[number] = hashlib.sha256(_json(self.values[number])).digest()
        return found

    def tenant(self, number: int) -> str:
        """The tenant, empty where the identity is unknown."""
        return self.tenants[number] if number >= 0 else ""

    def domain(self, number: int) -> str:
        """The isolation domain; empty for none, declared public, and unknown identities."""
        return self.domains[number] if number >= 0 else ""

    def epoch(self, number: int) -> str | None:
        """The epoch; None where it is unknown."""
        return self.values[number][_EPOCH]

    def declared_public(self, number: int) -> bool:
        """The isolation domain is known to be none, which is more than unknown."""
        return self.values[number][_DOMAIN] == ""

    def wire(self, who: Carrier) -> dict[str, str]:
        """The identity as an event carries it."""
        if who.identity < 0:
            return {}
        shared = zip(SHARED, self.values[who.identity], strict=True)
        known = {name: value for name, value in shared if value is not None} | unpack_own(who.mask, who.own)
        if who.principal is not None:
            known["principal"] = who.principal
        return {name: known[name] for name in DIMENSIONS if name in known}


def pack_own(values: tuple[str | None, ...]) -> tuple[int, Packed]:
    """Own digests as a mask and their bytes; as text where one is no plain SHA-256."""
    mask, known, plain = 0, [], True
    for place, value in enumerate(values):
        if value is None:
            continue
        if not value:
            mask |= _NONE << 2 * place
            continue
        sha256 = len(value) == 64 and ":" not in value
        plain = plain and sha256
        mask |= (_SHA256 if sha256 else _TEXT) << 2 * place
        known.append(value)
    return mask, bytes.fromhex("".join(known)) if plain else tuple(known)


@cache
def own_size(mask: int) -> int:
    """Bytes that own digests take when packed; none where they are kept as text."""
    states = [mask >> 2 * place & 3 for place in range(len(OWN))]
    return 0 if _TEXT in states else 32 * states.count(_SHA256)


def unpack_own(mask: int, own: Packed) -> dict[str, str]:
    """Own dimensions that are known, by name."""
    found: dict[str, str] = {}
    at = 0
    for place, name in enumerate(OWN):
        state = mask >> 2 * place & 3
        if state == _NONE:
            found[name] = ""
        elif state != _ABSENT:
            part = own[at] if isinstance(own, tuple) else own[32 * at : 32 * at + 32].hex()
            assert isinstance(part, str)
            found[name] = part
            at += 1
    return found


def span_end(span: str) -> int | None:
    """Where a span such as `1056`, `0-1056` or `0:1056` ends, in tokens."""
    tail = span.replace(":", "-").rpartition("-")[2]
    return int(tail) if tail.isdecimal() else None


def span_bounds(span: str) -> tuple[int, int] | None:
    """Where a span such as `512-1056` begins and ends; None where it does not say both."""
    start, _, end = span.replace(":", "-").partition("-")
    return (int(start), int(end)) if start.isdecimal() and end.isdecimal() else None
