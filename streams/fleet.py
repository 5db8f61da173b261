"""`kvtrail fleet`: the rules that compare several homes, over what the detectors observed.

One process folds everything, in the order of the whole fleet's log, so that it finds what an offline run over that log
finds. That order is known up to the moment at which the ends of all partitions were looked at, once the detectors have
acknowledged everything before them. Another one of the group stands by.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetOutOfRangeError

from ..judging.errors import SnapshotError
from ..judging.fleet import FleetJudge
from ..producers.kafka_client import connection
from ..schemas.config import Config
from ..schemas.errors import BadInput
from ..schemas.findings import Finding, encode_finding
from ..schemas.topics import FINDINGS, LIFECYCLE, OBSERVATIONS
from .clients import commit, member, reaching
from .clients import producer as make_producer
from .detector import GROUP as DETECTORS
from .fleet_report import FleetReport
from .fleet_state import FleetState
from .health import HealthServer
from .membership import FencingWatch, InstanceLock, Rebalance, leave_group
from .metrics import Registry
from .observing import unpack
from .process import Stopping, die, report
from .snapshots import SnapshotUnusable
from .sole import SoleAssignor
from .statetopic import StateTopic
from .topics import ensure_topics

GROUP = "kvtrail-fleet"
OWNER = "fleet/"
IDLE_S = 0.2
MOST_WAITING = 500_000
"""Observations that wait for their order to be known; beyond that the oldest are folded as they are."""

_log = logging.getLogger("kvtrail.streams.fleet")


class FleetFindings:
    """Findings to `kvtrail.findings`, keyed by subject: they belong to no home."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def publish(self, findings: list[Finding]) -> None:
        """Returns when all are acknowledged; the revisions of one finding keep their order."""
        sent = [await self._producer.send(FINDINGS, encode_finding(one), key=one.subject.encode()) for one in findings]
        await asyncio.gather(*sent)


class Barrier:
    """The ends of the lifecycle topic at a moment, and whether the detectors are beyond them."""

    def __init__(self, at_us: int, ends: dict[int, int], patience_s: float) -> None:
        self.at_us, self.ends = at_us, ends
        self.until: dict[TopicPartition, int] | None = None
        """Once they are: where the observations topic ended then."""
        self.given_up_at = time.monotonic() + patience_s

    def passed(self, committed: dict[int, int]) -> bool:
        """Whether all was acknowledged, or was waited for long enough."""
        behind = [partition for partition, end in self.ends.items() if committed.get(partition, 0) < end]
        if behind and time.monotonic() > self.given_up_at:
            _log.warning("a detector that does not get on is not waited for any longer", extra={"partitions": behind})
            return True
        return not behind


