"""An engine's runs: calls are numbered lane by lane, sent to the agent and kept until it has answered them.

A call that cannot be sent keeps its number: what happened to an entry is missed at it, anything else is replaced by a
heartbeat that says so.
"""

import time
from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any

from .agent_connection import Connection
from .agent_wire import LARGEST_RUN, Call, RunWriter, characters
from .buffer import Buffer, Flush, oldest
from .placing import CACHE_CALLS
from .staging import Staging
from .tally import Marks, Tally

WINDOW = 32
"""Runs that may be unanswered. The rest waits in the buffer, which is bounded."""


class Lane:
    """`given` numbers have been given out, the last of them (`hole`) to nothing that was sent; `flying` runs are not
    answered."""

    __slots__ = ("flying", "given", "hole", "home", "marks", "pending")

    def __init__(self, home: str, marks: Marks | None) -> None:
        self.home = home
        self.marks = marks
        self.pending: deque[Any] = deque()
        self.given = 0
        self.hole = False
        self.flying: list[Run] = []


class Run:
    """One run that is not answered, `last` the number of its last event."""

    __slots__ = ("data", "events", "flushes", "lane", "last", "since")

    def __init__(self, lane: Lane, data: bytes, events: int, last: int) -> None:
        self.since = time.monotonic()
        self.lane, self.data, self.events, self.last = lane, data, events, last
        self.flushes: list[Flush] = []


class Runs(Staging[Lane]):
    """Sends what `buffer` holds through `connection`; `homes` says where a call belongs."""

    def __init__(
        self,
        node: str,
        buffer: Buffer,
        tally: Tally | None,
        homes: Callable[[Any], tuple[str, ...]],
        connection: Connection,
        size: int,
    ) -> None:
        super().__init__(node, buffer, size)
        self.sent = self.records = self.bytes = 0
        self._tally = tally
        self._homes = homes
        self._connection = connection
        self._writer = RunWriter()
        self._runs: dict[int, Run] = {}
        self._number = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything has been answered."""
        return not self._runs and not self._buffer.queue and not any(lane.pending for lane in self._lanes.values())

    @property
    def are_awaited(self) -> bool:
        """Whether nothing goes on, or somebody waits, before the agent answers."""
        return len(self._runs) >= WINDOW or any(run.flushes for run in self._runs.values())

    def lag_s(self) -> float:
        """How long the oldest has been waiting for its answer. From any thread."""
        since = [run.since for run in list(self._runs.values())]
        return max(0.0, time.monotonic() - min(since)) if since else 0.0

    def unanswered(self) -> list[bytes]:
        """Each as it was sent."""
        return [run.data for run in self._runs.values()]

    def send(self) -> None:
        """Make runs of what is pending, as many as the window takes."""
        for lane in self._lanes.values():
            while len(self._runs) < WINDOW and (lane.pending or lane.hole):
                while lane.pending and type(lane.pending[0]) is int:
                    lane.given += lane.pending.popleft()
                    lane.hole = True
                if lane.pending and isinstance(lane.pending[0], Flush):
                    flush = lane.pending.popleft()
                    flush.arrived() if not lane.flying else lane.flying[-1].flushes.append(flush)
                    continue
                if not lane.pending:
                    self._add(lane, _heartbeat(lane.home, "events before this one were dropped"))
                self._send(lane, oldest(lane.pending, self._size))

    def answered(self, answer: dict[str, Any]) -> None:
        """A run is safe with the agent; the number of one that is not waited for changes nothing."""
        run = self._runs.pop(answer["ok"], None)
        if run is None:
            return
        run.lane.flying.remove(run)
        self._buffer.staged -= run.events
        self.sent += run.events
        self.records += 1
        self.bytes += len(run.data)
        refused: dict[str, int] = answer.get("refused", {})
        if any(field == "call" or field.split(".")[0] in CACHE_CALLS for field in refused):
            # So that what is missing at the lane's end shows: before that end is called safe.
            self._add(run.lane, _heartbeat(run.lane.home, "events before this one were refused"))
        if run.lane.marks is not None:
            run.lane.marks.safe(run.last)
        for field, count in refused.items():
            for _ in range(count):
                self._buffer.refuse(field)
        self._connection.works(self._buffer.waiting())
        for flush in run.flushes:
            flush.arrived()

    def _send(self, lane: Lane, calls: list[Call]) -> None:
        self._number += 1
        data = b""
        try:
            if characters(calls) <= LARGEST_RUN:
                data = self._writer.write(self._number, lane.home, lane.given + 1, calls)
        except Exception:  # whatever a caller put there: each alone
            things = [self._writable(lane.home, call) for call in calls]
            if all(map(is_, things, calls)):
                raise
            lane.pending.extendleft(reversed(things))
            return
        if not data or len(data) > LARGEST_RUN:
            self._send_less(lane, calls)
            return
        lane.hole = False
        lane.given += len(calls)
        run = self._runs[self._number] = Run(lane, data, len(calls), lane.given)
        lane.flying.append(run)
        self._connection.put(data)

    def _send_less(self, lane: Lane, calls: list[Call]) -> None:
        """They are too large for one run: half of them, or what stands for a call that is too large alone."""
        half = len(calls) // 2
        lane.pending.extendleft(reversed(calls[half:] if half else [self._turned_down(lane.home, calls[0], "size")]))
        if half:
            self._send(lane, calls[:half])

    def _writable(self, home: str, call: Call) -> Call | int:
        """The call, or what keeps its number."""
        try:
            self._writer.write(self._number, home, 1, [call])
        except Exception:
            return self._turned_down(home, call, "arguments")
        return call

    def _turned_down(self, home: str, call: Call, field: str) -> Call | int:
        """What keeps a refused call's number: for what happened to an entry nothing, so that it is missed."""
        self._buffer.refuse(f"{call[1]}.{field}")
        if call[1] in CACHE_CALLS:
            self._buffer.staged -= 1
            return 1
        return _heartbeat(home, f"refused: {call[1]}.{field}", call[0])

    def _homes_of(self, event: Call) -> tuple[str, ...]:
        return self._homes(event)

    def _name_of(self, event: Call) -> str:
        return event[1]

    def _new_lane(self, home: str) -> Lane:
        return Lane(home, None if self._tally is None else self._tally.marks(home))

    def _first_event(self, time_ns: int) -> Call:
        return (time_ns, "node_start", "", None, "", "gpu", "", "", 0, None)

    def _is_sending(self, lane: Lane) -> bool:
        return bool(lane.flying)


def _heartbeat(home: str, detail: str, time_ns: int | None = None) -> Call:
    store, tier = (home[2:].rpartition(":")[0], "shared") if home.startswith("s:") else ("", "gpu")
    fields = {"check": "heartbeat", "result": "pass", "detail": detail}
    owner = home[2:] if tier == "gpu" else ""
    return (time.time_ns() if time_ns is None else time_ns, "check", "", None, store, tier, owner, "", 0, fields)
