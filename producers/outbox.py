"""Records for `kvtrail.context` that wait to be sent: bounded, by request id, and never in anybody's way.

What they are for passes quickly: a resolver keeps a request for minutes. So when the broker is away for long, the
oldest are given up, and nothing is spooled.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from .telling import log
from .transport import RecordRejected, Transport

T = TypeVar("T")

AT_ONCE = 256
RETRY_FIRST_S = 0.05
RETRY_CAP_S = 1.0


class Outbox(Generic[T]):
    """Sends what `put` was given through `transport`, in the loop that `run` runs in.

    `encode` gives the request id and the record, or None for what cannot be sent; it is called in the loop. `lost`:
    given up, since `limit` newer ones waited, or the broker takes no such record.
    """

    def __init__(self, transport: Transport, encode: Callable[[T], tuple[str, bytes] | None], limit: int) -> None:
        self.sent = self.lost = self.failures = 0
        self._transport = transport
        self._encode = encode
        self._limit = limit
        self._queue: deque[T] = deque()
        self._next: tuple[str, bytes] | None = None
        self._taken: list[tuple[str, bytes]] = []
        # Re-entrant, since a signal handler may publish in the middle of a call of the same thread.
        self._lock = threading.RLock()
        self._bell: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failing = False

    def put(self, item: T) -> None:
        """Accept one; from any thread. Costs an append, and a wake-up where the sender sleeps."""
        queue = self._queue
        queue.append(item)
        if len(queue) > self._limit:
            self._give_up_oldest()
        bell, loop = self._bell, self._loop
        if bell is not None and loop is not None and not bell.is_set():
            with suppress(RuntimeError):  # the loop has been closed in between
                loop.call_soon_threadsafe(bell.set)

    @property
    def waiting(self) -> int:
        """Not sent yet."""
        return len(self._queue) + len(self._taken) + (self._next is not None)

    def close(self) -> bool:
        """Give up what waits, and whatever comes. True when nothing waited. Not while `run` runs."""
        left = self.waiting
        self._limit, self._next, self._taken = 0, None, []
        self._queue.clear()
        with self._lock:
            self.lost += left
        return not left

    @property
    def failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._failing

    async def run(self) -> None:
        """Send for ever."""
        self._bell, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while True:
            self._bell.clear()
            if not self._queue and self._next is None:
                await self._bell.wait()
            await self._round()

    async def settle(self, timeout_s: float) -> bool:
        """Wait until nothing waits, for as long as all goes well. True when nothing is left."""
        end = time.monotonic() + timeout_s
        while self.waiting and not self._failing and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return not self.waiting

    async def _round(self) -> None:
        """The oldest ones, one for each request: a request's records keep their order."""
        requests: set[str] = set()
        while len(self._taken) < AT_ONCE and (found := self._next or self._pop()) is not None:
            if found[0] in requests:
                self._next = found
                break
            self._next = None
            requests.add(found[0])
            self._taken.append(found)
        pause = RETRY_FIRST_S
        while self._taken:
            results = await asyncio.gather(*map(self._send, self._taken))
            self._taken = [one for one, done in zip(self._taken, results, strict=True) if not done]
            if self._taken:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_CAP_S)

    def _pop(self) -> tuple[str, bytes] | None:
        while self._queue:
            try:
                found = self._encode(self._queue.popleft())
            except IndexError:  # it has just been given up
                return None
            if found is not None:
                return found
        return None

    def _give_up_oldest(self) -> None:
        with self._lock, suppress(IndexError):
            self._queue.popleft()
            self.lost += 1

    async def _send(self, one: tuple[str, bytes]) -> bool:
        request_id, record = one
        try:
            await self._transport.send(request_id, record, 1, 1)
        except RecordRejected:
            with self._lock:
                self.lost += 1
        except Exception as error:
            self.failures += 1
            if not self._failing:
                self._failing = True
                log.warning("request contexts are not delivered, will go on trying: %s", error)
            return False
        else:
            self.sent += 1
            if self._failing:
                self._failing = False
                log.warning("request contexts are delivered again")
        return True
