"""Kafka clients with the settings the stream tier was measured with. None of them retries in a way that reorders."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError, KafkaTimeoutError

from ..producers.kafka_client import connection
from ..schemas.config import KafkaConfig
from ..schemas.errors import BrokerError

LARGEST_RECORD = 1024 * 1024
"""Bytes; the broker's own default limit. Envelopes are a quarter of it, snapshot blobs half."""
FETCH_WAIT_MS = 100
"""How long a broker may keep the fetch of a worker whose partitions have nothing. Meanwhile it gets no other, not even
for a partition whose last records the worker has just used up."""
_CLOSE_S = 2.0
_COMMIT_S = 60.0
"""Longer than the client's requests take."""


def producer(kafka: KafkaConfig, client: str) -> AIOKafkaProducer:
    """An idempotent producer; the default partitioner is murmur2, as for every home."""
    return AIOKafkaProducer(
        **connection(kafka),
        client_id=client,
        acks="all",
        enable_idempotence=True,
        compression_type=None if kafka.compression == "none" else kafka.compression,
        max_batch_size=256 * 1024,
        max_request_size=LARGEST_RECORD,
        request_timeout_ms=30_000,
    )


def reader(kafka: KafkaConfig, client: str) -> AIOKafkaConsumer:
    """A consumer outside any group, for `assign` and explicit `seek`. It never jumps by itself: an offset that is
    gone raises, since `latest` would skip silently."""
    return AIOKafkaConsumer(
        **connection(kafka),
        client_id=client,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=4 * LARGEST_RECORD,
        fetch_max_wait_ms=500,
    )


def member(
    kafka: KafkaConfig, group: str, instance: str, assignor: Any = RoundRobinPartitionAssignor, **settings: Any
) -> AIOKafkaConsumer:
    """A static member of a group, with aiokafka's own `settings` beside these. It commits nothing by itself, and is
    never taken for dead because its loop is long at work: `alive` tells that."""
    return AIOKafkaConsumer(
        **connection(kafka),
        client_id=f"kvtrail-{instance}",
        group_id=group,
        group_instance_id=instance,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[assignor],
        session_timeout_ms=10_000,
        heartbeat_interval_ms=3_000,
        max_poll_interval_ms=24 * 3600 * 1000,
        max_partition_fetch_bytes=4 * LARGEST_RECORD,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        **settings,
    )


async def commit(consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, Any]) -> None:
    """The client's own commit, which looks for a coordinator for ever: its worker would be taken for stuck while the
    broker is away. Raises `KafkaError`, where it goes on for too long, too."""
    try:
        async with asyncio.timeout(_COMMIT_S):
            await consumer.commit(offsets)
    except TimeoutError:
        raise KafkaTimeoutError from None


@asynccontextmanager
async def reaching(kafka: KafkaConfig, *closers: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Around the start of a worker: where that fails each of `closers` is called, so that no client is left open.
    Raises `BrokerError` for a broker that does not answer, else what the start has raised."""
    try:
        yield
    except BaseException as error:
        for close in closers:
            with suppress(Exception):  # of the failure there is more to say than of its cleaning up
                async with asyncio.timeout(_CLOSE_S):
                    await close()
        if isinstance(error, KafkaError):
            raise unreachable(kafka, error) from error
        raise


def unreachable(kafka: KafkaConfig, error: KafkaError) -> BrokerError:
    """What to tell a person whose broker does not answer."""
    return BrokerError(
        f"the broker cannot be used ({type(error).__name__}).",
        field="kafka.bootstrap",
        remedy="Check that Kafka runs there and that this machine reaches it.",
    )
