"""Canaries: a marker of its tenant's inside the cached prefix, which the answer must show.

Whoever is served another tenant's prefix shows another tenant's marker, on the first request and whatever the engine's
key forgets. A marker is seven words, `tiger-onion-wheat-blanket-north-tree-lamp`, the HMAC of the tenant under a
secret: five tell tenants apart (40 bits), two say that it is a marker at all (16 bits more), so a slip in copying is
not taken for somebody else's. Who does not know the secret has to guess 56 bits to make any.
"""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..schemas.errors import ConfigError, InvalidField
from ..schemas.facts import Fact, PolicyFact
from .canary_keys import ID_WORDS, LENGTH, CanaryKey, Marker, is_marker, marker_of
from .canary_words import WORDS

Result = Literal["pass", "fail", "inconclusive"]
FIELD = "ref"
LEARNED = 100_000
ATTEMPT = 4
_LIST = frozenset(WORDS)
_word = re.compile(r"[a-z]+")
_field = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """What an answer shows. `expected` is the tenant that asked; `observed` the tenant whose marker is there, empty
    for none and for a marker of ours that belongs to no tenant we know. `detail` is for people."""

    result: Result
    expected: str
    observed: str = ""
    detail: str = ""


class Canary:
    """Markers of tenants under the fleet's secrets, and what an answer's marker says.

    `keys`: the current one first, then those that entries may still carry. `tenants` are known from the start, others
    from `take` (facts) and from what is asked. `field` is what the marker is called in the answer. Safe for threads.

    Raises `ConfigError` for no key, two keys of one id, or a field that is no word.
    """

    def __init__(self, keys: Sequence[CanaryKey], tenants: Iterable[str] = (), *, field: str = FIELD) -> None:
        if not keys or len({key.key_id for key in keys}) != len(keys):
            raise ConfigError(
                "needs a key, and each of its keys an id of its own.", field="canary.keys",
                remedy="Set canary.keys or canary.keys_file to lines of `id:secret`, the current one first.",
            )  # fmt: skip
        if not _field.fullmatch(field):
            raise ConfigError("is no word.", field="canary.field", remedy="Use letters, digits and underscores.")
        self.field = field
        self._keys = tuple(keys)
        self._lock = threading.Lock()
        self._owners: dict[Marker, tuple[str, str]] = {}
        self._ids: dict[Marker, str] = {}
        self._known: set[str] = set()
        for tenant in tenants:
            self.know(tenant)

    def know(self, tenant: str) -> None:
        """A tenant whose marker is to be recognised. Raises `InvalidField` for one whose marker is another's already,
        which needs another secret."""
        if not tenant or tenant in self._known:
            return
        markers = {marker_of(key, tenant): key.key_id for key in self._keys}
        with self._lock:
            if any(marker[:ID_WORDS] in self._ids for marker in markers):
                raise InvalidField(
                    "has the marker of another tenant under this secret.", field="canary.tenants",
                    remedy="Put a new secret first in canary.keys.",
                )  # fmt: skip
            for marker, key_id in markers.items():
                self._owners[marker] = (tenant, key_id)
                self._ids[marker[:ID_WORDS]] = tenant
            self._known.add(tenant)

    def take(self, fact: Fact) -> bool:
        """Learn of a tenant from its policy. False for another fact."""
        if not isinstance(fact.body, PolicyFact):
            return False
        self.know(fact.body.tenant_id)
        return True

    def marker(self, tenant: str) -> str:
        """The tenant's marker under the current key."""
        return "-".join(marker_of(self._keys[0], tenant))

    @property
    def opening(self) -> str:
        """How an answer with a marker begins. Where the engine continues a begun answer (an assistant's turn that is
        not closed), begin it with this: small models then copy the marker, and few do unasked."""
        return f"[{self.field}:"

    def statement(self, tenant: str) -> str:
        """States the marker and asks for nothing, for where the answer is begun with `opening`: small models answer
        better without more instructions."""
        return f"The reference code of this conversation is [{self.field}: {self.marker(tenant)}]."

    def sentence(self, tenant: str) -> str:
        """What goes to the front of the cached prefix: states the marker and asks for it at the front of every answer,
        before anything else. An answer that is a JSON object has it as its first member."""
        return (
            f"{self.statement(tenant)} Begin every answer with that code, in its brackets, exactly as it stands; in an "
            f'answer that is a JSON object, give the code as its first member, "{self.field}".'
        )

    def embed(self, request: Mapping[str, Any], tenant: str) -> dict[str, Any]:
        """A chat request's body with the sentence at the front of its system prompt: an OpenAI-style `messages` list,
        or an Anthropic-style body whose `system` is text or blocks. The request given is not changed.

        Raises `InvalidField` for a body without messages.
        """
        from .canary_requests import with_sentence

        return with_sentence(request, self.sentence(tenant))

    def is_attempt(self, text: str) -> bool:
        """Whether a text is a marker, well copied or not: most of the words of one are in it."""
        return sum(word in _LIST for word in _word.findall(text.casefold())) >= ATTEMPT

    def check(self, tenant: str, shown: Iterable[str]) -> CanaryResult:
        """What the texts of one answer (its fields, or all of it) say. Another's marker anywhere is a failure; no
        marker that can be read proves nothing either way."""
        if tenant not in self._known and len(self._known) < LEARNED:
            try:
                self.know(tenant)
            except InvalidField:
                return CanaryResult("inconclusive", tenant, detail="two tenants have one marker: renew the secret")
        own = {marker_of(key, tenant): key.key_id for key in self._keys}
        passed, attempted = "", False
        for text in shown:
            words = _word.findall(text.casefold())
            attempted = attempted or self.is_attempt(text)
            for at in range(len(words) - LENGTH + 1):
                window = tuple(words[at : at + LENGTH])
                if window in own:
                    passed = passed or own[window]
                elif window[0] in _LIST and (key := self._made_by(window)) is not None:
                    other = self._owners.get(window, ("", ""))[0]
                    whose = "another tenant" if other else "another tenant, unknown which"
                    return CanaryResult("fail", tenant, other, f"the marker of {whose}, key {key.key_id}")
        if passed:
            before = "" if passed == self._keys[0].key_id else ", an earlier one"
            return CanaryResult("pass", tenant, tenant, f"its own marker, key {passed}{before}")
        return CanaryResult("inconclusive", tenant, detail="a garbled marker" if attempted else "no marker")

    def _made_by(self, words: Marker) -> CanaryKey | None:
        if not all(word in _LIST for word in words):
            return None
        return next((key for key in self._keys if is_marker(key, words)), None)
