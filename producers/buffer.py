"""The bounded buffer between the engine's threads and the sender: the publisher's hot path.

A call appends one tuple and returns. The order of appending is the order of acceptance, which decides the sequence
numbers. At the bound the newest event is dropped, and what was dropped is written down *in the buffer*, behind what
was accepted before it, so that each lane's numbers jump at the right place and the loss shows as a gap.

Nothing here needs a lock while events are accepted: `deque.append` and `deque.popleft` are atomic, and only the
sender changes `staged`. The lock guards the books of drops and refusals, is held for a few additions, never across
I/O, and never while logging. Standard library only.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat, starmap
from operator import itemgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

from .tally import Tally

if TYPE_CHECKING:
    from ..schemas.events import Body
    from ..schemas.identity import Identity

    How = tuple[int, str, str, str, str]
    """Rank, copy, key origin, kind, part."""
    More = tuple[str, str, str, int | None, str]
    """Span, entry version, place, generation, trace id."""
    Item = tuple[int, Body, str, Identity | None, str, str, str, str, How, More]
    """One accepted call: time in ns, body, key, identity, store, tier, owner, request id, how, more. Most calls share
    the last two: what a call makes here, the sender has to fetch from another core's cache."""
else:
    Item = tuple

PLAIN: "How" = (0, "", "derived", "kv", "")
NOTHING: "More" = ("", "", "", None, "")

_UNCOUNTED = memoryview(bytearray(8)).cast("Q")
NEVER = 2**62
"""An alarm that no queue length reaches."""
_PORTION = 256
_TIER, _OWNER = itemgetter(5), itemgetter(6)


def _popped(queue: deque[Any], count: int) -> list[Any]:
    return list(starmap(queue.popleft, repeat((), count)))


