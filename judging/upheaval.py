"""What ends many entries at once: restarts, and invalidations of everything that agrees with something."""

from typing import TYPE_CHECKING

from ..schemas.events import Event, Invalidate, NodeStart
from .ledger.barriers import Barrier
from .ledger.entries import new_mark
from .ledger.home import Held, Home
from .ledger.lanes import Lane

if TYPE_CHECKING:
    from .judge import Judge


class Upheaval:
    """Puts barriers into a home; what they end is found at the hit, never by a scan."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge

    def invalidate(self, home: Home, held: Held, late: bool) -> None:
        """Somebody ended entries: one, or all that agree with something."""
        event, body = held.event, held.event.body
        assert isinstance(body, Invalidate)
        if body.outcome != "done":
            self._judge.stream.invalidate_failed(event, body)
            return
        if body.scope == "entry":
            self._judge.mark(home, held, new_mark(held.event, held.order, held.lane, "invalidated"), late)
            return
        home.barriers.add(
            Barrier(
                order=held.order,
                time_us=event.time_us,
                event_id=event.id,
                restart=False,
                store=event.store if body.scope == "store" else "",
                where=tuple(sorted(body.where.items())),
            )
        )
        self._barrier_moved(home, held.order, late)
        self._judge.told_later(home, held, None)

    def restarted(self, home: Home, lane: Lane, event: Event) -> None:
        """The first event of an incarnation: a new one implies a restart, which memory tiers do not survive."""
        survivors: frozenset[str] = frozenset({"nvme"})
        told = isinstance(event.body, NodeStart)
        if isinstance(event.body, NodeStart):
            survivors = frozenset(event.body.surviving_tiers)
        incarnations = home.nodes[lane.node].lanes
        if incarnations[0] is lane and len(incarnations) == 1:
            home.born_empty = told and not survivors and event.seq == 1
            if not told:
                return
        # What begins now stands behind all that is known, gaps or not, and can change nothing of it.
        self._restart(home, lane, event, survivors, late=lane.next is not None)
        if lane.next is not None and lane.next.runs and home.barriers.at(lane.next.start) is None:
            # An older incarnation turned up: the one that had been taken for the first was a restart too.
            self._restart(home, lane.next, event, frozenset({"nvme"}), late=True)

    def _restart(self, home: Home, lane: Lane, event: Event, survivors: frozenset[str], *, late: bool) -> None:
        event_id = lane.event_id(lane.order(0, lane.runs[0][0]))
        home.barriers.add(Barrier(lane.start, event.time_us, event_id, restart=True, survivors=survivors))
        self._barrier_moved(home, lane.start, late)

    def node_start(self, home: Home, held: Held, late: bool) -> None:
        """The owner says what outlived its last process."""
        body = held.event.body
        assert isinstance(body, NodeStart)
        if held.lane.node != home.owner:
            return
        survivors = frozenset(body.surviving_tiers)
        if held.event.seq == 1 and home.nodes[home.owner].lanes[0] is held.lane:
            home.born_empty = not survivors
        home.barriers.add(
            Barrier(
                # Inside an incarnation it can only mean what it says where it stands.
                held.lane.start if held.event.seq == 1 else held.order,
                held.event.time_us,
                held.event.id,
                restart=True,
                survivors=survivors,
            )
        )
        self._barrier_moved(home, held.lane.start, late)

    def _barrier_moved(self, home: Home, order: int, late: bool) -> None:
        if not late:
            return
        home.addresses.barrier_came_late(order)
        if home.held:
            self._judge.again(home, home.all_held(), "a restart or invalidation arrived late")
