"""Creator against requester, dimension by dimension, as the dimension table declares it.

Relevance before difference: a dimension counts only for the kinds of entry and match modes it is declared for, a
name yields to the digest it stands for, and what only shapes the text yields to equal token ids. Unknown is never
equal: what cannot be compared lowers coverage and is no finding.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from ..schemas.digests import digest_prefix
from ..schemas.dimensions import TENSORS, Role
from ..schemas.identity import DIMENSIONS, Identity
from ..schemas.reserved import is_reserved
from .interning import OWN, SHARED, UNKNOWN, Carrier, Identities, unpack_own

SETTLED_BY_TOKENS = frozenset(
    {"template_digest", "template_id", "tool_schema_digest", "corpus_digest", "parent_digest", "block_digest"}
)
"""They reach a KV or state entry through its tokens alone, or are part of them: with equal token ids of the whole
prefix they cannot change it."""
DERIVED = frozenset({"parent_digest", "block_digest", "prefix_digest", "token_ids_digest"})
"""Digests computed over what other dimensions put into the prompt."""
_ADAPTER = frozenset({"adapter_digest", "adapter_scale", "adapter_kind", "adapter_switch", "adapter_name"})
_YIELDING = tuple((name, d.yields_to) for name, d in DIMENSIONS.items() if d.role is Role.CONTENT and d.yields_to)
_NAMES_OF_MODELS = frozenset({"model_id", "resolved_model"})


@dataclass(slots=True)
class Comparison:
    """What differs, what is unknown. `hits` counts how often the pair met, for coverage."""

    kind: str
    content: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    silent: bool = False
    """Whoever sees this pair need not ask any further: no rule about identity can find anything, whatever the facts."""
    harmless: bool = False
    """As `silent`, as long as no policy restricts sharing: identical content, another tenant, no barrier."""
    hits: int = field(default=0, compare=False)

    @property
    def tenant(self) -> bool:
        """The tenants differ."""
        return "tenant_id" in self.scope

    @property
    def domain(self) -> bool:
        """The isolation domains differ."""
        return "isolation_domain" in self.scope

    @property
    def principal(self) -> bool:
        """The entry belongs to a principal, and another one asked."""
        return "principal" in self.scope

    @property
    def differing(self) -> tuple[str, ...]:
        """Everything that differs, in order of precedence."""
        return self.content + self.scope


Variant = int | tuple[bool | None, ...]
"""How the own digests compare: the mask of the known ones where all are equal, else one verdict each."""
Pair = tuple[int, int, str, str, int | None, Variant, bool]
"""Creator, requester, kind, mode, end of the span, how own digests compare, whether another principal asks."""
_PAIRS_KEPT = 262_144


class Comparator:
    """Memoises comparisons per pair of shared parts, kind, mode and how the own digests compare; and per span where
    an adapter switches on inside."""

    def __init__(self, identities: Identities) -> None:
        self.identities = identities
        self.memo: dict[Pair, Comparison] = {}
        self.compared = 0
        self.covered: dict[str, int] = {}

    def compare(self, creator: Carrier, requester: Carrier, kind: str, mode: str, end: int | None = None) -> Comparison:
        """`end`: where the entry's span ends, in tokens."""
        a, b = creator.identity, requester.identity
        if end is not None and not self.activated(a, b):
            end = None
        if creator.mask == requester.mask and creator.own == requester.own:
            variant: Variant = creator.mask
        else:
            variant = own_verdicts(creator, requester)
        return self.of((a, b, kind, mode, end, variant, other_principal(creator, requester)))

    def of(self, pair: Pair) -> Comparison:
        """The comparison of a memoised pair, made now if it has not been."""
        found = self.memo.get(pair)
        if found is None:
            if len(self.memo) >= _PAIRS_KEPT:
                self.forget()
            found = self.memo[pair] = self._compare(*pair)
        return found

    def forget(self) -> None:
        """Drop the memoised pairs, keeping their counts."""
        for comparison in self._counted():
            self.compared += comparison.hits
            for name in comparison.compared:
                self.covered[name] = self.covered.get(name, 0) + comparison.hits
        self.memo.clear()

    def coverage(self) -> tuple[int, dict[str, int]]:
        """Hits compared, and of those how many knew each dimension on both sides."""
        compared, covered = self.compared, dict(self.covered)
        for comparison in self._counted():
            compared += comparison.hits
            for name in comparison.compared:
                covered[name] = covered.get(name, 0) + comparison.hits
        return compared, covered

    def _counted(self) -> Iterator[Comparison]:
        """What counts for coverage: kvtrail's own heartbeat does not."""
        own = {number for number, tenant in enumerate(self.identities.tenants) if is_reserved(tenant)}
        return (comparison for pair, comparison in self.memo.items() if pair[1] not in own)

    def activated(self, creator: int, requester: int) -> bool:
        """An adapter that switches on inside the prefix is involved: where the entry ends matters."""
        activated = self.identities.activated
        return (creator >= 0 and activated[creator]) or (requester >= 0 and activated[requester])

    def _compare(
        self, creator: int, requester: int, kind: str, mode: str, end: int | None, variant: Variant, principal: bool
    ) -> Comparison:
        relevant = _relevant(kind, mode)
        if creator == UNKNOWN or requester == UNKNOWN:
            return Comparison(kind, unknown=(*relevant, "tenant_id"))
        a, b = self.identities.values[creator], self.identities.values[requester]
        activated = self.activated(creator, requester)
        same_own = isinstance(variant, int) or True not in variant
        if same_own and not activated and (a is b or _same_content(relevant, a, b)):
            known = self.identities.known[creator] & self.identities.known[requester]
            return self._equal(kind, mode, known, variant, self._scope(creator, requester, principal))
        own = _unpacked(variant)
        verdicts = {
            name: own[name] if place < 0 else _differs(name, a[place], b[place]) for name, place in relevant.items()
        }
        if activated:
            self._adapters(self.identities.get(creator), self.identities.get(requester), end, verdicts)
        if kind in TENSORS and (verdicts.get("prefix_digest") is False or verdicts.get("token_ids_digest") is False):
            for name in SETTLED_BY_TOKENS:
                if verdicts.get(name):
                    verdicts[name] = False
        _yield(verdicts)
        content, scope = tuple(name for name in relevant if verdicts[name]), self._scope(creator, requester, principal)
        exact = mode == "exact" and "isolation_domain" not in scope
        plain = not content and not activated
        return Comparison(
            kind,
            content=content,
            scope=scope,
            silent=plain and ((exact and "tenant_id" not in scope) or not scope),
            harmless=plain and exact,
            unknown=tuple(name for name in relevant if verdicts[name] is None),
            compared=tuple(name for name in relevant if verdicts[name] is not None),
        )

    @staticmethod
    def _equal(kind: str, mode: str, known: int, variant: Variant, scope: tuple[str, ...]) -> Comparison:
        """No known content differs."""
        unknown, compared = _knowledge(kind, mode, known, variant)
        exact = mode == "exact" and "isolation_domain" not in scope
        return Comparison(
            kind,
            scope=scope,
            silent=(exact and "tenant_id" not in scope) or not scope,
            harmless=exact,
            unknown=unknown,
            compared=compared,
        )

    def _scope(self, creator: int, requester: int, principal: bool) -> tuple[str, ...]:
        identities = self.identities
        found = ["principal"] if principal else []
        if identities.tenants[creator] != identities.tenants[requester]:
            found.append("tenant_id")
        if identities.domains[creator] != identities.domains[requester]:
            found.append("isolation_domain")
        return tuple(found)

    @staticmethod
    def _adapters(a: Identity, b: Identity, end: int | None, verdicts: dict[str, bool | None]) -> None:
        """Before its switch position an activated adapter is not there: the tokens are the base model's."""
        if "adapter_digest" not in verdicts or not (a.adapter_kind == "activated" or b.adapter_kind == "activated"):
            return
        before = [_before_switch(identity, end) for identity in (a, b)]
        plain = [identity.adapter_digest == "" for identity in (a, b)]
        if all(x is True or y for x, y in zip(before, plain, strict=True)):
            settled: bool | None = False
        elif None in before and verdicts["adapter_digest"]:
            settled = None
        elif True in before:
            settled = True  # one side is the base model, the other an adapter
        else:
            return
        for name in _ADAPTER:
            verdicts[name] = False
        verdicts["adapter_digest"] = settled


