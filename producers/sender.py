"""The sender: one daemon thread with its own event loop, which takes events out of the buffer and delivers them.

It sleeps until somebody publishes, then works in rounds of the linger time (or earlier, when an envelope is full)
until nothing has come for a while. One record of a lane is in flight at a time and is sent until it is acknowledged,
so a lane's order holds through any outage; meanwhile everything waits in the bounded buffer.
"""

import asyncio
import threading
import time
from contextlib import suppress

from ..schemas.config import PublisherConfig
from .buffer import NEVER, Buffer, Item
from .lanes import Lane, Packed, Packer, first_event, heartbeat, homes_of
from .sender_loop import Loop
from .spooled import SpooledTransport
from .staging import Staging
from .telling import Teller, log
from .transport import Line, RecordRejected, TransportError

RETRY_FIRST_S = 0.05
RETRY_CAP_S = 1.0
AWAKE_S = 1.0
"""How long the sender goes on in rounds after the last event, so that a steady trickle of events costs no wake-ups."""
STOP_S = 1.0
"""What closing the transport may take beyond the deadline of `close`."""


class Sender(Staging[Lane]):
    """Delivers what `buffer` holds through `transport`, as the lanes of one incarnation."""

    def __init__(self, node: str, incarnation: str, buffer: Buffer, transport: Line, config: PublisherConfig) -> None:
        super().__init__(node, buffer, config.envelope_events)
        self.sent = self.records = self.bytes = self.failures = 0
        self.last_error = ""
        self.drained = False
        self._node = node
        self._transport = transport
        self._spooled = transport if isinstance(transport, SpooledTransport) else None
        if self._spooled is not None:
            self._spooled.failed = self._failed
            self._spooled.recovered = self._recovered
        self._config = config
        self._packer = Packer(node, incarnation, config, self._refuse)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._since: dict[str, float] = {}
        self._loop: Loop | None = None
        self._bell = asyncio.Event()
        self._connected = asyncio.Event()
        self._deadline: float | None = None
        self._teller = Teller()
        self._thread = threading.Thread(target=self._run, name=f"kvtrail-publisher-{node}", daemon=True)
        self._thread.start()

    # Called from any thread.

    def lag_s(self) -> float:
        """How long the oldest record has been waiting to be acknowledged, or safe on disk."""
        since = list(self._since.values())
        return max(0.0, time.monotonic() - min(since)) if since else 0.0

    def ring(self) -> None:
        """Wake the sender. Never raises."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has been closed in between
                loop.call_soon_threadsafe(self._bell.set)

    def close(self, timeout_s: float) -> bool:
        """Drain for at most `timeout_s`, then stop. True when everything was acknowledged."""
        if self._thread.is_alive():
            self._deadline = time.monotonic() + timeout_s
            self.ring()
            self._thread.join(timeout_s + 2 * STOP_S)
        return self.drained

    # In the sender's thread from here on.

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=Loop) as runner:
                runner.run(self._main())
        except Exception:
            log.exception("the sender of %s has failed; its publisher drops everything from now on", self._node)
            self.last_error = "sender_failed"
            self._buffer.close()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()  # type: ignore[assignment]  # made by our factory
        connecting = asyncio.create_task(self._connect())
        busy_until = 0.0
        while self._deadline is None:
            if await self._pause(asleep=self._loop_time() > busy_until):
                busy_until = self._loop_time() + AWAKE_S
                self._stage()
                self._dispatch()
            self._teller.counts(*self._buffer.books())
        await self._drain()
        connecting.cancel()
        with suppress(Exception):
            await asyncio.wait_for(self._transport.stop(), STOP_S)

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    async def _pause(self, *, asleep: bool) -> bool:
        """Wait for work: for the first event when asleep, then for the linger time or a full envelope."""
        buffer, bell = self._buffer, self._bell
        if asleep and not buffer.queue:
            buffer.alarm = 1
            if not buffer.queue and self._deadline is None:
                await bell.wait()
            bell.clear()
        if self._deadline is None and len(buffer.queue) < self._config.envelope_events:
            buffer.alarm = self._config.envelope_events
            # A call may have gone over the alarm before it was set; and a flush rings without reaching it.
            if len(buffer.queue) < buffer.alarm:
                timer = asyncio.get_running_loop().call_later(self._config.linger_s, bell.set)
                await bell.wait()
                timer.cancel()
        bell.clear()
        buffer.alarm = NEVER
        return bool(buffer.queue)

    def _stage(self) -> None:
        self.stage(whole=self._deadline is not None)

    def _homes_of(self, event: Item) -> tuple[str, ...]:
        return homes_of(event, self._node, self._config.slots)

    def _name_of(self, event: Item) -> str:
        return str(event[1].__struct_config__.tag)

    def _new_lane(self, home: str) -> Lane:
        return Lane(home, self._spooled.spool.tally.marks(home) if self._spooled is not None else None)

    def _first_event(self, time_ns: int) -> Item:
        return first_event(time_ns)

    def _is_sending(self, lane: Lane) -> bool:
        return lane.home in self._running

    def _refuse(self, field: str, message: str) -> None:
        super()._refuse(field, message)
        self._teller.refused(field, message)

    def _dispatch(self) -> None:
        for home, lane in self._lanes.items():
            if lane.pending and home not in self._running:
                self._running[home] = asyncio.create_task(self._work(lane))

    async def _work(self, lane: Lane) -> None:
        """Send everything the lane has, one record at a time."""
        try:
            while True:
                packed = self._packer.pack(lane)
                if packed is not None:
                    await self._deliver(lane, packed)
                elif lane.pending:
                    lane.pending.popleft().arrived()
                elif lane.hole:
                    lane.hole = False  # once, should not even a heartbeat be taken
                    self._add(lane, heartbeat(time.time_ns(), lane.home))
                else:
                    return
        finally:
            del self._running[lane.home]

    async def _deliver(self, lane: Lane, packed: Packed) -> None:
        self._since[lane.home] = time.monotonic()
        await self._connected.wait()
        pause = RETRY_FIRST_S
        while True:
            try:
                await self._transport.send(lane.home, packed.record, packed.first, packed.last)
            except RecordRejected as error:
                self._failed(error)
                self._buffer.drop("rejected", packed.events)
                if lane.marks is not None:
                    lane.marks.safe(0)
                break
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_CAP_S)
            else:
                self.sent += packed.events
                self.records += 1
                self.bytes += len(packed.record)
                if lane.marks is not None:
                    lane.marks.safe(packed.last)
                if self._spooled is None:
                    self._recovered()
                break
        del self._since[lane.home]
        self._buffer.staged -= packed.events

    async def _connect(self) -> None:
        pause = RETRY_FIRST_S
        while True:
            try:
                await self._transport.start()
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_CAP_S)
            else:
                self._connected.set()
                self._tell_unknown_ends()
                return

    def _tell_unknown_ends(self) -> None:
        for head in self._spooled.spool.unknown if self._spooled is not None else ():
            lane = self._lane(self._own)
            self._announce(time.time_ns())
            self._add(lane, heartbeat(time.time_ns(), lane.home, head.doubt, "inconclusive"))
        self._dispatch()

    async def _drain(self) -> None:
        """Send what is left until the deadline; what remains is dropped, reason `closed`."""
        self._stage()
        self._dispatch()
        assert self._deadline is not None
        await self._all_sent(self._deadline - time.monotonic())
        if self._spooled is not None:  # as far as the broker goes along; the rest is kept on disk
            await self._spooled.settle(self._deadline - time.monotonic())
            if self._running:
                self._spooled.hurry()
                await self._all_sent(STOP_S)
        self._stage()  # a call may have passed the bound just before the buffer was closed
        left = self._buffer.staged
        for task in list(self._running.values()):
            task.cancel()
        await self._all_sent(STOP_S)
        self._buffer.staged = 0
        if left:
            self._buffer.drop("closed", left)
        self._teller.counts(*self._buffer.books())
        self.drained = left == 0

    async def _all_sent(self, timeout_s: float) -> None:
        """No lane is sending, or the time is over."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=max(0.0, timeout_s))

    def _recovered(self) -> None:
        if self._teller.up(self._buffer.waiting()):
            self.last_error = ""

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = error.reason if isinstance(error, TransportError) else type(error).__name__
        if isinstance(error, RecordRejected):
            self._teller.rejected(error)
        else:
            self._teller.down(error)
