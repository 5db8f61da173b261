"""From the buffer into the lanes: every call to each of its homes, in the order of acceptance. Standard library only.

Most portions of a buffer are calls of the node's own home alone, and go there as they are. What else one may hold:
calls of other homes, calls that name none, what was dropped at this place, somebody who waits for what is before.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Generic, Protocol, TypeVar

from ..schemas.homes import node_home
from .buffer import Buffer, Flush, Loss
from .placing import CACHE_CALLS, Homeless
from .tally import Marks


class StagedLane(Protocol):
    """`pending` holds events, counts of dropped ones, and markers, in order; `marks` keeps its books."""

    home: str
    marks: Marks | None
    pending: deque[Any]


L = TypeVar("L", bound=StagedLane)


class Staging(ABC, Generic[L]):
    """The lanes of one incarnation of `node`, filled from `buffer`, where what waits may be split into records of
    `size` events. The first event of all is the `node_start`: one is made where the engine has not told its own."""

    def __init__(self, node: str, buffer: Buffer, size: int) -> None:
        self._buffer = buffer
        self._lanes: dict[str, L] = {}
        self._own = node_home(node)
        self._size = size
        self._announced = False

    def stage(self, *, whole: bool) -> None:
        """Move what is in the buffer; unless `whole`, not what would not fill the last record."""
        buffer, own = self._buffer, self._lane(self._own).pending
        for things in buffer.portions(self._size, whole=whole):
            if self._announced and buffer.is_plain(things):
                own.extend(things)
            else:
                for thing in things:
                    self._stage_one(thing)

    def _stage_one(self, thing: Any) -> None:
        if type(thing) is tuple:
            self._stage_event(thing)
        elif isinstance(thing, Loss):
            self._announce(time.time_ns())
            for home, count in thing.homes.items():
                self._lane(home).pending.append(count)
        elif isinstance(thing, Flush):
            busy = [lane for lane in self._lanes.values() if lane.pending or self._is_sending(lane)]
            thing.expect(len(busy))
            for lane in busy:
                lane.pending.append(thing)

    def _stage_event(self, event: Any) -> None:
        """One event that is counted as staged, to the lanes of its homes."""
        try:
            homes = self._homes_of(event)
        except Homeless as error:
            self._stage_homeless(event[0], self._name_of(event), error)
            return
        if not self._announced and self._name_of(event) == "node_start":
            self._announced = True
        self._announce(event[0])
        self._buffer.staged += len(homes) - 1
        for home in homes:
            self._lane(home).pending.append(event)

    def _stage_homeless(self, time_ns: int, name: str, error: Homeless) -> None:
        """A call that names no home: in the node's own, what happened to an entry leaves a gap."""
        self._refuse(f"{name}.{error.field}", "names no home.")
        if name in CACHE_CALLS:
            self._announce(time_ns)
            self._lane(self._own).pending.append(1)

    def _refuse(self, field: str, message: str) -> None:
        """No event can be made of one that is counted as staged."""
        self._buffer.staged -= 1
        self._buffer.refuse(field)

    def _announce(self, time_ns: int) -> None:
        if not self._announced:
            self._announced = True
            self._add(self._lane(self._own), self._first_event(time_ns))

    def _lane(self, home: str) -> L:
        lane = self._lanes.get(home)
        if lane is None:
            lane = self._lanes[home] = self._new_lane(home)
        return lane

    def _add(self, lane: L, event: Any) -> None:
        """An event of our own."""
        self._buffer.staged += 1
        if lane.marks is not None:
            lane.marks.extra()
        lane.pending.append(event)

    @abstractmethod
    def _homes_of(self, event: Any) -> tuple[str, ...]:
        """Where an event belongs. Raises `Homeless`."""

    @abstractmethod
    def _name_of(self, event: Any) -> str:
        """The type of an event, as on the wire."""

    @abstractmethod
    def _new_lane(self, home: str) -> L:
        """A lane of which nothing is known yet."""

    @abstractmethod
    def _first_event(self, time_ns: int) -> Any:
        """A `node_start` that says that nothing is known to have survived."""

    @abstractmethod
    def _is_sending(self, lane: L) -> bool:
        """Whether something of it has been sent and is not acknowledged."""