@cache
def _relevant(kind: str, mode: str) -> dict[str, int]:
    """Dimensions of content that matter here, in order of precedence, and their places in `SHARED`; -1 for own ones."""
    return {
        name: -1 if name in OWN else SHARED.index(name)
        for name, d in DIMENSIONS.items()
        if d.role is Role.CONTENT and kind in d.kinds and mode in d.modes
    }


def _same_content(relevant: dict[str, int], a: tuple[str | None, ...], b: tuple[str | None, ...]) -> bool:
    """Whether no relevant value that both know differs. Equal values are one object: parts are interned."""
    for place in relevant.values():
        if place >= 0 and a[place] is not b[place] and a[place] is not None and b[place] is not None:
            return False
    return True


@cache
def _knowledge(kind: str, mode: str, known: int, variant: Variant) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the relevant dimensions those that cannot be compared, and those that can. `known`: bits of the shared ones
    that both know. No own one may differ."""
    own = _unpacked(variant)
    verdicts = {
        name: own[name] if place < 0 else (False if known >> place & 1 else None)
        for name, place in _relevant(kind, mode).items()
    }
    _yield(verdicts)
    unknown = tuple(name for name, verdict in verdicts.items() if verdict is None)
    return unknown, tuple(name for name, verdict in verdicts.items() if verdict is not None)


def _yield(verdicts: dict[str, bool | None]) -> None:
    """Names yield to the digests that they stand for, where those are known."""
    for name, yields_to in _YIELDING:
        if name in verdicts and verdicts.get(yields_to) is not None:
            verdicts[name] = False
    if verdicts.get("resolved_model") is not None:
        verdicts["model_id"] = False


def own_verdicts(a: Carrier, b: Carrier) -> tuple[bool | None, ...]:
    """How own digests compare that are not all known and equal on both sides: one verdict each, in order of `OWN`."""
    one, two = unpack_own(a.mask, a.own), unpack_own(b.mask, b.own)
    return tuple(_differs(name, one.get(name), two.get(name)) for name in OWN)


def _unpacked(variant: Variant) -> dict[str, bool | None]:
    if isinstance(variant, int):
        return {name: False if variant >> 2 * place & 3 else None for place, name in enumerate(OWN)}
    return dict(zip(OWN, variant, strict=True))


def _before_switch(identity: Identity, end: int | None) -> bool | None:
    """Whether the entry lies before the position where the identity's adapter switches on; None: unknown."""
    if identity.adapter_kind != "activated":
        return False
    switch = identity.adapter_switch or ""
    if end is None or not switch.isdecimal():
        return None
    return end <= int(switch)


def _differs(name: str, a: str | None, b: str | None) -> bool | None:
    if a is None or b is None:
        return None
    if a == b:
        return False
    # Digests made by different algorithms or secrets cannot be compared; known to be none can.
    if a and b and DIMENSIONS[name].form == "digest" and digest_prefix(a) != digest_prefix(b):
        return None
    return True


def other_principal(creator: Carrier, requester: Carrier) -> bool:
    """The entry belongs to a principal, and the requester is known to be another."""
    return bool(creator.principal) and requester.principal is not None and creator.principal != requester.principal
