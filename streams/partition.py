"""One partition of the detector: restore, catch up, then judge what is delivered, publish, acknowledge.

Everything in here runs in one task a partition, so a slow restore holds up nobody else, and never in a rebalance
hook, where it would cost the worker its membership.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from ..schemas.findings import Finding
from ..schemas.reserved import is_own
from ..schemas.topics import LIFECYCLE
from .fold import Fold, JudgingFailed
from .reader import TopicReader
from .records import Record
from .restoring import load, restore
from .saving import Saving
from .services import Services
from .unjudged import judge_again

_log = logging.getLogger("kvtrail.streams.detector")
_QUEUED = 4
"""Deliveries that wait for one partition before Faust is held back."""
_HELD_BYTES = 1024 * 1024
"""Of envelopes, judged in one go: some 1 500 events, 20 to 30 ms. What comes of them is awaited together."""


def portions(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Records in their order, as many at a time as the loop may be held for."""
    portion: list[Record] = []
    size = 0
    for record in records:
        portion.append(record)
        size += len(record.value)
        if size >= _HELD_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


class Delivery(Struct, frozen=True):
    """Records of one partition as Faust delivered them, and how to acknowledge them, in order."""

    records: list[Record]
    acknowledge: Callable[[], Awaitable[None]]


class PartitionTask:
    """The state of one partition and the task that moves it forward. `run` ends only when stopped, or by raising."""

    def __init__(self, partition: int, services: Services) -> None:
        self.partition = partition
        self.findings = 0
        self.records = 0
        self.skipped = 0
        self.gap_records = 0
        self.recovered = False
        """The state holds everything that the group had committed when this task began."""
        self.busy = False
        self.moved_at = time.monotonic()
        """When this task last got anything done, by the monotonic clock; it matters while `busy`."""
        self._services = services
        self._queue: asyncio.Queue[Delivery | None] = asyncio.Queue(_QUEUED)
        self._fold: Fold | None = None
        self._stopping = False
        self._reader = self._new_reader()
        self.saving = Saving(
            partition,
            services.state,
            services.owns,
            services.config.detector.snapshot_s,
            turn=services.saving_turn,
            partitions=services.owned,
        )

    @property
    def next(self) -> int:
        """The offset the state reaches up to; 0 before the restore."""
        return self._fold.next if self._fold is not None else 0

    @property
    def fold(self) -> Fold | None:
        """The state; None before the restore."""
        return self._fold

    async def deliver(self, delivery: Delivery) -> None:
        """Hand records over; waits while the partition is behind. What comes after `stop` is never acknowledged."""
        if not self._stopping:
            await self._queue.put(delivery)

    def stop(self) -> None:
        """Ask `run` to return after the delivery in hand and a last snapshot. A long read from the log is broken
        off: the snapshot keeps what it had reached."""
        self._stopping = True
        with contextlib.suppress(asyncio.QueueFull):  # then it is awake anyway
            self._queue.put_nowait(None)

    async def run(self) -> None:
        """Restore, read what was acknowledged without being part of the state, then follow the deliveries."""
        try:
            await self._reader.start()
            # A restore is never called stuck: a large one, killed for being slow, would begin anew for ever.
            fold = self._fold = await self._restore()
            self._move(busy=True)
            self.recovered = await self._catch_up(fold)
            self._move(busy=False)
            while not self._stopping and (delivery := await self._next_delivery(fold)) is not None:
                self._move(busy=True)
                await self._handle(fold, delivery)
                self._move(busy=False)
            await self.saving.now(fold)
        finally:
            while not self._queue.empty():  # whoever waits to deliver may go
                self._queue.get_nowait()
            await self._reader.stop()

    def _new_reader(self) -> TopicReader:
        config = self._services.config
        return TopicReader(config.kafka, LIFECYCLE, f"kvtrail-{config.detector.instance}-{self.partition}")

    def _move(self, *, busy: bool) -> None:
        self.busy = busy
        self.moved_at = time.monotonic()

    async def _restore(self) -> Fold:
        fold, saved = await restore(self.partition, self._services, self._reader)
        if saved:
            self.saving.reached = fold.next
        return fold

    async def _catch_up(self, fold: Fold) -> bool:
        """What the group has committed is not delivered again, whether or not it is part of the restored state.
        False where a stop broke it off."""
        committed = await self._services.committed(self.partition)
        return committed is None or await self._read_from_log(fold, committed)

    async def _next_delivery(self, fold: Fold) -> Delivery | None:
        """The next delivery; saves the state when it is due, deliveries or not."""
        while True:
            try:
                return await asyncio.wait_for(self._queue.get(), max(self.saving.wait_s(), 0.001))
            except TimeoutError:
                await self.saving.begin(fold)

    async def _handle(self, fold: Fold, delivery: Delivery) -> None:
        fresh = fold.unseen(delivery.records)
        self.skipped += len(delivery.records) - len(fresh)
        gap = fold.missing(fresh)
        if gap is not None:
            _log.info("reading what was not delivered", extra={"partition": self.partition, "range": gap})
            if not await self._read_from_log(fold, gap[1]):
                return
        elif fresh:
            await self._judge(fold, fresh)
        await delivery.acknowledge()

    async def _read_from_log(self, fold: Fold, end: int) -> bool:
        """Judge everything the log holds up to `end`; False where a stop broke it off."""
        async for records in self._reader.read(self.partition, fold.next, end):
            self.gap_records += len(records)
            await self._judge(fold, records)
            if self._stopping:
                return False
        fold.close(end)
        return True

    async def _judge(self, fold: Fold, records: list[Record]) -> None:
        """Facts first, then the records, then the findings; nothing is acknowledged before they are."""
        started, metrics = time.monotonic(), self._services.metrics
        await self._services.facts.reach(max(record.append_us for record in records))
        for portion in portions(records):
            await self._judge_portion(fold, portion)
            await asyncio.sleep(0)  # others have findings to publish, a membership to keep
        self.records += len(records)
        self._move(busy=self.busy)
        metrics.observe("kvtrail_detector_batch_seconds", self.moved_at - started)
        self.saving.judged(self.moved_at - started)
        if self.saving.wait_s() <= 0:
            await self.saving.begin(fold)

    async def _judge_portion(self, fold: Fold, left: list[Record]) -> None:
        while left:
            try:
                findings = fold.apply(left)
            except JudgingFailed as failure:
                await self._publish(failure.findings)
                await self._once_more(fold, failure)
                left = [record for record in left if record.offset >= fold.next]
            else:
                await self._publish(findings)
                return

    async def _publish(self, findings: list[Finding]) -> None:
        """Returns when all are acknowledged, and what was observed beside them."""
        sent = [self._services.outlet.publish(findings)] if findings else []
        if self._fold is not None and self._fold.observed:
            observed, self._fold.observed = self._fold.observed, []
            sent.append(self._services.observations.publish(self.partition, observed))
        await asyncio.gather(*sent)
        self.findings += len(findings)
        for one in findings:
            if is_own(one):
                continue
            self._services.metrics.add(
                "kvtrail_detector_findings_total", cause=one.cause, severity=one.severity.value, status=one.status
            )

    async def _once_more(self, fold: Fold, failure: JudgingFailed) -> None:
        """Judge the record at which the fold failed on a state made anew, or leave it out."""
        outcome = await judge_again(fold, failure, self._rebuild, partial(load, self._services))
        await self._publish(outcome.findings)
        if outcome.letter is None:
            return
        await self._services.letters.publish([outcome.letter])
        self._services.metrics.add("kvtrail_detector_unjudged_records_total")
        _log.error(
            "a record was left out: it cannot be judged",
            extra={"partition": self.partition, "offset": failure.record.offset},
        )
        # Saved at once: made anew after the next such record, the state need not meet this one.
        await self.saving.now(fold)

    async def _rebuild(self, end: int) -> Fold:
        """A fold of the log up to `end`, from what was saved. Whoever reads a range meanwhile goes on afterwards."""
        reading, self._reader = self._reader, self._new_reader()
        try:
            await self._reader.start()
            fold = await self._restore()
            async for records in self._reader.read(self.partition, fold.next, end):
                await self._publish(fold.apply(records))
            fold.close(end)
            return fold
        finally:
            await self._reader.stop()
            self._reader = reading