def columns(items: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """What `zip(*items)` gives, without an iterator for each item: a thousand of those set the garbage collector off,
    which stops the engine to walk all that it has. Raises `ValueError` where they are not of one length."""
    flat: list[Any] = []
    deque(map(flat.extend, items), maxlen=0)
    width = len(items[0])
    if len(flat) != width * len(items):
        raise ValueError
    return [flat[at::width] for at in range(width)]


def oldest(pending: deque[Any], limit: int) -> list[Any]:
    """Take the events at the front of a lane: at most `limit`, and none past a count or a marker."""
    if len(pending) <= limit:
        things = list(pending)
        pending.clear()
    else:
        things = _popped(pending, limit)
    if list(map(type, things)).count(tuple) < len(things):
        end = next(at for at, thing in enumerate(things) if type(thing) is not tuple)
        pending.extendleft(reversed(things[end:]))
        del things[end:]
    return things


class Loss:
    """Events dropped, or that could not be made, at this position, by home. Grows while it is the queue's newest."""

    __slots__ = ("homes",)

    def __init__(self) -> None:
        self.homes: dict[str, int] = defaultdict(int)


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

    def __init__(
        self, limit: int, homes: Callable[[Item], tuple[str, ...]], ring: Callable[[], None], own: str
    ) -> None:
        self.queue: deque[Any] = deque()
        """Items, losses and the sender's own markers, in order of acceptance."""
        self.limit = limit
        self.staged = 0
        """Events the sender has taken out and not finished. Only the sender changes it."""
        self.alarm = NEVER
        """The queue length at which a call wakes the sender. Only the sender lowers it."""
        self.closed = False
        self.slots: dict[int, int] | None = None
        """Where each thread counts its calls of the node's own home, in `view`; None where nothing is counted."""
        self.view: memoryview[int] = _UNCOUNTED
        # Added to without a call in between, at whose end a signal handler could come in and its count be lost.
        self.dropped: dict[str, int] = defaultdict(int)
        self.refused: dict[str, int] = defaultdict(int)
        self._homes = homes
        self._ring = ring
        self._own = own
        self._portion = max(1, min(_PORTION, limit // 64))
        # Re-entrant, since a signal handler or a finaliser may publish in the middle of a call of the same thread.
        self._lock = threading.RLock()
        self._loss: Loss | None = None
        self._foreign = 0
        """Losses and markers in the queue: what is no event."""

    def put(self, item: Item) -> None:
        """Accept one event, or drop it at the bound."""
        queue = self.queue
        if len(queue) + self.staged >= self.limit:
            self.overflow(item)
            return
        queue.append(item)
        if len(queue) >= self.alarm:
            self.wake()

    def wake(self) -> None:
        """Tell the sender that its alarm has gone off. Never raises: what has been accepted is not refused, too."""
        self.alarm = NEVER
        try:
            self._ring()
        except Exception:  # the next call tries again
            self.alarm = 1

    def mark(self, marker: object) -> None:
        """Append something that is no event and not bounded: a flush's marker."""
        with self._lock:
            self._foreign += 1
            self.queue.append(marker)
        self.wake()

    def close(self) -> None:
        """From now on everything is dropped, reason `closed`."""
        self.closed = True
        self.limit = 0

    def take(self) -> list[Any]:
        """The oldest things in the queue, a portion of them, its events counted as staged. For the sender only."""
        queue = self.queue
        count = min(len(queue), self._portion)
        self.staged += count  # before they leave the queue: the bound holds at every moment
        things = _popped(queue, count)
        foreign = count - list(map(type, things)).count(tuple)
        if foreign:
            self.staged -= foreign
            with self._lock:  # also: a call that has just found a loss of these in the queue is done with it
                self._foreign -= foreign
        return things

    def portions(self, size: int, *, whole: bool) -> Iterator[list[Any]]:
        """What is in the queue now, a portion at a time. Unless `whole`, or a marker is among it, what would not fill
        its last `size` waits for more. For the sender only."""
        left = len(self.queue)
        if left > size and not whole and not self.has_markers():
            left -= left % size
        while left > 0 and (things := self.take()):
            left -= len(things)
            yield things

    def is_plain(self, things: list[Any]) -> bool:
        """Whether all of these are events of the node's own home."""
        try:
            return (
                list(map(type, things)).count(tuple) == len(things)
                and "shared" not in set(map(_TIER, things))
                and not any(map(_OWNER, things))
            )
        except Exception:  # whatever a caller put there
            return False

    def has_markers(self) -> bool:
        """Whether losses or markers are in the queue, which nobody should wait for."""
        return self._foreign > 0

    def waiting(self) -> int:
        """Events accepted and not finished."""
        return max(0, len(self.queue) - self._foreign) + self.staged

    def drop(self, reason: str, count: int) -> None:
        """Count events as dropped."""
        with self._lock:
            self.dropped[reason] += count

    def refuse(self, field: str) -> None:
        """Count a call that no event can be made of."""
        with self._lock:
            self.refused[field] += 1

    def lose(self, field: str) -> None:
        """Count a call that no event can be made of, and write it down as lost in the node's own home. Never raises."""
        with self._lock:
            self.refused[field] += 1
            if self.closed:
                return
            with suppress(Exception):
                self._tell_own()
            self._note_loss((self._own,))
        if len(self.queue) >= self.alarm:
            self.wake()

    def books(self) -> tuple[dict[str, int], dict[str, int]]:
        """Copies of the counts of drops by reason and refusals by field."""
        with self._lock:
            return dict(self.dropped), dict(self.refused)

    def overflow(self, item: Item) -> None:
        """Drop one event, and write down where."""
        homes = (self._own,) if item[5] != "shared" and not item[6] else self._homes(item)
        with self._lock:
            dropped, reason, count = self.dropped, "closed" if self.closed else "full", len(homes)
            dropped[reason] += count
            if not self.closed:
                self._note_loss(homes)

    def _note_loss(self, homes: tuple[str, ...]) -> None:
        """Behind what was accepted before it. The caller holds the lock."""
        loss = self._loss
        try:
            newest = self.queue[-1] is loss
        except IndexError:  # the sender has just emptied it
            newest = False
        if loss is None or not newest:
            loss = self._loss = Loss()
            self._foreign += 1
            self.queue.append(loss)
        for home in homes:
            loss.homes[home] += 1

    def _tell_own(self) -> None:
        """One number of the node's own home is about to be left out."""


class TalliedBuffer(Buffer):
    """A buffer whose events are counted where a kill cannot take the count, before anything else is done with them."""

    def __init__(
        self, limit: int, homes: Callable[[Item], tuple[str, ...]], ring: Callable[[], None], own: str, tally: Tally
    ) -> None:
        super().__init__(limit, homes, ring, own)
        self._tally = tally
        self.view = tally.view
        self.slots: dict[int, int] = {}

    def put(self, item: Item) -> None:
        """Count one event, then accept or drop it. Raises what `homes` raises for a call that names none."""
        if item[5] != "shared" and not item[6]:
            slot = self.slots.get(get_ident())
            if slot is None:
                self._count_own()
            else:
                self.view[slot] += 1
        else:
            for home in self._homes(item):
                self._tally.count(home)
        queue = self.queue
        if len(queue) + self.staged >= self.limit:
            self.overflow(item)
            return
        queue.append(item)
        if len(queue) >= self.alarm:
            self.wake()

    def _tell_own(self) -> None:
        self._tally.count(self._own)

    def _count_own(self) -> None:
        slot = self._tally.slot(self._own)
        if slot is not None:
            self.slots[get_ident()] = slot
        self._tally.count(self._own)
