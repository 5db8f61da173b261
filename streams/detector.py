"""`kvtrail detect`: a thin Faust adapter around the fold.

Faust owns membership, delivery and acknowledgement, and nothing else: no tables, no codec, no exactly-once, no web
server. The adapter turns deliveries into records by partition; what happens to them is in `partition.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

import faust
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from ..producers.kafka_client import connection
from ..schemas.config import Config
from ..schemas.errors import KvtrailError
from ..schemas.findings import Finding, encode_finding
from ..schemas.topics import FINDINGS, LIFECYCLE
from .clients import producer as make_producer
from .clients import reaching
from .credentials import credentials
from .deadletters import DeadLetterTopic
from .detector_report import DetectorReport
from .factfeed import FactFeed
from .fetching import PromptConsumer
from .health import HealthServer
from .membership import FencingWatch, InstanceLock, leave_group, lost_membership, scratch
from .metrics import Registry
from .observing import ObservationsTopic
from .partition import Delivery, PartitionTask
from .process import Stopping, calm_collector, die, report
from .records import Record
from .services import Services
from .statetopic import StateTopic
from .topics import ensure_topics

GROUP = "kvtrail-detect"
_WATCH_S = 1.0
_YOUNG = 2_000
"""What a judge makes stays for as long as its entry or ends within the record."""

_log = logging.getLogger("kvtrail.streams.detector")


def build_app(config: Config) -> faust.App:
    """The Faust app with the settings that the measurements behind docs/decisions/0040 arrived at."""
    session_s = config.detector.session_timeout_s
    app = faust.App(
        GROUP,
        broker=[f"kafka://{address.strip()}" for address in config.kafka.bootstrap.split(",")],
        broker_credentials=credentials(config.kafka),
        broker_client_id=f"kvtrail-{config.detector.instance}",
        consumer_group_instance_id=config.detector.instance,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=4 * 1024 * 1024,
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 3,
        broker_rebalance_timeout=max(2 * session_s, 12.0),
        broker_request_timeout=max(30.0, 3 * session_s),
        broker_commit_interval=1.0,
        # At most half of the stream's buffer, else Faust runs at a sixth of its speed.
        broker_max_poll_records=128,
        stream_buffer_maxsize=256,
        stream_wait_empty=False,
        processing_guarantee="at_least_once",
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        producer_threaded=False,
        web_enabled=False,
        web_host="127.0.0.1",
        worker_redirect_stdouts=False,
        autodiscover=False,
        # Faust makes this directory even without tables; nothing of ours is kept in it.
        datadir=str(scratch(config) / config.detector.instance),
    )
    transport: Any = app.transport
    transport.Consumer = PromptConsumer
    return app


class FindingsTopic:
    """Findings to `kvtrail.findings`, keyed by home, awaited once a batch."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def publish(self, findings: list[Finding]) -> None:
        """Returns when every one of them is acknowledged; order within a home is kept."""
        sent = [
            await self._producer.send(FINDINGS, encode_finding(finding), key=finding.home.encode())
            for finding in findings
        ]
        await asyncio.gather(*sent)


