"""`kvtrail sink`: everything that happened and everything that was found, into ClickHouse, exactly once in effect.

One loop fetches; each partition has a task of its own, with at most one batch in flight:
cut -> write the range down (commit metadata) -> dead letters -> insert under the range's token -> commit.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IllegalStateError, KafkaError
from msgspec.structs import replace

from ..producers.kafka_client import connection
from ..schemas.config import Config
from ..schemas.findings import Finding, encode_finding
from ..schemas.topics import DEAD_LETTER, FACTS, FINDINGS, LIFECYCLE
from ..store.client import Client, connect_wait, only_lists
from ..store.migrate import migrate
from .batches import Batch
from .clients import member, reaching
from .clients import producer as make_producer
from .deadletters import DeadLetterTopic
from .health import HealthServer
from .membership import FencingWatch, InstanceLock, Rebalance, leave_group
from .metrics import Registry
from .process import Stopping, calm_collector, die, report
from .records import from_kafka
from .retention import CAUSE, RetentionWatch
from .sink_report import Place, SinkReport
from .storing import IDLE_S, StoredPartition
from .taking_over import taken_over
from .topics import ensure_topics
from .writer import Interrupted, Writer

GROUP = "kvtrail-sink"
_TOPICS = (LIFECYCLE, FINDINGS, FACTS, DEAD_LETTER)
_STORE_DEADLINE_S = 60.0
_REVOKE_DEADLINE_S = 20.0
_MORE_S = 0.02
"""How long a full partition is kept waiting for records of others."""
_FETCHED = 100
"""Records taken at once: decoding them holds the loop."""
_BULK = 4
"""Batches of events in the store's hands at once: findings always find a thread, and the store has room for them."""

_log = logging.getLogger("kvtrail.streams.sink")


