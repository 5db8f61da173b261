"""One partition of the sink: its batches, stored one after another as they come due, and nobody else's.

Each partition has a task of its own, so that a finding does not wait for ten thousand events of other partitions.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from .batches import Batch, Cut
from .clients import commit
from .records import Record
from .sink_report import Place
from .writer import Interrupted

IDLE_S = 0.5

_log = logging.getLogger("kvtrail.streams.sink")


class StoredPartition:
    """What waits of one partition, and the task that stores it. Made when the partition is taken over, given up when
    it is revoked or when a batch must be sent again."""

    def __init__(
        self,
        tp: TopicPartition,
        cut: Cut,
        place: Place,
        *,
        consumer: AIOKafkaConsumer,
        store: Callable[[TopicPartition, Batch], Awaitable[None]],
        busy: Callable[[], bool],
        interrupted: Callable[[], bool],
        retry_cap_s: float,
    ) -> None:
        self.cut = cut
        self.place = place
        self.since: float | None = None
        """When the batch in hand was begun, or last got on, by the monotonic clock."""
        self._tp = tp
        self._consumer = consumer
        self._store = store
        self._busy = busy
        self._interrupted = interrupted
        self._retry_cap_s = retry_cap_s
        self._grown = asyncio.Event()
        self._closing = self._lost = False

    def add(self, records: Iterable[Record], now: float, *, behind: bool) -> None:
        """Records as fetched; `behind`: the log holds more. Raises `TooManyRefused`."""
        self.cut.add(records, now)
        self.cut.behind = behind
        self._grown.set()

    def look(self) -> None:
        """The store may have become free."""
        self._grown.set()

    def close(self) -> None:
        """No further batch is begun; `run` ends with the one in hand."""
        self._closing = True
        self._grown.set()

    def lose(self) -> None:
        """The partition is somebody else's now: the batch in hand commits nothing."""
        self._lost = True
        self.close()

    async def run(self) -> None:
        """Until closed, or until a batch is left to its pending range. Raises what only a person can mend."""
        while not self._closing and not self._interrupted():
            now, self.cut.busy = time.monotonic(), self._busy()
            if not self.cut.due(now):
                await self._wait(self.cut.wait_s(now))
            elif not await self._flush():
                return

    async def _wait(self, due_in_s: float | None) -> None:
        self._grown.clear()
        try:
            async with asyncio.timeout(IDLE_S if due_in_s is None else min(due_in_s + 0.001, IDLE_S)):
                await self._grown.wait()
        except TimeoutError:
            pass

    async def _flush(self) -> bool:
        self.since = time.monotonic()
        try:
            self.place.note(await self.cut.flush(self._commit, lambda batch: self._store(self._tp, batch)))
        except (Interrupted, CommitFailedError, IllegalStateError) as reason:
            # Somebody else will send exactly this range again, or we will after taking the partition over.
            _log.info(
                "a batch is left to its pending range: %r", reason,
                extra={"topic": self._tp.topic, "partition": self._tp.partition, "offset": self.cut.position},
            )  # fmt: skip
            return False
        finally:
            self.since = None
        return True

    async def _commit(self, offset: int, metadata: str) -> None:
        pause = 0.1
        while True:
            if self._lost:
                raise Interrupted("the partition was revoked")
            try:
                await commit(self._consumer, {self._tp: (offset, metadata)})
            except (CommitFailedError, IllegalStateError):
                raise
            except KafkaError as error:
                if self._interrupted():
                    raise Interrupted from error
                self.since = time.monotonic()
                _log.warning("a commit is tried again: %r", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._retry_cap_s)
            else:
                return
