"""The thread behind `AgentPublisher`: numbers calls, writes them to the agent, keeps them until they are safe there.

A frame is four bytes of length and a JSON object. The engine says hello (node, incarnation), then sends runs: a lane's
next events with the number of the first, in columns, of which one that is the same throughout is sent once. The agent
answers each run with its number, in any order. After a reconnect every unanswered run is sent again, in order, with the
same bytes. Standard library only.

The thread shares the engine's interpreter: it wakes once a linger time, leaves the work on each event to C code of the
standard library, and reads answers when it is awake anyway, unless somebody waits for one.
"""

import json
import logging
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from operator import is_, itemgetter
from pathlib import Path
from typing import Any

from ..schemas.homes import node_home
from .buffer import NEVER, Buffer, Flush, Loss, columns, oldest
from .placing import CACHE_CALLS, Homeless
from .tally import Marks, Tally
from .telling import Teller

WIRE_VERSION = 2
WINDOW = 32
"""Runs that may be unanswered. The rest waits in the buffer, which is bounded."""
LARGEST_RUN = 1024 * 1024
"""Bytes of a run. What is larger goes in several; a call that is larger alone is refused: no record would hold it."""
AWAKE_S = 1.0
RETRY_FIRST_S = 0.05
RETRY_CAP_S = 1.0

Call = tuple[int, str, str, Any, str, str, str, str, Any, dict[str, Any] | None]
"""One accepted call: time in ns, its name, key, identity, store, tier, owner, request id, tokens, other arguments."""

_KEY, _REQUEST = itemgetter(2), itemgetter(7)

log = logging.getLogger("kvtrail.producers")


def frame(value: object) -> bytes:
    """A value as it goes over the socket. Raises where JSON cannot hold it."""
    raw = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return struct.pack(">I", len(raw)) + raw


class _Lane:
    __slots__ = ("flying", "given", "hole", "home", "marks", "pending")

    def __init__(self, home: str, marks: Marks | None) -> None:
        self.home = home
        self.marks = marks
        self.pending: deque[Any] = deque()
        self.given = 0
        self.hole = False
        self.flying: list[_Run] = []


class _Run:
    __slots__ = ("data", "events", "flushes", "lane", "last", "number", "since")

    def __init__(self, number: int, lane: _Lane, data: bytes, events: int, last: int) -> None:
        self.since = time.monotonic()
        self.number, self.lane, self.data, self.events, self.last = number, lane, data, events, last
        self.flushes: list[Flush] = []


