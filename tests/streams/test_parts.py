"""The detector's own ways to Kafka, each alone on a real broker: reader, facts gate, state topic, leaving a group."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from kvtrail.schemas.config import Config, KafkaConfig
from kvtrail.schemas.errors import BrokerError
from kvtrail.schemas.facts import encode_fact
from kvtrail.schemas.topics import FACTS, LIFECYCLE, STATE
from kvtrail.streams.clients import producer as make_producer
from kvtrail.streams.factfeed import FactFeed
from kvtrail.streams.membership import leave_group
from kvtrail.streams.reader import TopicReader
from kvtrail.streams.snapshots import BLOB_BYTES
from kvtrail.streams.statetopic import StateTopic
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import read_topic, truncate

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def _producer(kafka: KafkaConfig) -> AsyncIterator[AIOKafkaProducer]:
    producer = make_producer(kafka, "test")
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def _reading(kafka: KafkaConfig) -> AsyncIterator[TopicReader]:
    reader = TopicReader(kafka, LIFECYCLE, "test-reader")
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


async def _offsets(reader: TopicReader, first: int, end: int) -> list[int]:
    return [record.offset async for chunk in reader.read(1, first, end) for record in chunk]


def test_a_range_is_read_exactly(topics: KafkaConfig) -> None:
    async def run() -> None:
        async with _producer(topics) as producer, _reading(topics) as reader:
            for number in range(30):
                await producer.send_and_wait(LIFECYCLE, str(number).encode(), partition=1)
            assert await reader.bounds(1) == (0, 30)
            assert await _offsets(reader, 7, 19) == list(range(7, 19))
            assert await _offsets(reader, 7, 7) == []
            assert await _offsets(reader, 0, 30) == list(range(30))

    asyncio.run(run())


def test_a_range_that_is_gone_from_the_log_is_an_error(topics: KafkaConfig) -> None:
    """With `latest` or `earliest` as a fallback this would skip in silence."""

    async def run() -> None:
        async with _producer(topics) as producer, _reading(topics) as reader:
            for number in range(10):
                await producer.send_and_wait(LIFECYCLE, str(number).encode(), partition=1)
            await truncate(topics, {TopicPartition(LIFECYCLE, 1): 6})
            assert await reader.bounds(1) == (6, 10)
            with pytest.raises(BrokerError, match="gone from the log"):
                await _offsets(reader, 3, 10)

    asyncio.run(run())


def test_the_gate_waits_for_proof_and_writes_a_tick_where_none_comes(topics: KafkaConfig) -> None:
    async def run() -> None:
        async with _producer(topics) as producer:
            envelope = await producer.send_and_wait(LIFECYCLE, b"{}", partition=0)
            feed = FactFeed(topics, producer, "test")
            await feed.start()
            try:
                await feed.reach(envelope.timestamp * 1000)
                assert feed.ticks >= 1
                ticks = feed.ticks
                await feed.reach(envelope.timestamp * 1000)
                assert feed.ticks == ticks
                assert feed.facts == 0
            finally:
                await feed.stop()

    asyncio.run(run())


def test_a_fact_appended_before_the_envelope_is_known_when_the_gate_opens(topics: KafkaConfig) -> None:
    async def run() -> None:
        async with _producer(topics) as producer:
            feed = FactFeed(topics, producer, "test")
            await producer.send_and_wait(FACTS, encode_fact(histories.template("before the start", 0)), key=b"f")
            await feed.start()
            assert feed.facts == 1
            try:
                for number in range(1, 40):
                    fact = encode_fact(histories.template(str(number), number))
                    await producer.send_and_wait(FACTS, fact, key=b"f")
                    envelope = await producer.send_and_wait(LIFECYCLE, b"{}", partition=0)
                    await feed.reach(envelope.timestamp * 1000)
                    assert feed.facts == number + 1
            finally:
                await feed.stop()

    asyncio.run(run())


def test_a_bad_fact_is_counted_and_the_next_one_read(topics: KafkaConfig) -> None:
    async def run() -> None:
        async with _producer(topics) as producer:
            for value in (b"\xff", b"{}", encode_fact(histories.template("good", 0))):
                await producer.send_and_wait(FACTS, value, key=b"f")
            feed = FactFeed(topics, producer, "test")
            await feed.start()
            try:
                assert (feed.refused, feed.facts) == (2, 1)
            finally:
                await feed.stop()

    asyncio.run(run())


def test_the_newest_snapshot_comes_back_and_the_older_one_is_marked_for_compaction(topics: KafkaConfig) -> None:
    async def run() -> None:
        async with _producer(topics) as producer:
            state = StateTopic(topics, producer, "writer")
            assert await state.restore(2) is None
            large = os.urandom(2 * BLOB_BYTES)
            await state.write(2, b"first", 5, 50)
            manifest = await state.write(2, large, 9, 90)
            snapshot = await StateTopic(topics, producer, "reader").restore(2)
            assert snapshot is not None
            assert (snapshot.state, snapshot.manifest) == (large, manifest)
            assert (manifest.next, manifest.last_append_us, manifest.writer) == (9, 90, "writer")
            assert await StateTopic(topics, producer, "reader").restore(1) is None

    asyncio.run(run())
    newest = {record.offset: record for record in read_topic(topics, STATE)}
    assert sum(not record.value for record in newest.values()) == 1
    assert {record.partition for record in newest.values()} == {2}


def test_a_successor_removes_what_it_restored_from(topics: KafkaConfig) -> None:
    async def run() -> None:
        async with _producer(topics) as producer:
            await StateTopic(topics, producer, "first").write(2, b"one", 5, 50)
            second = StateTopic(topics, producer, "second")
            await second.restore(2)
            await second.write(2, b"two", 6, 60)
            snapshot = await StateTopic(topics, producer, "third").restore(2)
            assert snapshot is not None
            assert (snapshot.state, snapshot.manifest.writer) == (b"two", "second")

    asyncio.run(run())
    assert sum(not record.value for record in read_topic(topics, STATE)) == 1


def test_a_static_member_leaves_its_group_when_told_to(topics: KafkaConfig) -> None:
    """Its own client never says so, and its partitions would stand still until the session ends."""

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            LIFECYCLE, bootstrap_servers=topics.bootstrap, group_id="leavers", group_instance_id="one",
            session_timeout_ms=60_000,
        )  # fmt: skip
        await consumer.start()
        await consumer.getmany(timeout_ms=100)
        await consumer.stop()
        assert await _members(topics, "leavers") == 1
        assert await leave_group(Config(kafka=topics), "leavers", "one")
        assert await _members(topics, "leavers") == 0
        assert not await leave_group(Config(kafka=topics), "leavers", "nobody")

    asyncio.run(run())


async def _members(kafka: KafkaConfig, group: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        [answer] = await admin.describe_consumer_groups([group])
        groups: list[Any] = answer.groups
        return len(groups[0][5])
    finally:
        await admin.close()
