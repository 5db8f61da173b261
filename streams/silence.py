"""Which part is silent, as far as the broker can tell: whoever sends the heartbeat, or the detector of a partition."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from ..producers.kafka_client import connection
from ..schemas.config import Config, KafkaConfig
from ..schemas.homes import node_home
from ..schemas.reserved import owners
from ..schemas.topics import LIFECYCLE
from .clients import reader

DEADLINE_S = 15.0
_READ_S = 8.0
DETECTORS = "kvtrail-detect"


async def diagnose(config: Config, silent: Sequence[int]) -> str:
    """One sentence for whoever is paged; answers within `DEADLINE_S`, whatever the broker does."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await _diagnose(config, silent)
    except (KafkaError, OSError, TimeoutError) as error:
        return f"the broker does not answer ({type(error).__name__})"


async def _diagnose(config: Config, silent: Sequence[int]) -> str:
    since_us = time.time_ns() // 1000 - round(config.heartbeat.deadline_s * 1e6)
    sent = await beating(config.kafka, config.notify.instance, since_us)
    unsent = [partition for partition in silent if partition not in sent]
    if unsent:
        return (
            f"no heartbeat reaches {LIFECYCLE} ({_partitions(unsent)}): is `kvtrail heartbeat` running, "
            "and does publishing work?"
        )
    members, behind = await _detectors(config.kafka, silent)
    if not members:
        return f"no detector is in its group ({_partitions(silent)}): is `kvtrail detect` running?"
    late = ", ".join(f"partition {partition}: {count} records" for partition, count in behind.items() if count)
    if late:
        return f"the detectors do not get on: {late} behind"
    return f"heartbeats are read and nothing is found ({_partitions(silent)}): look at the detectors' logs"


async def beating(kafka: KafkaConfig, client: str, since_us: int, read_s: float = _READ_S) -> set[int]:
    """The partitions of the lifecycle topic into which a heartbeat was appended since then. On a topic so busy that
    it cannot be read in `read_s`, those that were found in time. Raises `KafkaError`."""
    homes = {node_home(owner).encode(): partition for partition, owner in enumerate(owners(kafka.partitions))}
    consumer = reader(kafka, f"kvtrail-{client}-silence")
    found: set[int] = set()
    try:
        await consumer.start()
        tps = [TopicPartition(LIFECYCLE, partition) for partition in homes.values()]
        starts = await consumer.offsets_for_times(dict.fromkeys(tps, max(since_us // 1000, 0)))
        ends = await consumer.end_offsets(tps)
        live = [tp for tp in tps if starts.get(tp) is not None and starts[tp].offset < ends[tp]]
        consumer.assign(live)
        for tp in live:
            consumer.seek(tp, starts[tp].offset)
        until = time.monotonic() + read_s
        while live and time.monotonic() < until:
            for records in (await consumer.getmany(*live, timeout_ms=200)).values():
                found.update(homes[record.key] for record in records if record.key in homes)
            live = [tp for tp in live if tp.partition not in found and await consumer.position(tp) < ends[tp]]
    finally:
        await consumer.stop()
    return found


async def _detectors(kafka: KafkaConfig, silent: Sequence[int]) -> tuple[int, dict[int, int]]:
    """How many detectors are in their group, and how many records each partition is behind."""
    admin = AIOKafkaAdminClient(**connection(kafka), request_timeout_ms=8000)
    consumer = reader(kafka, "kvtrail-silence-ends")
    try:
        await admin.start()
        await consumer.start()
        answers: Any = await admin.describe_consumer_groups([DETECTORS])
        members = sum(len(group[5]) for answer in answers for group in answer.groups)
        tps = [TopicPartition(LIFECYCLE, partition) for partition in silent]
        done = await admin.list_consumer_group_offsets(DETECTORS, partitions=tps)
        ends = await consumer.end_offsets(tps)
    finally:
        await consumer.stop()
        await admin.close()
    return members, {tp.partition: max(ends[tp] - max(_offset(done.get(tp)), 0), 0) for tp in tps}


def _offset(found: Any) -> int:
    return found.offset if found is not None else 0


def _partitions(silent: Sequence[int]) -> str:
    return f"partition{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
