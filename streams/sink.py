"""`kvtrail sink`: everything that happened and everything that was found, into ClickHouse, exactly once in effect.

One loop fetches and cuts; each partition has at most one batch in flight:
cut -> write the range down (commit metadata) -> dead letters -> insert under the range's token -> commit.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from msgspec.structs import replace

from ..producers.kafka_client import connection
from ..schemas.config import Config
from ..schemas.findings import Finding, encode_finding
from ..schemas.topics import DEAD_LETTER, FACTS, FINDINGS, LIFECYCLE
from ..store.client import Client, connect_wait
from ..store.migrate import migrate
from .batches import Batch, Cut
from .clients import member, unreachable
from .clients import producer as make_producer
from .deadletters import DeadLetterTopic
from .health import HealthServer
from .intake import DeadLettersIntake, FactsIntake, FindingsIntake, Intake, LifecycleIntake
from .lanes import StoredLanes
from .membership import FencingWatch, InstanceLock, Rebalance, leave_group
from .metrics import Registry
from .pending import decode_pending
from .process import Stopping, calm_collector, die, report
from .records import from_kafka
from .refusals import WINDOW, RefusalLimit
from .retention import CAUSE, RetentionWatch
from .sink_report import Place, SinkReport
from .topics import ensure_topics
from .writer import Interrupted, Writer

GROUP = "kvtrail-sink"
_TOPICS = (LIFECYCLE, FINDINGS, FACTS, DEAD_LETTER)
_STORE_DEADLINE_S = 60.0
_REVOKE_DEADLINE_S = 20.0
_IDLE_S = 0.5
_MORE_S = 0.02
"""How long the next chunk of a log that is behind is waited for."""
_FETCHED = 500
"""Records taken at once: decoding them holds the loop."""

_log = logging.getLogger("kvtrail.streams.sink")


class Sink:
    """One sink worker, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instance = config.sink.instance
        self.cuts: dict[TopicPartition, Cut] = {}
        self.places: dict[TopicPartition, Place] = {}
        self.moved_at = time.monotonic()
        self._flushing = asyncio.Lock()
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
        await ensure_topics(self._config.kafka)
        client = self._client = await asyncio.to_thread(connect_wait, self._config.clickhouse, _STORE_DEADLINE_S)
        await asyncio.to_thread(migrate, client, self._config)
        self._writer = Writer(
            client, DeadLetterTopic(self._producer), self._config.sink.retry_cap_s, interrupted=self._interrupted,
            metrics=self._metrics,
        )  # fmt: skip
        try:
            await self._producer.start()
            await self._admin.start()
            self._consumer.subscribe(_TOPICS, listener=Rebalance(self))
            await self._consumer.start()
        except KafkaError as error:
            raise unreachable(self._config.kafka, error) from error
        await self._publish(self._retention.outdated(await self.writer.open_findings(CAUSE)))
        FencingWatch(die).install()
        await self._health.start(self._config.sink.metrics_host, self._config.sink.metrics_port)
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
            self.moved_at = time.monotonic()
            async with self._flushing:
                for tp in self.owned() - self.cuts.keys():
                    try:
                        await self._take_over(tp)
                    except (IllegalStateError, Interrupted):
                        continue  # revoked in the meantime, or stopping while the store is away
                    except KafkaError as error:
                        _log.warning("taking a partition over is tried again: %r", error)
                        await asyncio.sleep(_IDLE_S)
                        break
            await self._fetch()
            async with self._flushing:
                await asyncio.gather(*(self._flush(tp, cut) for tp, cut in [*self.cuts.items()]))

    async def _fetch(self) -> None:
        """Records into the cuts, until one of them has waited long enough, or nothing more comes at once, or all are
        full: a log that is behind gives whole batches, and is not read ahead of a store that is slow."""
        now = time.monotonic()
        waits = [wait for cut in self.cuts.values() if (wait := cut.wait_s(now)) is not None]
        timeout_s = min([*waits, _IDLE_S])
        while not self._stopping.requested:
            wanted = [tp for tp, cut in self.cuts.items() if not cut.full]
            if self.cuts and not wanted:
                return
            fetched = await self._consumer.getmany(
                *wanted, timeout_ms=int(1000 * timeout_s) + 1, max_records=_FETCHED
            )  # fmt: skip
            async with self._flushing:
                now = time.monotonic()
                for tp, records in fetched.items():
                    cut = self.cuts.get(tp)
                    if cut is not None and tp in self.owned():
                        cut.add([from_kafka(record) for record in records], now)
                        cut.behind = (self._consumer.highwater(tp) or 0) > cut.end
            if not fetched or not wanted or any(not cut.full and cut.due(now) for cut in self.cuts.values()):
                return
            timeout_s = _MORE_S

    async def _take_over(self, tp: TopicPartition) -> None:
        """What a partition needs before its first batch: its pending range, and what is stored of its lanes."""
        assert self._writer is not None
        found = (await self._admin.list_consumer_group_offsets(GROUP, partitions=[tp])).get(tp)
        committed = found.offset if found is not None and found.offset >= 0 else None
        pending = decode_pending(found.metadata) if found is not None and committed is not None else None
        first = (await self._consumer.beginning_offsets([tp]))[tp]
        if committed is not None and committed < first:
            _log.error(
                "records are gone from the log that were never stored",
                extra={"topic": tp.topic, "partition": tp.partition, "first": committed, "last": first - 1},
            )
        position = committed if committed is not None else first
        # Whatever was fetched before is fetched again: after a batch was given up, the consumer stands beyond it.
        self._consumer.seek(tp, max(position, first))
        self.cuts[tp] = Cut(
            intake=await self._intake(tp, position),
            position=position,
            pending=pending,
            batch_rows=self._config.sink.batch_rows,
            batch_wait_s=self._config.sink.batch_wait_s,
            limits=(await self._limit(tp, position, "decode"), await self._limit(tp, position, "insert")),
        )
        if pending is not None:
            _log.info("sending again", extra={"topic": tp.topic, "partition": tp.partition, "range": pending})

    async def _limit(self, tp: TopicPartition, position: int, stage: str) -> RefusalLimit:
        """The limit of refusals at a stage, with what was refused just before: a restart forgives nothing."""
        section, first = self._config.sink, max(0, position - WINDOW)
        limit = RefusalLimit(
            f"{tp.topic}/{tp.partition}", "sink", in_a_row=section.refused_in_a_row, share=section.refused_share
        )
        refused = await self.writer.refused_offsets(tp.topic, tp.partition, first, position, stage)
        limit.recall(offset in refused for offset in range(first, position))
        return limit

    async def _intake(self, tp: TopicPartition, position: int) -> Intake:
        assert self._writer is not None
        if tp.topic == FINDINGS:
            return FindingsIntake()
        if tp.topic == FACTS:
            return FactsIntake()
        if tp.topic == DEAD_LETTER:
            return DeadLettersIntake()
        return LifecycleIntake(StoredLanes(await self._writer.stored_lanes(tp.topic, tp.partition, position)))

    async def _flush(self, tp: TopicPartition, cut: Cut) -> None:
        while not self._stopping.requested and self.cuts.get(tp) is cut and cut.due(time.monotonic()):
            try:
                batch = await cut.flush(
                    lambda offset, metadata: self._commit(tp, cut, offset, metadata),
                    lambda batch: self._store(tp, batch),
                )
                self.places.setdefault(tp, Place()).note(batch)
            except (Interrupted, CommitFailedError, IllegalStateError) as reason:
                # Somebody else will send exactly this range again, or we will after taking the partition over.
                _log.info(
                    "a batch is left to its pending range: %r", reason,
                    extra={"topic": tp.topic, "partition": tp.partition, "offset": cut.position},
                )  # fmt: skip
                if self.cuts.get(tp) is cut:
                    del self.cuts[tp]
                return

    async def _store(self, tp: TopicPartition, batch: Batch) -> None:
        await self.writer.write(tp, batch)
        if tp.topic == LIFECYCLE:
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

    async def _commit(self, tp: TopicPartition, cut: Cut, offset: int, metadata: str) -> None:
        pause = 0.1
        while True:
            if self.cuts.get(tp) is not cut:
                raise Interrupted("the partition was revoked")
            try:
                await self._consumer.commit({tp: (offset, metadata)})
            except (CommitFailedError, IllegalStateError):
                raise
            except KafkaError as error:
                if self._stopping.requested:
                    raise Interrupted from error
                self.moved_at = time.monotonic()
                _log.warning("a commit is tried again: %r", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._config.sink.retry_cap_s)
            else:
                return

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Everything in hand belongs to whoever owns the partitions next. Waits for batches in flight, with a
        deadline: a batch that outlives it finds its cut gone and commits nothing."""
        try:
            async with asyncio.timeout(_REVOKE_DEADLINE_S), self._flushing:
                self.cuts.clear()
        except TimeoutError:
            self.cuts.clear()

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The loop takes the partitions over; doing it here would cost the worker its membership."""
        _log.info("assigned", extra={"partitions": sorted(f"{tp.topic}/{tp.partition}" for tp in partitions)})
        self._assigned.set()


def run_sink(config: Config) -> None:
    """Run one sink in this process until it is told to stop. Raises `KvtrailError` where it cannot start."""
    with InstanceLock(config, config.sink.instance):
        asyncio.run(_main(config))


async def _main(config: Config) -> None:
    await Sink(config).run()
