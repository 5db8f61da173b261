"""A transport with a spool behind it: what cannot be sent at once is safe on disk at once, and sent in order later.

A record goes straight to the other end while that answers within `patience_s`. When it does not, it goes to the
spool, and so does everything that follows it, until the spool has been emptied; so a lane's order holds. A record
that was on its way when patience ended may arrive twice: event ids remove the second.
"""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from .segments import Frame
from .spool import Spool, SpoolFull
from .transport import Line, RecordRejected, TransportError

RETRY_FIRST_S = 0.05
RETRY_CAP_S = 1.0
_BEGAN = re.compile(rb'"t0":(\d+)')
"""When the first event of a record happened, in microseconds."""
SYNC_S = 1.0
"""How much of the spool the loss of the host may cost, in time."""


class SpooledTransport:
    """`inner`, with `spool` behind it. `failed` is told of each failed attempt, `recovered` of the first that was none.

    `send` returns when the record is at the other end or in the spool, and raises `SpoolFull` where it is neither.
    """

    def __init__(self, inner: Line, spool: Spool, *, patience_s: float = 1.0) -> None:
        self.spool = spool
        self.failed: Callable[[Exception], None] = lambda error: None
        self.recovered: Callable[[], None] = lambda: None
        self._inner = inner
        self._patience_s = patience_s
        self._stalled = False
        self.is_failing = False
        """Whether the last attempt was not acknowledged."""
        self.last_error = ""
        self.sent = 0
        """Records that the other end has acknowledged."""
        self.failures = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._patiences: set[asyncio.Timeout] = set()
        self._oldest_s: float | None = None

    def lag_s(self) -> float:
        """The age of the oldest event that waits on disk, by its own clock; 0: none waits."""
        oldest = self._oldest_s
        return max(0.0, time.time() - oldest) if oldest is not None and self.spool.records else 0.0

    async def start(self) -> None:
        """Take over what earlier processes left and begin to send it. Does not wait for the other end."""
        if self._tasks:
            return
        self._started, self._work, self._hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._empty, self._nudge = asyncio.Event(), asyncio.Event()
        self.spool.adopt()
        self._stalled = self.spool.records > 0
        self._note_oldest()
        self._tasks = [asyncio.create_task(self._drain()), asyncio.create_task(self._sync())]

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        """Deliver or keep one record. Raises `RecordRejected`, `SpoolFull`."""
        if not self._stalled and home not in self.spool.waiting and await self._direct(home, record, first, last):
            return
        self.spool.append(Frame(home, first, last, record))
        self._empty.clear()
        self._work.set()

    def hurry(self) -> None:
        """Everything goes to the spool from now on: there is no time left to wait for the other end."""
        self._stalled = True
        self._hurry.set()
        for patience in self._patiences:
            if not patience.expired():
                patience.reschedule(0)

    async def settle(self, timeout_s: float) -> None:
        """Try once more if the last attempt failed, and wait until the spool is empty for as long as all goes well."""
        if not self._tasks:
            return  # closed before it was started: what is on disk stays there
        clock = asyncio.get_running_loop().time
        end, failures = clock() + timeout_s, self.failures
        self._nudge.set()
        while self.spool.records and self.failures == failures and clock() < end:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(0.05, max(0.0, end - clock()))):
                    await self._empty.wait()

    async def emptied(self, timeout_s: float) -> bool:
        """Wait until nothing is left on disk, whatever goes wrong meanwhile; False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Stop sending; what is in the spool stays there for the next process."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self._inner.stop()
        finally:
            self.spool.close()

    async def _direct(self, home: str, record: bytes, first: int, last: int) -> bool:
        patience = asyncio.timeout(0 if self._hurry.is_set() else self._patience_s)
        self._patiences.add(patience)
        try:
            async with patience:
                await self._started.wait()
                await self._inner.send(home, record, first, last)
        except RecordRejected:
            raise
        except Exception as caught:
            error = caught
            if isinstance(caught, TimeoutError) and patience.expired():
                error = TransportError("did not answer in time.", reason="slow", field="transport")
        else:
            self._went_well()
            return True
        finally:
            self._patiences.discard(patience)
        self._stalled = True
        if not self._hurry.is_set():
            self._went_wrong(error)
        return False

    async def _drain(self) -> None:
        await self._until_it_works(self._inner.start)
        self.sent = 0
        self._started.set()
        while True:
            try:
                frames = self.spool.group()
            except OSError as error:  # the disk does not give back what it has: try again, it may be a network's
                self._went_wrong(error)
                await asyncio.sleep(RETRY_CAP_S)
                continue
            if frames:
                self._note_oldest(frames[0])
                await asyncio.gather(*map(self._deliver, frames))
                self.spool.passed(frames)
                continue
            self._stalled = self._hurry.is_set()
            self._empty.set()
            self._work.clear()
            await self._work.wait()

    def _note_oldest(self, frame: Frame | None = None) -> None:
        found = _BEGAN.search(frame.record) if frame is not None else None
        self._oldest_s = int(found[1]) / 1e6 if found is not None else time.time()

    async def _deliver(self, frame: Frame) -> None:
        async def attempt() -> None:
            await self._inner.send(frame.home, frame.record, frame.first, frame.last)

        try:
            await self._until_it_works(attempt)
        except RecordRejected as error:
            self.spool.rejected(frame)
            self.failed(error)

    async def _until_it_works(self, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pause = RETRY_FIRST_S
        while True:
            try:
                await attempt()
            except RecordRejected:
                raise
            except Exception as error:
                self._stalled = True
                self._went_wrong(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._nudge.wait()
                self._nudge.clear()
                pause = min(pause * 2, RETRY_CAP_S)
            else:
                self._went_well()
                return

    async def _sync(self) -> None:
        """The disk has what the spool was given a second ago. In a worker thread, since a disk may take long."""
        while True:
            await self._work.wait()
            with suppress(RuntimeError):  # the interpreter exits: no more threads
                await asyncio.to_thread(self.spool.sync)
            await asyncio.sleep(SYNC_S)

    def _went_wrong(self, error: Exception) -> None:
        self.is_failing = True
        self.last_error = error.reason if isinstance(error, TransportError) else type(error).__name__
        self.failures += 1
        self.failed(error)

    def _went_well(self) -> None:
        self.sent += 1
        if self.is_failing:
            self.is_failing = False
            self.last_error = ""
            self.recovered()


__all__ = ["SpoolFull", "SpooledTransport"]
