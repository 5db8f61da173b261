"""What a dimension of identity is: declared once, beside its field in `identity.py`.

Rules, ClickHouse columns, coverage and the generated documentation read these declarations; nothing else in the
project lists dimensions by hand.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

EntryKind = Literal["kv", "state", "media", "response"]
MatchMode = Literal["exact", "semantic"]
ENTRY_KINDS: frozenset[EntryKind] = frozenset({"kv", "state", "media", "response"})
COMPUTED: frozenset[EntryKind] = frozenset({"kv", "state", "response"})
TENSORS: frozenset[EntryKind] = frozenset({"kv", "state"})


class Severity(StrEnum):
    """How loud a finding is; ordered by `rank`."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return _RANK[self]

    def raised_to(self, other: "Severity") -> "Severity":
        """The louder of the two: conditions only ever raise a severity."""
        return other if other.rank > self.rank else self


_RANK = {severity: rank for rank, severity in enumerate(Severity)}


class Role(StrEnum):
    """What a difference in this dimension means."""

    CONTENT = "content"
    """It changes what the tokens mean: a difference is a wrong computation."""
    SCOPE = "scope"
    """It says who may see the entry: a difference matters under policy, a private domain, or with differing content."""
    ORDER = "order"
    """It only orders (an epoch): a difference by itself says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of identity.

    `precedence`: of several differing dimensions the lowest names the cause; digests derived from others come
    after those they derive from, principal, tenant and isolation last. `severity`: base, inside one tenant.
    `kinds`, `modes`: entries and match modes for which a difference matters. `yields_to`: for a name, the digest
    dimension that makes it irrelevant once known on both sides. `may_differ`: the legitimate case, for people.
    """

    title: str
    cause: str
    precedence: int
    severity: Severity = Severity.HIGH
    role: Role = Role.CONTENT
    form: Literal["digest", "name", "text"] = "digest"
    kinds: frozenset[EntryKind] = COMPUTED
    modes: frozenset[MatchMode] = frozenset({"exact", "semantic"})
    yields_to: str = ""
    may_differ: str = "No."
