"""Two identities side by side: every dimension equal, differing or unknown; and how often it is known at all."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from ..judging.comparison import SETTLED_BY_TOKENS
from ..schemas.digests import digest_prefix
from ..schemas.dimensions import TENSORS, MatchMode, Role
from ..schemas.findings import Finding
from ..schemas.identity import DIMENSIONS, titles

Relation = Literal["equal", "differs", "may differ", "unknown"]

DECISIVE: tuple[tuple[str, ...], ...] = (("weights_digest",), ("token_ids_digest", "prefix_digest", "block_digest"))
"""What must be known on both sides before a hit can be called innocent: one dimension of each group."""


class Compared(Struct, frozen=True, kw_only=True):
    """One dimension of creator and requester. None: unknown; the empty string: known to be none.

    `differs` is what the finding lists, or, without a finding, a difference in something that must not differ;
    `may differ`: the values differ and that alone is no violation (a name beside equal digests, a template beside equal
    token ids, a scope, an epoch).
    """

    dimension: str
    title: str
    created: str | None
    requested: str | None
    relation: Relation


class Coverage(Struct, frozen=True, kw_only=True):
    """For how many of `hits` a dimension is known on both sides."""

    dimension: str
    title: str
    known: int
    hits: int


def compare(
    created: Mapping[str, str],
    requested: Mapping[str, str],
    finding: Finding | None = None,
    *,
    kind: str = "kv",
    mode: MatchMode = "exact",
) -> tuple[Compared, ...]:
    """Every dimension, in order of precedence; what the finding lists as differing is never shown as anything else.

    `kind` of the entry and match `mode` of the hit say which differences matter, as the detectors see them.
    """
    listed = {difference.dimension for difference in finding.differing} if finding is not None else set()
    return tuple(
        Compared(
            dimension=dimension,
            title=declared.title,
            created=created.get(dimension),
            requested=requested.get(dimension),
            relation="differs" if dimension in listed else _judged(dimension, created, requested, kind, mode),
        )
        for dimension, declared in DIMENSIONS.items()
    )


def _judged(
    dimension: str, created: Mapping[str, str], requested: Mapping[str, str], kind: str, mode: MatchMode
) -> Relation:
    relation = _relation(dimension, created, requested)
    declared = DIMENSIONS[dimension]
    if relation == "differs" and not (kind in declared.kinds and mode in declared.modes):
        return "may differ"
    if relation == "differs" and kind in TENSORS and dimension in SETTLED_BY_TOKENS:
        tokens = (_relation(name, created, requested) for name in ("prefix_digest", "token_ids_digest"))
        return "may differ" if "equal" in tokens else "differs"
    return relation


def _relation(dimension: str, created: Mapping[str, str], requested: Mapping[str, str]) -> Relation:
    left, right = created.get(dimension), requested.get(dimension)
    if left is None or right is None:
        return "unknown"
    if left == right:
        return "equal"
    declared = DIMENSIONS[dimension]
    if declared.form == "digest" and left and right and digest_prefix(left) != digest_prefix(right):
        return "unknown"
    if declared.role is not Role.CONTENT:
        return "may differ"
    if declared.yields_to and _relation(declared.yields_to, created, requested) == "equal":
        return "may differ"
    return "differs"


def decided(created: Mapping[str, str], requested: Mapping[str, str]) -> bool:
    """Whether enough is known on both sides, and equal, for the reuse to be called right."""
    return all(any(_relation(name, created, requested) == "equal" for name in group) for group in DECISIVE)


def coverage(pairs: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> tuple[Coverage, ...]:
    """Per dimension, the share of (creator, requester) pairs in which it can be compared."""
    held = list(pairs)
    return tuple(
        Coverage(
            dimension=dimension,
            title=declared.title,
            known=sum(_relation(dimension, created, requested) != "unknown" for created, requested in held),
            hits=len(held),
        )
        for dimension, declared in DIMENSIONS.items()
    )


def differing_dimensions(finding: Finding) -> tuple[str, ...]:
    """The dimensions a finding lists, the one that names the cause first."""
    listed = [difference.dimension for difference in finding.differing]
    if finding.dimension in listed:
        listed.remove(finding.dimension)
        listed.insert(0, finding.dimension)
    return tuple(listed)


def differing_titles(finding: Finding) -> str:
    """`tenant, template digest, token ids`."""
    return titles(differing_dimensions(finding))
