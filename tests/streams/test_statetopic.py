"""Snapshots on a real topic: the newest is found at the log's end, and nothing is left behind for ever."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import TopicPartition
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.topics import STATE
from kvtrail.streams.clients import producer as make_producer
from kvtrail.streams.clients import reader as make_reader
from kvtrail.streams.snapshots import BLOB_BYTES, SnapshotUnusable, blob_key, pack
from kvtrail.streams.statetopic import StateTopic

pytestmark = pytest.mark.kafka

Make = Callable[[str], StateTopic]
Send = Callable[[bytes, bytes | None], Awaitable[object]]


def _run(kafka: KafkaConfig, scene: Callable[[Make, Send], Awaitable[None]]) -> None:
    async def run() -> None:
        producer = make_producer(kafka, "test")
        await producer.start()
        try:
            await scene(
                lambda name: StateTopic(kafka, producer, name),
                lambda key, value: producer.send_and_wait(STATE, value, key=key, partition=1),
            )
        finally:
            await producer.stop()

    asyncio.run(run())


def _state(number: int) -> bytes:
    return random.Random(number).randbytes(2 * BLOB_BYTES)


async def _live(kafka: KafkaConfig) -> set[bytes]:
    """The keys that compaction would leave."""
    consumer, tp = make_reader(kafka, "test"), TopicPartition(STATE, 1)
    await consumer.start()
    try:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        end, newest = (await consumer.end_offsets([tp]))[tp], dict[bytes, bytes | None]()
        while await consumer.position(tp) < end:
            for record in (await consumer.getmany(tp, timeout_ms=200)).get(tp, []):
                newest[record.key] = record.value
        return {key for key, value in newest.items() if value}
    finally:
        await consumer.stop()


def test_a_restore_reads_the_newest_snapshot_and_no_other(topics: KafkaConfig) -> None:
    async def scene(state: Make, send: Send) -> None:
        writer = state("writer")
        for number in range(4):
            await writer.write(1, _state(number), number, 0)
        found = await (other := state("other")).restore(1)
        assert found is not None
        assert (found.manifest.next, found.state) == (3, _state(3))
        assert other.records_read == 3 + 1 + 3 + 1, "its blobs, its manifest, tombstones, its pointer"

    _run(topics, scene)


def test_what_a_broken_off_snapshot_left_goes_with_the_next(topics: KafkaConfig) -> None:
    orphan = blob_key(1, "broken", 0)

    async def scene(state: Make, send: Send) -> None:
        await state("writer").write(1, _state(1), 1, 0)
        await send(orphan, b"half a snapshot")
        heir = state("heir")
        assert (found := await heir.restore(1)) is not None
        assert found.manifest.next == 1
        manifest = await heir.write(1, _state(2), 2, 0)
        assert await _live(topics) == {blob_key(1, manifest.id, n) for n in range(3)} | {b"1/manifest", b"1/pointer"}

    _run(topics, scene)


def test_a_pointer_that_leads_nowhere_costs_only_time(topics: KafkaConfig) -> None:
    async def scene(state: Make, send: Send) -> None:
        await state("writer").write(1, _state(1), 1, 0)
        for number in range(100):  # farther from the end than is looked at
            await send(b"other/1/%d" % number, b"")
        assert (found := await state("reader").restore(1)) is not None
        assert found.manifest.next == 1
        [*blobs, (key, value)] = pack(_state(2), partition=1, next_offset=2, last_append_us=0, writer="w")
        await send(key, value)
        await send(b"1/pointer", b'{"first":104}')
        assert (found := await state("reader").restore(1)) is not None
        assert found.manifest.next == 1, "the manifest without blobs is passed over"
        await send(b"1/manifest", None)
        assert await state("reader").restore(1) is None
        await send(key, value)
        with pytest.raises(SnapshotUnusable):
            await state("reader").restore(1)
        assert blobs

    _run(topics, scene)