class FleetWorker:
    """One fleet worker, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instance = config.fleet.instance
        self._stopping = Stopping()
        self._assigned = asyncio.Event()
        self._mine = self._moved = False
        self._producer = make_producer(config.kafka, f"kvtrail-{self._instance}")
        self._findings = FleetFindings(self._producer)
        self._admin = AIOKafkaAdminClient(**connection(config.kafka))
        self._consumer = member(config.kafka, GROUP, self._instance, SoleAssignor)
        self._snapshots = StateTopic(config.kafka, self._producer, self._instance, OWNER)
        self._metrics = Registry()
        self._barrier: Barrier | None = None
        self._saved_at = time.monotonic()
        self._counts = {"records": 0, "observations": 0, "findings": 0, "refused": 0}
        self.state: FleetState | None = None
        """None while another worker has the partitions."""
        self.moved_at = time.monotonic()
        self._report = FleetReport(config, self._metrics, self)
        self._health = HealthServer(
            self._metrics, collect=self._report.collect, alive=self._report.alive, ready=self._report.ready
        )

    @property
    def was_assigned(self) -> bool:
        """Whether the group has ever answered."""
        return self._assigned.is_set()

    async def ends(self) -> dict[TopicPartition, int]:
        """The offset that the next record of each owned partition will get."""
        found: dict[TopicPartition, int] = await self._consumer.end_offsets([*self._consumer.assignment()])
        return found

    def counts(self) -> dict[str, int]:
        """What was done so far."""
        return dict(self._counts)

    async def run(self) -> None:
        """Until a signal asks for the stop. Raises before it is ready; afterwards it stops cleanly or dies."""
        self._stopping.install()
        async with reaching(self._config.kafka, self._consumer.stop, self._producer.stop, self._admin.close):
            await ensure_topics(self._config.kafka)
            await self._producer.start()
            await self._admin.start()
            self._consumer.subscribe([OBSERVATIONS], listener=Rebalance(self))
            await self._consumer.start()
            await self._health.start(self._config.fleet.metrics_host, self._config.fleet.metrics_port)
        FencingWatch(die).install()
        loop = asyncio.create_task(self._loop(), name="fleet")
        stop = asyncio.create_task(self._stopping.wait())
        reports = asyncio.create_task(report(self.counts, _log))
        await asyncio.wait({loop, stop}, return_when=asyncio.FIRST_COMPLETED)
        reports.cancel()
        await self._health.stop()
        await asyncio.wait({loop})
        failure = loop.exception()
        if failure is not None:
            die(f"the fleet worker failed: {failure}", failure)
        await self._consumer.stop()
        if not self._stopping.restart:
            await leave_group(self._config, GROUP, self._instance)
        await self._producer.stop()
        await self._admin.close()
        _log.info("stopped", extra=self.counts())

    async def _loop(self) -> None:
        while not self._stopping.requested:
            self.moved_at = time.monotonic()
            try:
                if self._moved or not self._mine:
                    self.state = None
                self._moved = False
                if self._mine and self.state is None:
                    await self._take_over(self._consumer.assignment())
                fetched = await self._consumer.getmany(timeout_ms=int(IDLE_S * 1000), max_records=500)
                if self.state is None or self._moved:  # moved: it may begin where another one has come to
                    continue
                for tp, records in fetched.items():
                    for record in records:
                        self._take(self.state, tp.partition, record.offset, record.value or b"")
                await self._advance(self.state)
                if time.monotonic() - self._saved_at > self._config.fleet.snapshot_s:
                    await self._save(self.state)
            except (IllegalStateError, KafkaError) as error:
                if isinstance(error, OffsetOutOfRangeError):
                    raise
                # Findings that were not acknowledged are made again from the last snapshot.
                _log.warning("begins again from what was saved: %r", error)
                self.state = None
                await asyncio.sleep(IDLE_S)
        if self.state is not None:
            await self._save(self.state)

    def _take(self, state: FleetState, partition: int, offset: int, value: bytes) -> None:
        if offset < state.next.get(partition, 0):
            return
        state.next[partition] = offset + 1
        self._counts["records"] += 1
        try:
            record = unpack(value)
        except BadInput as error:
            self._counts["refused"] += 1
            _log.warning("observations cannot be read: %s", error, extra={"partition": partition, "offset": offset})
            return
        state.take(partition, offset, record)

    async def _advance(self, state: FleetState) -> None:
        """Fold whatever's order is known by now."""
        lifecycle = [TopicPartition(LIFECYCLE, partition) for partition in range(self._config.kafka.partitions)]
        if self._barrier is None:
            # Looked at before the ends are: what comes after them is later than this.
            now_us = time.time_ns() // 1000 - round(self._config.fleet.clock_skew_s * 1e6)
            ends = await self._consumer.end_offsets(lifecycle)
            self._barrier = Barrier(
                now_us, {tp.partition: end for tp, end in ends.items()}, self._config.fleet.patience_s
            )  # fmt: skip
        barrier = self._barrier
        if barrier.until is None:
            found = await self._admin.list_consumer_group_offsets(DETECTORS, partitions=lifecycle)
            if barrier.passed({tp.partition: max(at.offset, 0) for tp, at in found.items()}):
                barrier.until = await self._consumer.end_offsets(
                    [TopicPartition(OBSERVATIONS, tp.partition) for tp in lifecycle]
                )
        until = barrier.until
        known = until is not None and all(state.next.get(tp.partition, 0) >= end for tp, end in until.items())
        findings = state.fold(barrier.at_us if known else 0, MOST_WAITING, closing=known)
        if findings:
            await self._findings.publish(findings)
            self._counts["findings"] += len(findings)
            for one in findings:
                self._metrics.add(
                    "kvtrail_detector_findings_total", cause=one.cause, severity=one.severity.value, status=one.status
                )
        self._counts["observations"] = state.observations
        if known:
            self._barrier = None

    async def _take_over(self, owned: set[TopicPartition]) -> None:
        settings = self._config.judging
        state = FleetState(FleetJudge(settings, self._config.deployment), self._config.fleet.request_s)
        try:
            snapshot = await self._snapshots.restore(0)
            if snapshot is not None:
                state.load(snapshot.state, settings, self._config.deployment)
        except (SnapshotUnusable, SnapshotError) as error:
            _log.error("the saved state cannot be used; what the log still holds is folded again: %s", error)
            state = FleetState(FleetJudge(settings, self._config.deployment), self._config.fleet.request_s)
        firsts = await self._consumer.beginning_offsets([*owned])
        ends = await self._consumer.end_offsets([*owned])
        for tp in owned:
            saved = state.next.get(tp.partition, 0)
            if saved < firsts[tp] and saved:
                _log.error("observations are gone from the log", extra={"partition": tp.partition})
            if not firsts[tp] <= saved <= ends[tp]:
                state.next[tp.partition] = firsts[tp]
            self._consumer.seek(tp, state.next.setdefault(tp.partition, firsts[tp]))
        self._barrier, self.state, self._saved_at = None, state, time.monotonic()
        _log.info("ready: fleet", extra={"observations": state.observations})

    async def _save(self, state: FleetState) -> None:
        """A snapshot, if anything is new and nobody else may have gone on. Every finding is acknowledged."""
        self._saved_at = time.monotonic()
        if self._moved or not state.changed:
            return
        dumped, offsets = state.dump(), {TopicPartition(OBSERVATIONS, each): at for each, at in state.resume.items()}
        try:
            await self._snapshots.write(0, await asyncio.to_thread(state.encode, dumped), 0, 0)
            await commit(self._consumer, offsets)
        except (CommitFailedError, IllegalStateError) as error:
            _log.info("not committed: %r", error)
        except KafkaError as error:
            _log.warning("no snapshot was written: %r", error)
        else:
            state.changed = False

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Another one may go on meanwhile: what is known is read again, once these are ours anew."""
        self._mine, self._moved = False, True

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The loop takes over; doing it here would cost the worker its membership."""
        self._mine, self._moved = bool([*partitions]), True
        if not self._mine:
            _log.info("ready: fleet, standing by")
        self._assigned.set()


def run_fleet(config: Config) -> None:
    """Run one fleet worker in this process until it is told to stop. Raises `KvtrailError` where it cannot start."""
    with InstanceLock(config, config.fleet.instance):
        asyncio.run(_main(config))


async def _main(config: Config) -> None:
    await FleetWorker(config).run()
