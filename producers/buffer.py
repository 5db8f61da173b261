"""The bounded buffer between the engine's threads and the sender: the publisher's hot path.

A call appends one tuple and returns. The order of appending is the order of acceptance, which decides the sequence
numbers. At the bound the newest event is dropped, and what was dropped is written down *in the buffer*, behind what
was accepted before it, so that each lane's numbers jump at the right place and the loss shows as a gap.

Nothing here needs a lock while events are accepted: `deque.append` and `deque.popleft` are atomic, and only the
sender changes `staged`. The lock guards the books of drops and refusals, is held for a few additions, never across
I/O, and never while logging. Standard library only.
"""

import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from .tally import Tally

if TYPE_CHECKING:
    from ..schemas.events import Body
    from ..schemas.identity import Identity

    Item = tuple[
        int, Body, str, Identity | None, str, str, str, int, str, str, str, str, str, str, str, int | None, str, str
    ]
    """One accepted call: time in ns, body, key, identity, store, tier, owner, rank, copy, key origin, kind, part, span,
    entry version, place, generation, request id, trace id."""
else:
    Item = tuple

NEVER = 2**62
"""An alarm that no queue length reaches."""


class Loss:
    """Events dropped at this position, by home. Grows for as long as it is the newest thing in the queue."""

    __slots__ = ("homes",)

    def __init__(self) -> None:
        self.homes: dict[str, int] = {}


class Flush:
    """Waits until every event accepted before it is acknowledged, or will never be."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._lanes = 0

    def expect(self, lanes: int) -> None:
        """The number of lanes that had something to send."""
        self._lanes = lanes
        if lanes == 0:
            self.done.set()

    def arrived(self) -> None:
        """One lane has come this far."""
        self._lanes -= 1
        if self._lanes == 0:
            self.done.set()


class Buffer:
    """Accepts events up to `limit`; at most one event a calling thread can go over it."""

    def __init__(self, limit: int, homes: Callable[[Item], tuple[str, ...]], ring: Callable[[], None]) -> None:
        self.queue: deque[Any] = deque()
        """Items, losses and the sender's own markers, in order of acceptance."""
        self.limit = limit
        self.staged = 0
        """Events the sender has taken out and not finished. Only the sender changes it."""
        self.alarm = NEVER
        """The queue length at which a call wakes the sender. Only the sender lowers it."""
        self.closed = False
        self.dropped: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self._homes = homes
        self._ring = ring
        # Re-entrant, since a signal handler or a finaliser may publish in the middle of a call of the same thread.
        self._lock = threading.RLock()
        self._loss: Loss | None = None
        self._foreign = 0
        """Losses and markers in the queue: what is no event."""

    def put(self, item: Item) -> None:
        """Accept one event, or drop it at the bound."""
        queue = self.queue
        if len(queue) + self.staged >= self.limit:
            self._overflow(item)
            return
        queue.append(item)
        if len(queue) >= self.alarm:
            self.alarm = NEVER
            self._ring()

    def mark(self, marker: object) -> None:
        """Append something that is no event and not bounded: a flush's marker."""
        with self._lock:
            self._foreign += 1
            self.queue.append(marker)
        self.alarm = NEVER
        self._ring()

    def close(self) -> None:
        """From now on everything is dropped, reason `closed`."""
        self.closed = True
        self.limit = 0

    def take(self) -> Any:
        """The oldest thing in the queue, or None. For the sender only."""
        if not self.queue:
            return None
        thing = self.queue.popleft()
        if type(thing) is not tuple:
            with self._lock:  # also: a call that has just found this loss in the queue is done with it
                self._foreign -= 1
        return thing

    def waiting(self) -> int:
        """Events accepted and not finished."""
        return max(0, len(self.queue) - self._foreign) + self.staged

    def drop(self, reason: str, count: int) -> None:
        """Count events as dropped."""
        with self._lock:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def refuse(self, field: str) -> None:
        """Count a call that no event can be made of."""
        with self._lock:
            self.refused[field] = self.refused.get(field, 0) + 1

    def books(self) -> tuple[dict[str, int], dict[str, int]]:
        """Copies of the counts of drops by reason and refusals by field."""
        with self._lock:
            return dict(self.dropped), dict(self.refused)

    def _overflow(self, item: Item) -> None:
        homes = self._homes(item)
        with self._lock:
            reason = "closed" if self.closed else "full"
            self.dropped[reason] = self.dropped.get(reason, 0) + len(homes)
            if self.closed:
                return
            loss = self._loss
            if loss is None or self._last() is not loss:
                loss = self._loss = Loss()
                self._foreign += 1
                self.queue.append(loss)
            for home in homes:
                loss.homes[home] = loss.homes.get(home, 0) + 1

    def _last(self) -> Any:
        try:
            return self.queue[-1]
        except IndexError:  # the sender has just emptied it
            return None


class TalliedBuffer(Buffer):
    """A buffer whose events are counted where a kill cannot take the count, before anything else is done with them."""

    def __init__(
        self, limit: int, homes: Callable[[Item], tuple[str, ...]], ring: Callable[[], None], own: str, tally: Tally
    ) -> None:
        super().__init__(limit, homes, ring)
        self._own = own
        self._tally = tally
        self._view = tally.view
        self._slots: dict[int, int] = {}

    def put(self, item: Item) -> None:
        """Count one event, then accept or drop it. May raise what a key that is no text makes `homes` raise."""
        if item[5] != "shared" and not item[6]:
            slot = self._slots.get(get_ident())
            if slot is None:
                self._count_own()
            else:
                self._view[slot] += 1
        else:
            for home in self._homes(item):
                self._tally.count(home)
        queue = self.queue
        if len(queue) + self.staged >= self.limit:
            self._overflow(item)
            return
        queue.append(item)
        if len(queue) >= self.alarm:
            self.alarm = NEVER
            self._ring()

    def _count_own(self) -> None:
        slot = self._tally.slot(self._own)
        if slot is not None:
            self._slots[get_ident()] = slot
        self._tally.count(self._own)