class Detector:
    """One detector worker, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instance = config.detector.instance
        self._tasks: dict[int, tuple[PartitionTask, asyncio.Task[None]]] = {}
        self._owned: set[int] = set()
        self._assigned = asyncio.Event()
        self._stopping = Stopping()
        self._producer = make_producer(config.kafka, f"kvtrail-{self._instance}-findings")
        # On a connection of its own: behind megabytes of a state each finding would wait for seconds.
        self._saver = make_producer(config.kafka, f"kvtrail-{self._instance}-state")
        self._facts = FactFeed(config.kafka, self._producer, self._instance)
        self._admin = AIOKafkaAdminClient(**connection(config.kafka))
        metrics = Registry()
        self._report = DetectorReport(
            config, metrics, self._facts, tasks=lambda: [task for task, _ in self._tasks.values()],
            owned=lambda: self._owned if self._assigned.is_set() else None,
        )  # fmt: skip
        self._health = HealthServer(
            metrics, collect=self._report.collect, alive=self._report.alive, ready=self._report.ready
        )
        self._services = Services(
            config=config,
            facts=self._facts,
            state=StateTopic(config.kafka, self._saver, self._instance),
            outlet=FindingsTopic(self._producer),
            observations=ObservationsTopic(self._producer),
            letters=DeadLetterTopic(self._producer),
            saving_turn=asyncio.Lock(),
            committed=self._committed,
            owns=self._owned.__contains__,
            owned=self._owned.__len__,
            metrics=metrics,
        )

    async def run(self) -> None:
        """Until a signal asks for the stop. Raises before it is ready; afterwards it stops cleanly or dies."""
        self._stopping.install()
        calm_collector(_YOUNG)
        ends = (self._facts.stop, self._report.stop, self._producer.stop, self._saver.stop, self._admin.close)
        async with reaching(self._config.kafka, *ends):
            await ensure_topics(self._config.kafka)
            await self._producer.start()
            await self._saver.start()
            await self._admin.start()
            await self._facts.start()
            if self._config.detector.metrics_port is not None:
                await self._report.start()
            await self._health.start(self._config.detector.metrics_host, self._config.detector.metrics_port)
        assert self._facts.task is not None
        self._facts.task.add_done_callback(_died)
        FencingWatch(die).install()
        app = build_app(self._config)
        self._attach(app)
        await app.start()
        crash = asyncio.create_task(_failure(app))
        await self._wait(self._assigned.wait(), crash)
        if not self._stopping.requested:
            _log.info("ready: detector", extra={"partitions": sorted(self._owned), "facts": self._facts.facts})
        reports = asyncio.create_task(report(self.counts, _log))
        await self._wait(self._stopping.wait(), crash)
        reports.cancel()
        await self._stop(app)

    async def _wait(self, event: Awaitable[Any], crash: "asyncio.Task[BaseException]") -> None:
        waiter = asyncio.ensure_future(event)
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({waiter, stop, crash}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        stop.cancel()
        if crash.done():
            die("Faust has crashed or lost its membership", crash.result())

    async def _stop(self, app: faust.App) -> None:
        """Take in nothing more, finish what is in hand, save, commit, leave."""
        await self._health.stop()
        tasks = [*self._tasks.values()]
        for task, _ in tasks:
            task.stop()
        await asyncio.gather(*(running for _, running in tasks))
        await app.stop()
        if not self._stopping.restart:
            await leave_group(self._config, GROUP, self._instance)
        await self._facts.stop()
        await self._report.stop()
        await self._producer.stop()
        await self._saver.stop()
        await self._admin.close()
        _log.info("stopped", extra=self.counts())

    def counts(self) -> dict[str, int]:
        """What this worker has done since its start."""
        tasks = [task for task, _ in self._tasks.values()]
        return {
            "records": sum(task.records for task in tasks),
            "skipped": sum(task.skipped for task in tasks),
            "gap_records": sum(task.gap_records for task in tasks),
            "findings": sum(task.findings for task in tasks),
            "facts": self._facts.facts,
            "ticks": self._facts.ticks,
        }

    def _attach(self, app: faust.App) -> None:
        topic = app.topic(LIFECYCLE, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
        batch_records, wait_s = self._config.detector.batch_records, self._config.detector.batch_wait_s

        async def detect(stream: Any) -> None:
            try:
                # Not `take`: it acknowledges a batch although its body raised.
                async for events in stream.noack_take(batch_records, within=wait_s):
                    await self._deliver(stream, events)
            except Exception as error:
                die("a delivery failed", error)

        app.agent(topic, concurrency=1, name="kvtrail.detect")(detect)
        assigned: Any = self._on_assigned
        revoked: Any = self._on_revoked
        app.on_partitions_assigned.connect(assigned)
        app.on_partitions_revoked.connect(revoked)

    async def _deliver(self, stream: Any, events: Sequence[Any]) -> None:
        by_partition: dict[int, list[Any]] = {}
        for event in events:
            by_partition.setdefault(event.message.partition, []).append(event)
        for partition, group in by_partition.items():
            records = [_record(event.message) for event in group]
            await self._task(partition).deliver(Delivery(records, _acknowledger(stream, group)))

    def _task(self, partition: int) -> PartitionTask:
        if partition not in self._tasks:
            task = PartitionTask(partition, self._services)
            running = asyncio.create_task(task.run(), name=f"partition-{partition}")
            running.add_done_callback(_died)
            self._tasks[partition] = (task, running)
        return self._tasks[partition][0]

    async def _on_assigned(self, _app: Any, assigned: Iterable[Any], **_: Any) -> None:
        """Only starts tasks: a restore awaited in here would cost the worker its membership."""
        self._owned.clear()
        self._owned.update(tp.partition for tp in assigned if tp.topic == LIFECYCLE)
        for partition in self._owned:
            self._task(partition)
        _log.info("assigned", extra={"partitions": sorted(self._owned)})
        self._assigned.set()

    async def _on_revoked(self, _app: Any, *_: Any, **__: Any) -> None:
        """State survives: if the partition comes back, only the records since are read again."""
        self._owned.clear()

    async def _committed(self, partition: int) -> int | None:
        tp = TopicPartition(LIFECYCLE, partition)
        found = (await self._admin.list_consumer_group_offsets(GROUP, partitions=[tp])).get(tp)
        return found.offset if found is not None and found.offset >= 0 else None


def _record(message: Any) -> Record:
    return Record(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        append_us=round(message.timestamp * 1000) * 1000,
        value=message.value or b"",
    )


def _acknowledger(stream: Any, events: Sequence[Any]) -> Any:
    async def acknowledge() -> None:
        for event in events:
            await stream.ack(event)

    return acknowledge


def _died(task: "asyncio.Task[None]") -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        die(str(error) if isinstance(error, KvtrailError) else f"{task.get_name()} failed", error)


async def _failure(app: Any) -> BaseException:
    """Waits until Faust crashes, or until it only looks alive."""
    while True:
        try:
            await asyncio.wait_for(app._crashed.wait(), _WATCH_S)
        except TimeoutError:
            consumer = app.consumer._thread._consumer
            lost = lost_membership(consumer) if consumer is not None else None
            if lost is not None:
                return lost
        else:
            return app.crash_reason or RuntimeError("unknown reason")


def run_detector(config: Config) -> None:
    """Run one detector worker in this process until it is told to stop. Raises `KvtrailError` where it cannot start."""
    with InstanceLock(config, config.detector.instance):
        asyncio.run(_main(config))


async def _main(config: Config) -> None:
    await Detector(config).run()
