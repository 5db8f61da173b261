"""Workers as processes, and both ends of the pipeline: what goes into Kafka, what must come out."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from kvtrail.cli.local.handover import child_environ
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.schemas.config import ClickHouseConfig, Config, DetectorConfig, KafkaConfig, LocalConfig, SinkConfig
from kvtrail.schemas.facts import Fact, Tick, decode_fact, encode_fact
from kvtrail.schemas.findings import Finding, decode_finding, encode_finding
from kvtrail.schemas.topics import FACTS, FINDINGS, LIFECYCLE
from kvtrail.simulator.delivery import Sent
from kvtrail.streams.fold import Fold
from kvtrail.streams.records import Record, from_kafka

DEADLINE_S = 90.0
_T = TypeVar("_T")


def config_of(kafka: KafkaConfig, database: ClickHouseConfig | None, directory: Path) -> Config:
    """A deployment whose workers save often, so that crashes meet snapshots too."""
    return Config(
        deployment="test",
        kafka=kafka,
        clickhouse=database or ClickHouseConfig(),
        detector=DetectorConfig(snapshot_s=0.5, batch_wait_s=0.02),
        sink=SinkConfig(batch_wait_s=0.05, batch_rows=500),
        local=LocalConfig(directory=directory),
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed test run leaves no worker behind


class Worker:
    """`kvtrail detect` or `kvtrail sink` as a process that can be killed and started again."""

    def __init__(self, command: str, config: Config, directory: Path, preamble: str = "") -> None:
        self.command = command
        self.log = directory / f"{command}-{config.detector.instance}.log"
        self._config = config
        self._preamble = preamble
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    def __enter__(self) -> "Worker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self, *, wait: bool = True) -> None:
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        main = f"{self._preamble}\nfrom kvtrail.cli.main import main\nmain(['{self.command}'])"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", main], env=child_environ(self._config, os.environ), stdout=log, stderr=log,
                preexec_fn=_die_with_parent,
            )  # fmt: skip
        if wait:
            self.wait_for("ready: ")

    def lines(self) -> list[dict[str, Any]]:
        """What this life of the worker has logged so far."""
        with self.log.open() as log:
            log.seek(self._read_from)
            return [json.loads(line) for line in log if line.startswith("{") and line.endswith("}\n")]

    def wait_for(self, text: str) -> dict[str, Any]:
        """The first line whose message holds `text`; fails at once where the process ends without it."""

        def found() -> dict[str, Any] | None:
            ended = self._process is None or self._process.poll() is not None
            line = next((line for line in self.lines() if text in line["message"]), None)
            if line is None and ended:
                raise AssertionError(f"{self.command} ended without {text!r}: {self.log.read_text()[-3000:]}")
            return line

        return until(found, f"{self.command} to say {text!r}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask for a stop; the exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)


def answer_of(worker: Worker, path: str) -> tuple[int, str]:
    """What a worker's own port answers."""
    port = worker.wait_for("metrics: listening")["port"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples_of(worker: Worker) -> dict[str, float]:
    """Every sample that a worker tells, by name with labels."""
    status, text = answer_of(worker, "/metrics")
    assert status == 200
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {key: float(value) for key, _, value in lines}


def sum_of(samples: dict[str, float], name: str, topic: str) -> float:
    """The sum of a metric over the partitions of a topic."""
    return sum(value for key, value in samples.items() if key.startswith(f"{name}{{") and topic in key)


def until(condition: Callable[[], _T | None], what: str, deadline_s: float = DEADLINE_S) -> _T:
    """The first true answer of `condition`."""
    end = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s in vain for {what}")
        time.sleep(0.1)


def publish(kafka: KafkaConfig, records: Iterable[tuple[str, bytes | None]], topic: str = LIFECYCLE) -> None:
    """Records by home, acknowledged in order."""

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", enable_idempotence=True)
        await producer.start()
        try:
            await asyncio.gather(*[await producer.send(topic, value, key=home.encode()) for home, value in records])
        finally:
            await producer.stop()

    asyncio.run(run())


def publish_sent(kafka: KafkaConfig, items: Iterable[Sent]) -> None:
    """A simulated fleet's log, in its order: a fact is acknowledged before what follows it is sent."""
    waiting: list[tuple[str, bytes | None]] = []
    for item in items:
        if item.fact is None:
            waiting.append((item.home, item.record))
            continue
        publish(kafka, waiting)
        waiting = []
        publish_facts(kafka, [item.fact])
    publish(kafka, waiting)


def publish_facts(kafka: KafkaConfig, facts: Iterable[Fact]) -> None:
    """Facts, acknowledged."""
    publish(kafka, ((fact.id, encode_fact(fact)) for fact in facts), FACTS)


def read_topic(kafka: KafkaConfig, topic: str) -> list[Record]:
    """The whole topic, by partition and offset."""

    async def run() -> list[Record]:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            tps = [TopicPartition(topic, p) for p in sorted(await _partitions(consumer, topic))]
            consumer.assign(tps)
            starts, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
            for tp in tps:
                consumer.seek(tp, starts[tp])
            found: list[Record] = []
            while any([starts[tp] < ends[tp] and await consumer.position(tp) < ends[tp] for tp in tps]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += map(from_kafka, records)
            return sorted(found, key=lambda record: (record.partition, record.offset))
        finally:
            await consumer.stop()

    return asyncio.run(run())


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    consumer._client.add_topic(topic)
    await consumer._client.force_metadata_update()
    found: set[int] = consumer.partitions_for_topic(topic)
    return found


def end_offsets(kafka: KafkaConfig, topic: str) -> dict[int, int]:
    """The next offset of each partition that ever held something."""

    async def run() -> dict[int, int]:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            tps = [TopicPartition(topic, partition) for partition in await _partitions(consumer, topic)]
            return {tp.partition: end for tp, end in (await consumer.end_offsets(tps)).items() if end}
        finally:
            await consumer.stop()

    return asyncio.run(run())


def committed(kafka: KafkaConfig, group: str, topic: str) -> dict[int, tuple[int, str]]:
    """The group's commits on a topic: offset and metadata by partition."""

    async def run() -> dict[int, tuple[int, str]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await admin.start()
        try:
            found = await admin.list_consumer_group_offsets(group)
        finally:
            await admin.close()
        return {tp.partition: (at.offset, at.metadata) for tp, at in found.items() if tp.topic == topic}

    return asyncio.run(run())


def commit(kafka: KafkaConfig, group: str, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
    """Commit for a group nobody is in."""

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.bootstrap, group_id=group, enable_auto_commit=False
        )  # fmt: skip
        await consumer.start()
        try:
            consumer.assign([*offsets])
            await consumer.commit(offsets)
        finally:
            await consumer.stop()

    asyncio.run(run())


async def truncate(kafka: KafkaConfig, before: dict[TopicPartition, int]) -> None:
    """Retention, in an instant."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({tp: RecordsToDelete(before_offset=offset) for tp, offset in before.items()})
    finally:
        await admin.close()


def final(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The newest revision of each finding; where partitions gave one number to several, as the store chooses."""
    return {finding.id: finding for finding in sorted(findings, key=_rank)}


def _rank(finding: Finding) -> tuple[int, int, list[int]]:
    return finding.revision, -finding.event_time_us, [-byte for byte in encode_finding(finding)]


def published_findings(kafka: KafkaConfig) -> list[Finding]:
    """Everything on the findings topic."""
    return [decode_finding(record.value) for record in read_topic(kafka, FINDINGS)]


def undisturbed(config: Config) -> dict[str, Finding]:
    """What one offline run over the very same log finds: the measure of every disturbed run."""
    book = FactBook()
    for record in read_topic(config.kafka, FACTS):
        fact = decode_fact(record.value)
        if not isinstance(fact.body, Tick):
            book.add(fact, record.append_us)
    by_partition: dict[int, list[Record]] = {}
    for record in read_topic(config.kafka, LIFECYCLE):
        by_partition.setdefault(record.partition, []).append(record)
    found: list[Finding] = []
    for records in by_partition.values():
        found += Fold(Judge(config.judging, config.deployment, book), 0).apply(records)
    return final(found)


def all_judged(config: Config) -> Callable[[], bool]:
    """Whether every record of the lifecycle topic has been acknowledged by the detectors."""
    ends = end_offsets(config.kafka, LIFECYCLE)

    def judged() -> bool:
        done = committed(config.kafka, "kvtrail-detect", LIFECYCLE)
        return all(done.get(partition, (0, ""))[0] >= end for partition, end in ends.items())

    return judged


def all_stored(config: Config, *topics: str) -> Callable[[], bool]:
    """Whether the sink has committed every record these topics hold now, with nothing pending."""

    def stored() -> bool:
        for topic in topics:
            done = committed(config.kafka, "kvtrail-sink", topic)
            for partition, end in end_offsets(config.kafka, topic).items():
                if done.get(partition, (0, "")) != (end, ""):
                    return False
        return True

    return stored