class AgentLink:
    """Delivers what `buffer` holds to the agent at `path`, as the lanes of one incarnation."""

    def __init__(
        self,
        node: str,
        incarnation: str,
        path: Path,
        buffer: Buffer,
        tally: Tally | None,
        homes: Callable[[Any], tuple[str, ...]],
        *,
        envelope_events: int,
        linger_s: float,
    ) -> None:
        self.sent = self.records = self.bytes = self.failures = 0
        self.last_error = ""
        self.is_started = False
        self._node = node
        self._path = path
        self._buffer = buffer
        self._tally = tally
        self._homes = homes
        self._size = envelope_events
        self._linger_s = linger_s
        self._hello = frame({"v": WIRE_VERSION, "node": node, "incarnation": incarnation, "pid": os.getpid()})
        self._lanes: dict[str, _Lane] = {}
        self._runs: dict[int, _Run] = {}
        self._number = 0
        self._announced = False
        self._socket: socket.socket | None = None
        self._out = bytearray()
        self._in = bytearray()
        self._retry_at = 0.0
        self._pause = RETRY_FIRST_S
        self._identities: dict[int, tuple[Any, dict[str, str]]] = {}
        self._teller = Teller()
        self._deadline: float | None = None
        self._drained = False
        # Re-entrant, since a signal handler may publish while the thread is being started.
        self._starting = threading.RLock()
        self._has_begun = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name=f"kvtrail-agent-{node}", daemon=True)

    def start(self) -> None:
        """Start the thread if it has not been. Never raises."""
        if self.is_started:
            return
        with self._starting:
            if not self._has_begun:
                self._has_begun = True
                try:
                    self._thread.start()
                    self.is_started = True
                except RuntimeError:  # the system gives no more threads: the next event tries again
                    self._has_begun = False
                    self._buffer.alarm = 1

    def lag_s(self) -> float:
        """How long the oldest run has been waiting to be safe with the agent."""
        since = [run.since for run in list(self._runs.values())]
        return max(0.0, time.monotonic() - min(since)) if since else 0.0

    def ring(self) -> None:
        """Wake the thread. Never raises."""
        with suppress(OSError):  # it is full, so the thread is being woken already; or closed
            os.write(self._wake_write, b"!")

    def close(self, timeout_s: float) -> bool:
        """Drain for at most `timeout_s`, then stop. True when everything is safe."""
        self._deadline = time.monotonic() + timeout_s
        self.ring()
        if self._thread.is_alive():  # not where the system gave no thread to start
            self._thread.join(timeout_s + 1.0)
        return self._drained

    def abandon(self) -> None:
        """In a forked child: close what was inherited, without a word to the agent."""
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)
        if self._socket is not None:
            self._socket.close()

    # In the thread from here on.

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            log.exception("the sender of %s has failed; its publisher drops everything from now on", self._node)
            self.last_error = "sender_failed"
            self._buffer.close()
        left = self._buffer.waiting()
        self._buffer.staged = 0
        if left:
            self._buffer.drop("closed", left)
        self._teller.counts(*self._buffer.books())
        self._drained = left == 0
        self._hang_up()

    def _work(self) -> None:
        buffer, awake_until, due = self._buffer, 0.0, 0.0
        while True:
            now = time.monotonic()
            closing = self._deadline is not None
            if closing or now >= due or len(buffer.queue) >= self._size:
                self._read()
                if buffer.queue:
                    awake_until = now + AWAKE_S
                    self._stage()
                self._teller.counts(*buffer.books())
                due = now + self._linger_s
            self._fill()
            self._connect(now)
            self._write()
            if self._deadline is not None and (now >= self._deadline or self._is_empty()):
                return
            if now > awake_until and not self._runs and self._is_empty():
                buffer.alarm = 1
                self._wait(None if not buffer.queue else 0.0, hear=True)
                due = time.monotonic() + self._linger_s
            else:
                buffer.alarm = self._size
                awaited = closing or len(self._runs) >= WINDOW or any(run.flushes for run in self._runs.values())
                waits = max(0.0, due - now) if len(buffer.queue) < self._size and not closing else 0.02
                self._wait(waits, hear=awaited)
            buffer.alarm = NEVER

    def _is_empty(self) -> bool:
        return not self._runs and not self._buffer.queue and not any(lane.pending for lane in self._lanes.values())

    def _wait(self, timeout_s: float | None, *, hear: bool) -> None:
        """Until somebody rings, the time is over, the agent takes what is to be written, or (`hear`) it answers."""
        sockets: list[int] = [self._socket.fileno()] if self._socket is not None else []
        heard = [self._wake_read, *sockets] if hear else [self._wake_read]
        readable, _, _ = select.select(heard, sockets if self._out else [], [], timeout_s)
        if self._wake_read in readable:
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if any(each in readable for each in sockets):
            self._read()

    def _stage(self) -> None:
        buffer, own = self._buffer, self._lane(node_home(self._node)).pending
        for things in buffer.portions(self._size, whole=self._deadline is not None):
            if self._announced and buffer.is_plain(things):
                own.extend(things)
            else:
                for thing in things:
                    self._stage_one(thing)

    def _stage_one(self, thing: Any) -> None:
        if type(thing) is tuple:
            self._stage_call(thing)
        elif isinstance(thing, Loss):
            self._announce(time.time_ns())
            for home, count in thing.homes.items():
                self._lane(home).pending.append(count)
        elif isinstance(thing, Flush):
            busy = [lane for lane in self._lanes.values() if lane.pending or lane.flying]
            thing.expect(len(busy))
            for lane in busy:
                lane.pending.append(thing)

    def _stage_call(self, call: Call) -> None:
        try:
            homes = self._homes(call)
        except Homeless as error:
            self._buffer.staged -= 1
            self._buffer.refuse(f"{call[1]}.{error.field}")
            if call[1] in CACHE_CALLS:
                self._announce(call[0])
                self._lane(node_home(self._node)).pending.append(1)
            return
        if call[1] == "node_start":
            self._announced = True
        self._announce(call[0])
        self._buffer.staged += len(homes) - 1
        for home in homes:
            self._lane(home).pending.append(call)

    def _announce(self, time_ns: int) -> None:
        if not self._announced:
            self._announced = True
            start = (time_ns, "node_start", "", None, "", "gpu", "", "", 0, None)
            self._add(self._lane(node_home(self._node)), start)

    def _lane(self, home: str) -> _Lane:
        lane = self._lanes.get(home)
        if lane is None:
            lane = self._lanes[home] = _Lane(home, None if self._tally is None else self._tally.marks(home))
        return lane

    def _add(self, lane: _Lane, call: Call) -> None:
        """An event of our own."""
        self._buffer.staged += 1
        if lane.marks is not None:
            lane.marks.extra()
        lane.pending.append(call)

    def _fill(self) -> None:
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

    def _send(self, lane: _Lane, calls: list[Call]) -> None:
        self._number += 1
        first = lane.given + 1
        data = b""
        try:
            if _texts(calls) <= LARGEST_RUN:
                data = self._encode(lane.home, first, calls)
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
        run = self._runs[self._number] = _Run(self._number, lane, data, len(calls), lane.given)
        lane.flying.append(run)
        if self._socket is not None:
            self._out += data

    def _send_less(self, lane: _Lane, calls: list[Call]) -> None:
        """They are too large for one run: half of them, or what stands for a call that is too large alone."""
        half = len(calls) // 2
        lane.pending.extendleft(reversed(calls[half:] if half else [self._turned_down(lane.home, calls[0], "size")]))
        if half:
            self._send(lane, calls[:half])

    def _encode(self, home: str, first: int, calls: list[Call]) -> bytes:
        times, names, keys, identities, stores, tiers, owners, requests, tokens, fields = columns(calls)
        places: dict[int, int] = {}
        table: list[dict[str, str]] = []
        ids = list(map(id, identities))
        for identity in dict(zip(ids, identities, strict=True)).values():
            places[id(identity)] = -1 if identity is None else len(table)
            if identity is not None:
                table.append(self._dimensions(identity))
        t0 = times[0]
        sent = (
            names, keys, list(map(places.__getitem__, ids)), stores, tiers, owners, requests, tokens, fields,
        )  # fmt: skip
        return frame(
            {
                "n": self._number, "home": home, "first": first, "t0": t0 // 1000, "ids": table,
                "times": [(time_ns - t0) // 1000 for time_ns in times], "columns": list(map(_column, sent)),
            }
        )  # fmt: skip

    def _dimensions(self, identity: Any) -> dict[str, str]:
        kept = self._identities.get(id(identity))
        fixed = hasattr(identity, "to_wire")
        if kept is None or not (fixed or kept[1] == identity):  # a mapping may have been given other values since
            if len(self._identities) >= 4096:
                self._identities.clear()
            made = identity.to_wire() if fixed else dict(identity)
            kept = self._identities[id(identity)] = (identity, made)  # kept, so that its id stays its own
        return kept[1]

    def _writable(self, home: str, call: Call) -> Call | int:
        """The call, or what keeps its number."""
        try:
            self._encode(home, 1, [call])
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

    def _connect(self, now: float) -> None:
        if self._socket is not None or now < self._retry_at or not (self._runs or self._out):
            return
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(str(self._path))
            link.setblocking(False)
        except OSError as error:
            link.close()
            self._failed(type(error).__name__, error)
            return
        self._socket, self._in = link, bytearray()
        self._out = bytearray(self._hello)
        for run in self._runs.values():
            self._out += run.data

    def _write(self) -> None:
        if self._socket is None or not self._out:
            return
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._failed(type(error).__name__, error)

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            got = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed(type(error).__name__, error)
            return
        if not got:
            self._failed("agent_gone", ConnectionError("the agent has gone"))
            return
        self._in += got
        while len(self._in) >= 4 and len(self._in) >= 4 + (size := int.from_bytes(self._in[:4])):
            answer = json.loads(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            self._answered(answer)

    def _answered(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._failed("agent_refused", PermissionError(str(answer["error"])))
            return
        run = self._runs.pop(answer["ok"], None)
        if run is None:
            return
        run.lane.flying.remove(run)
        self._buffer.staged -= run.events
        self.sent += run.events
        self.records += 1
        self.bytes += len(run.data)
        self._pause = RETRY_FIRST_S
        if any(field == "call" or field.split(".")[0] in CACHE_CALLS for field in answer.get("refused", ())):
            # So that what is missing at the lane's end shows: before that end is called safe.
            self._add(run.lane, _heartbeat(run.lane.home, "events before this one were refused"))
        if run.lane.marks is not None:
            run.lane.marks.safe(run.last)
        for field, count in answer.get("refused", {}).items():
            for _ in range(count):
                self._buffer.refuse(field)
        if self._teller.up(self._buffer.waiting()):
            self.last_error = ""
        for flush in run.flushes:
            flush.arrived()

    def _failed(self, reason: str, error: Exception) -> None:
        self.failures += 1
        self.last_error = reason
        self._teller.down(error)
        self._hang_up()
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, RETRY_CAP_S)

    def _hang_up(self) -> None:
        link, self._socket = self._socket, None
        if link is not None:
            link.close()
        self._out = bytearray()


def _texts(calls: list[Call]) -> int:
    """How many characters these calls have at least; 0 where one has none to count."""
    try:
        return sum(map(len, map(_KEY, calls))) + sum(map(len, map(_REQUEST, calls)))
    except TypeError:
        return 0


def _column(values: list[Any]) -> Any:
    """What stands for these values: one of them where all are the same."""
    first = values[0]
    same = isinstance(first, str | int | None) and values.count(first) == len(values)
    return first if same else values


def _heartbeat(home: str, detail: str, time_ns: int | None = None) -> Call:
    store, tier = (home[2:].rpartition(":")[0], "shared") if home.startswith("s:") else ("", "gpu")
    fields = {"check": "heartbeat", "result": "pass", "detail": detail}
    owner = home[2:] if tier == "gpu" else ""
    return (time.time_ns() if time_ns is None else time_ns, "check", "", None, store, tier, owner, "", 0, fields)
