"""Barriers of a home: node restarts and scoped invalidations, checked at the hit."""

from bisect import bisect_right, insort
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from ...schemas.events import Event
from ..interning import OWN, SHARED, Carrier, Identities
from .rows import MEMORY, Mark, Row


@lru_cache(maxsize=4096)
def _about_own(where: tuple[tuple[str, str], ...]) -> bool:
    """Whether one of the dimensions is an entry's own, or a principal."""
    return any(name in OWN or name == "principal" for name, _ in where)


@dataclass(frozen=True, slots=True)
class Barrier:
    """What stands before `order` and is covered by it ended there. `restart`: `survivors` are the tiers that live on;
    otherwise an invalidation of the entries in `store` (empty: all of the home) that agree with `where`."""

    order: int
    time_us: int
    event_id: str
    restart: bool
    survivors: frozenset[str] = frozenset()
    store: str = ""
    where: tuple[tuple[str, str], ...] = ()


class Barriers:
    """In order; what covers a row is looked for among those after its create only."""

    __slots__ = ("_skew_us", "all", "last", "memo")

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us
        self.all: list[Barrier] = []
        self.last = -1
        self.memo: dict[tuple[tuple[str, str], ...], dict[int, bool]] = {}

    def add(self, barrier: Barrier) -> None:
        """Put a barrier in its place; one at the same order is replaced (a restart told after it was implied)."""
        self.all = [known for known in self.all if known.order != barrier.order]
        insort(self.all, barrier, key=attrgetter("order"))
        self.last = self.all[-1].order

    def sweep(self, before_us: int) -> None:
        """Drop the barriers before `before_us`: what they covered has been dropped, what they spared is spared."""
        self.all = [barrier for barrier in self.all if barrier.time_us >= before_us]
        self.last = self.all[-1].order if self.all else -1
        self.memo.clear()

    def at(self, order: int) -> Barrier | None:
        """The barrier at exactly this order."""
        return next((barrier for barrier in self.all if barrier.order == order), None)

    def covering(self, row: Row, before: int, identities: Identities) -> Mark | None:
        """The first barrier between the row's create and `before` that ended it, as a mark."""
        if row.order > self.last:
            return None
        for barrier in self.all[bisect_right(self.all, row.order, key=attrgetter("order")) :]:
            if barrier.order >= before:
                return None
            if self._covers(barrier, row, identities) and not self._may_precede(barrier, row):
                reason = "restart" if barrier.restart else "invalidated"
                return Mark(barrier.order, barrier.time_us, reason, None, barrier.event_id)
        return None

    def told_later(self, row: Row, order: int, event: Event, skew_us: int, identities: Identities) -> Mark | None:
        """An invalidation by another node that came after the hit at `order`, but whose clock says that it was done
        before it, by more than the skew."""
        if self.last <= order:
            return None
        for barrier in self.all[bisect_right(self.all, order, key=attrgetter("order")) :]:
            if barrier.restart or not row.time_us < barrier.time_us < event.time_us - skew_us:
                continue
            foreign = barrier.event_id.partition("/")[0] != event.node
            if foreign and self._covers(barrier, row, identities) and not self._may_precede(barrier, row):
                return Mark(barrier.order, barrier.time_us, "invalidated", None, barrier.event_id)
        return None

    def _may_precede(self, barrier: Barrier, row: Row) -> bool:
        """An invalidation by another node may have been before the create, although it was told later."""
        return (
            not barrier.restart
            and barrier.time_us <= row.time_us + self._skew_us
            and barrier.event_id.partition("/")[0] != row.lane.node
        )

    def _covers(self, barrier: Barrier, row: Row, identities: Identities) -> bool:
        if barrier.restart:
            return row.scope.tier in MEMORY or row.scope.tier not in barrier.survivors
        if barrier.store and barrier.store != row.scope.store:
            return False
        return not barrier.where or self.agrees(barrier.where, row, identities)

    def agrees(self, where: tuple[tuple[str, str], ...], who: Carrier, identities: Identities) -> bool:
        """Whether an identity has every value of `where`; what is unknown does not agree."""
        if who.identity < 0:
            return not where
        if _about_own(where):
            wire = identities.wire(who)
            return all(wire.get(name) == value for name, value in where)
        known = self.memo.get(where)
        if known is None:
            known = self.memo[where] = {}
        found = known.get(who.identity)
        if found is None:
            values = identities.values[who.identity]
            found = all(name in SHARED and values[SHARED.index(name)] == value for name, value in where)
            known[who.identity] = found
        return found
