"""The thread behind `AgentPublisher`: what the engine's calls left in the buffer goes to the agent.

It shares the engine's interpreter: it wakes once a linger time, leaves the work on each event to C code of the standard
library, and reads answers when it is awake anyway, unless somebody waits for one. After a reconnect every unanswered
run is sent again, in order, with the same bytes. Standard library only.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .agent_connection import Connection
from .agent_runs import Runs
from .agent_wire import WIRE_VERSION, frame
from .buffer import NEVER, Buffer
from .tally import Tally
from .telling import Teller, log

AWAKE_S = 1.0


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
        self.is_started = False
        self._node = node
        self._buffer = buffer
        self._size = envelope_events
        self._linger_s = linger_s
        self._teller = Teller()
        hello = frame({"v": WIRE_VERSION, "node": node, "incarnation": incarnation, "pid": os.getpid()})
        self.connection = Connection(path, hello, self._teller)
        self.runs = Runs(node, buffer, tally, homes, self.connection, envelope_events)
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
        self.connection.hang_up()

    # In the thread from here on.

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            log.exception("the sender of %s has failed; its publisher drops everything from now on", self._node)
            self.connection.last_error = "sender_failed"
            self._buffer.close()
        left = self._buffer.waiting()
        self._buffer.staged = 0
        if left:
            self._buffer.drop("closed", left)
        self._teller.counts(*self._buffer.books())
        self._drained = left == 0
        self.connection.hang_up()

    def _work(self) -> None:
        buffer, runs, awake_until, due = self._buffer, self.runs, 0.0, 0.0
        while True:
            now = time.monotonic()
            closing = self._deadline is not None
            if closing or now >= due or len(buffer.queue) >= self._size:
                self._read()
                if buffer.queue:
                    awake_until = now + AWAKE_S
                    runs.stage(whole=self._deadline is not None)
                self._teller.counts(*buffer.books())
                due = now + self._linger_s
            runs.send()
            if self.connection.is_due(now) and (unanswered := runs.unanswered()):
                self.connection.open(unanswered)
            self.connection.write()
            if self._deadline is not None and (now >= self._deadline or runs.is_empty):
                return
            if now > awake_until and runs.is_empty:
                buffer.alarm = 1
                self._wait(None if not buffer.queue else 0.0, hear=True)
                due = time.monotonic() + self._linger_s
            else:
                buffer.alarm = self._size
                waits = max(0.0, due - now) if len(buffer.queue) < self._size and not closing else 0.02
                self._wait(waits, hear=closing or runs.are_awaited)
            buffer.alarm = NEVER

    def _wait(self, timeout_s: float | None, *, hear: bool) -> None:
        """Until somebody rings, the time is over, the agent takes what is to be written, or (`hear`) it answers."""
        sockets = self.connection.sockets()
        heard = [self._wake_read, *sockets] if hear else [self._wake_read]
        readable, _, _ = select.select(heard, sockets if self.connection.has_unwritten else [], [], timeout_s)
        if self._wake_read in readable:
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if any(each in readable for each in sockets):
            self._read()

    def _read(self) -> None:
        for answer in self.connection.read():
            self.runs.answered(answer)
