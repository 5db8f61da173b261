"""What a rule is given and what it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..schemas.config import JudgingConfig
from ..schemas.dimensions import Severity
from ..schemas.events import Create, Event, Hit
from ..schemas.identity import titles
from .comparison import Comparator, Comparison
from .factbook import FactBook
from .interning import Identities, Who
from .ledger.home import Held, Home, scope_of
from .ledger.rows import Mark, Row, Scope

SERVED = frozenset({"ok", "cancelled", "partial", ""})
"""Outcomes after which something may have reached the requester."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A rule's answer. `differing` are dimension names, the one that names the cause first."""

    cause: str
    severity: Severity
    title: str
    dimension: str = ""
    differing: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    reason: str = ""
    other: Row | None = None
    """For a create: the instance whose creator is the other party."""


@dataclass(slots=True, kw_only=True)
class Context:
    """What every rule may look at beside its subject."""

    settings: JudgingConfig
    identities: Identities
    comparator: Comparator
    facts: FactBook
    skew_us: int
    horizon_us: int


@dataclass(slots=True, kw_only=True)
class HitCase:
    """One hit, the instance it was matched to and what had ended that instance by then.

    `row` None: no instance is known. `blind`: what is missing could have held its create. `siblings`: hits of the
    same request on other parts.
    """

    event: Event
    hit: Hit
    order: int
    append_us: int
    who: Who
    home: Home
    row: Row | None
    end: Mark | None
    comparison: Comparison
    blind: bool
    siblings: Sequence[Held]
    doubt: bool = False
    """Only what surely came before the hit counts."""
    context: Context

    @property
    def identity(self) -> int:
        return self.who.identity

    @property
    def scope(self) -> Scope:
        return scope_of(self.event)

    @property
    def requester(self) -> str:
        return self.context.identities.tenant(self.identity)

    def differing(self, first: str = "") -> tuple[str, ...]:
        """Every differing dimension, `first` in front."""
        return with_first(self.comparison.differing, first)


@dataclass(slots=True, kw_only=True)
class CreateCase:
    """One create; `live` are the other instances that live at its address when it comes."""

    event: Event
    create: Create
    order: int
    append_us: int
    row: Row
    live: Sequence[Row]
    home: Home
    context: Context


HitRule = Callable[[HitCase], Verdict | None]
CreateRule = Callable[[CreateCase], Verdict | None]


def with_first(names: tuple[str, ...], first: str) -> tuple[str, ...]:
    """The names, `first` in front if it is among them."""
    return (first, *(name for name in names if name != first)) if first in names else names


def uncovered(names: tuple[str, ...]) -> str:
    """`key does not cover tenant, template digest`."""
    return f"key does not cover {titles(names)}"