class Sink:
    """One sink worker, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instance = config.sink.instance
        self.partitions: dict[TopicPartition, StoredPartition] = {}
        self.places: dict[TopicPartition, Place] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        """Of these partitions, and of those that are lost and have a batch in hand."""
        self._moving = False
        """Between a revocation and the assignment that follows it."""
        self._moves = 0
        self._looped_at = time.monotonic()
        self._bulk = asyncio.Semaphore(_BULK)
        self._in_hand = 0
        """Batches that the store has."""
        self._assigned = asyncio.Event()
        self._stopping = Stopping()
        self._producer = make_producer(config.kafka, f"kvtrail-{self._instance}-dead-letters")
        self._admin = AIOKafkaAdminClient(**connection(config.kafka))
        self._consumer = member(
            config.kafka, GROUP, config.sink.instance, rebalance_timeout_ms=int(_REVOKE_DEADLINE_S * 1000) + 10_000
        )
        self._client: Client | None = None
        self._writer: Writer | None = None
        self._metrics = Registry()
        self._retention = RetentionWatch(config.retention, config.deployment)
        self._report = SinkReport(config, self._metrics, self)
        self._health = HealthServer(
            self._metrics, collect=self._report.collect, alive=self._report.alive, ready=self._report.ready
        )

    @property
    def writer(self) -> Writer:
        """How batches are written; there from before anything is asked."""
        assert self._writer is not None
        return self._writer

    @property
    def moved_at(self) -> float:
        """When whatever has stood still for longest got on."""
        return min([self._looped_at, *(each.since for each in self.partitions.values() if each.since is not None)])

    @property
    def was_assigned(self) -> bool:
        """Whether the group has ever answered."""
        return self._assigned.is_set()

    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that each partition's next record will get."""
        found: dict[TopicPartition, int] = await self._consumer.end_offsets(partitions)
        return found

    async def run(self) -> None:
        """Until a signal asks for the stop. Raises before it is ready; afterwards it stops cleanly or dies."""
        self._stopping.install()
        calm_collector()
        only_lists()
        async with reaching(self._config.kafka, self._consumer.stop, self._producer.stop, self._admin.close):
            await ensure_topics(self._config.kafka)
            client = self._client = await asyncio.to_thread(connect_wait, self._config.clickhouse, _STORE_DEADLINE_S)
            await asyncio.to_thread(migrate, client, self._config)
            self._writer = Writer(
                client, DeadLetterTopic(self._producer), self._config.sink.retry_cap_s, interrupted=self._interrupted,
                metrics=self._metrics,
            )  # fmt: skip
            await self._producer.start()
            await self._admin.start()
            self._consumer.subscribe(_TOPICS, listener=Rebalance(self))
            await self._consumer.start()
            await self._publish(self._retention.outdated(await self.writer.open_findings(CAUSE)))
            await self._health.start(self._config.sink.metrics_host, self._config.sink.metrics_port)
        FencingWatch(die).install()
        loop = asyncio.create_task(self._loop(), name="sink")
        stop = asyncio.create_task(self._stopping.wait())
        ready = asyncio.create_task(self._announce())
        reports = asyncio.create_task(report(self._writer.counts, _log))
        await asyncio.wait({loop, stop}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        reports.cancel()
        if loop.done() and not self._stopping.requested:  # else the loop has seen the request first
            failure = loop.exception()
            die(f"the sink failed: {failure}", failure)
        await self._finish(loop)

    async def _announce(self) -> None:
        await self._assigned.wait()
        _log.info("ready: sink", extra={"partitions": sorted(f"{tp.topic}/{tp.partition}" for tp in self.owned())})

    async def _finish(self, loop: "asyncio.Task[None]") -> None:
        """The batch in hand is finished or left to its pending range; nothing is waited for that needs the store."""
        await self._health.stop()
        await asyncio.wait({loop})
        failure = loop.exception()
        if failure is not None:
            die(f"the sink failed while stopping: {failure}", failure)
        await self._consumer.stop()
        if not self._stopping.restart:
            await leave_group(self._config, GROUP, self._instance)
        await self._producer.stop()
        await self._admin.close()
        assert self._client is not None and self._writer is not None
        self._client.close()
        _log.info("stopped", extra=self._writer.counts())

    def owned(self) -> set[TopicPartition]:
        """The partitions that the group has given to this worker."""
        owned: set[TopicPartition] = self._consumer.assignment()
        return owned

    def _interrupted(self) -> bool:
        return self._stopping.requested

    async def _loop(self) -> None:
        while not self._stopping.requested:
            self._looped_at = time.monotonic()
            self._collect_ended()
            await self._take_over_new()
            await self._fetch()
        for partition in self.partitions.values():
            partition.close()
        await asyncio.gather(*self._tasks.values())

    def _collect_ended(self) -> None:
        """A partition whose task has ended is taken over again, or somebody else's. Raises what it failed of."""
        for tp, task in [*self._tasks.items()]:
            if task.done():
                task.result()
                del self._tasks[tp]
                self.partitions.pop(tp, None)

    async def _take_over_new(self) -> None:
        for tp in self.owned() - self._tasks.keys():
            if self._moving:
                return  # the client still names what it had
            try:
                await self._take_over(tp)
            except (IllegalStateError, Interrupted):
                continue  # revoked in the meantime, or stopping while the store is away
            except KafkaError as error:
                _log.warning("taking a partition over is tried again: %r", error)
                await asyncio.sleep(IDLE_S)
                return

    async def _fetch(self) -> None:
        """One chunk of records for the partitions whose next batch is not full: a log that is behind gives whole
        batches, and is not read ahead of a store that is slow."""
        wanted = [tp for tp, partition in self.partitions.items() if not partition.cut.full]
        if self.partitions and not wanted:
            await asyncio.sleep(_MORE_S)
            return
        # A partition that is full now may have room in a moment, and must not wait until others have records.
        timeout_s = IDLE_S if len(wanted) == len(self.partitions) else _MORE_S
        fetched = await self._consumer.getmany(*wanted, timeout_ms=int(1000 * timeout_s), max_records=_FETCHED)
        now = time.monotonic()
        for tp, records in fetched.items():
            partition = self.partitions.get(tp)
            if partition is not None and tp in self.owned():
                more = (self._consumer.highwater(tp) or 0) > records[-1].offset + 1
                partition.add([from_kafka(record) for record in records], now, behind=more)

    async def _take_over(self, tp: TopicPartition) -> None:
        moves = self._moves
        cut, start = await taken_over(tp, GROUP, self._config.sink, self._admin, self._consumer, self.writer)
        if self._moves != moves:
            return  # what was read may be out of date, even where the partition is ours again
        # Whatever was fetched before is fetched again: after a batch was given up, the consumer stands beyond it.
        self._consumer.seek(tp, start)
        partition = self.partitions[tp] = StoredPartition(
            tp, cut, self.places.setdefault(tp, Place()), consumer=self._consumer, store=self._store,
            busy=lambda: self._in_hand > 0, interrupted=self._interrupted, retry_cap_s=self._config.sink.retry_cap_s,
        )  # fmt: skip
        self._tasks[tp] = asyncio.create_task(partition.run(), name=f"{tp.topic}/{tp.partition}")

    async def _store(self, tp: TopicPartition, batch: Batch) -> None:
        self._in_hand += 1
        try:
            await self._written(tp, batch)
        finally:
            self._in_hand -= 1
            for partition in self.partitions.values():
                partition.look()

    async def _written(self, tp: TopicPartition, batch: Batch) -> None:
        if tp.topic != LIFECYCLE:
            await self.writer.write(tp, batch)
            return
        async with self._bulk:
            await self.writer.write(tp, batch)
        await self._publish(self._retention.look(batch.items))
        self._metrics.set("kvtrail_sink_longest_ttl_seconds", self._retention.longest_s)

    async def _publish(self, findings: Iterable[Finding]) -> None:
        """Findings of the sink's own, once in effect: those that are known keep the event that raised them first."""
        for finding in findings:
            if finding.status == "open":
                _log.error("retention: %s", finding.title, extra={"store": finding.store, "finding": finding.id})
                self._metrics.add("kvtrail_sink_retention_alarms_total")
                known = await self.writer.known(finding.id)
                if known is not None and known.status == "open":
                    continue
                if known is not None:
                    finding = replace(finding, revision=known.revision + 1)
            await self._producer.send_and_wait(FINDINGS, encode_finding(finding), key=finding.subject.encode())

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Everything in hand belongs to whoever owns the partitions next. Waits for batches in flight, with a
        deadline: a batch that outlives it finds its partition gone and commits nothing."""
        self._moving = True
        self._moves += 1
        for partition in self.partitions.values():
            partition.close()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_REVOKE_DEADLINE_S)
        for partition in self.partitions.values():
            partition.lose()
        self.partitions.clear()

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The loop takes the partitions over; doing it here would cost the worker its membership."""
        _log.info("assigned", extra={"partitions": sorted(f"{tp.topic}/{tp.partition}" for tp in partitions)})
        self._moving = False
        self._assigned.set()


def run_sink(config: Config) -> None:
    """Run one sink in this process until it is told to stop. Raises `KvtrailError` where it cannot start."""
    with InstanceLock(config, config.sink.instance):
        asyncio.run(_main(config))


async def _main(config: Config) -> None:
    await Sink(config).run()
