"""What every transport owes the sender, whatever its end: one suite for all of them."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvtrail.producers.kafka import KafkaTransport
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.recording import RecordingTransport
from kvtrail.producers.transport import Transport, TransportError
from kvtrail.schemas.config import KafkaConfig, PublisherConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.homes import partition_of

from .reading import TENANT, decode, read_topic, runs

Read = Callable[[], list[bytes]]
HOMES = ["n:gpu-1", "n:gpu-2", "s:pool:0", "s:pool:7", "n:knoten-ä"]


@pytest.fixture(
    params=["memory", "recording", pytest.param("kafka", marks=pytest.mark.kafka)],
)
def end(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Transport, Read]:
    """A transport, and what has arrived at its end."""
    if request.param == "memory":
        memory = MemoryTransport()
        return memory, lambda: [record for _, record in memory.records]
    if request.param == "recording":
        path = tmp_path / "new" / "history.jsonl"
        return RecordingTransport(path), lambda: path.read_bytes().splitlines() if path.exists() else []
    kafka: KafkaConfig = request.getfixturevalue("topics")
    return KafkaTransport(kafka), lambda: [value for _, _, value in read_topic(kafka)]


def test_records_arrive_as_they_are_and_in_order(end: tuple[Transport, Read]) -> None:
    transport, read = end
    records = {home: [f'{{"{home}":{n}}}'.encode() for n in range(20)] for home in HOMES}

    async def lane(home: str) -> None:
        for n, record in enumerate(records[home], 1):
            await transport.send(home, record, n, n)

    async def work() -> None:
        await transport.start()
        await asyncio.gather(*map(lane, HOMES))
        await transport.stop()

    asyncio.run(work())
    arrived = read()
    for home in HOMES:
        assert [record for record in arrived if record in records[home]] == records[home]
    assert len(arrived) == 20 * len(HOMES)


def test_stopping_what_was_never_started_is_harmless(end: tuple[Transport, Read]) -> None:
    transport, read = end
    asyncio.run(transport.stop())
    assert read() == []


def test_starting_twice_is_harmless(end: tuple[Transport, Read]) -> None:
    transport, read = end

    async def work() -> None:
        await transport.start()
        await transport.start()
        await transport.send("n:gpu-1", b'{"a":1}', 1, 1)
        await transport.stop()

    asyncio.run(work())
    assert read() == [b'{"a":1}']


def test_a_fresh_one_reaches_the_same_end_and_shares_nothing(end: tuple[Transport, Read]) -> None:
    transport, read = end

    async def use(one: Transport, record: bytes) -> None:
        await one.start()
        await one.send("n:gpu-1", record, 1, 1)
        await one.stop()

    other = transport.fresh()
    asyncio.run(use(transport, b'{"a":1}'))
    asyncio.run(use(other, b'{"a":2}'))
    assert other is not transport
    if not isinstance(transport, MemoryTransport):
        assert read() == [b'{"a":1}', b'{"a":2}']


def test_a_publisher_delivers_through_it(end: tuple[Transport, Read]) -> None:
    transport, read = end
    with LifecyclePublisher("gpu-1", transport, PublisherConfig(envelope_events=16)) as publisher:
        for n in range(100):
            publisher.create(f"k{n}", TENANT, store="kv", tier="nvme")
            publisher.hit(f"k{n}", TENANT, store="pool", tier="shared")
    found = runs(decode(read()))
    assert sum(last for lane in found.values() for _, last in lane[-1:]) == 201
    assert publisher.stats().sent == 201


@pytest.mark.kafka
def test_the_broker_files_a_home_where_every_language_does(topics: KafkaConfig) -> None:
    transport = KafkaTransport(topics)
    homes = [f"n:node-{n}" for n in range(12)] + [f"s:pool:{n}" for n in range(8)] + ["n:ä"]

    async def work() -> None:
        for home in homes:
            await transport.send(home, b"{}", 1, 1)
        await transport.stop()

    asyncio.run(work())
    where = {key.decode(): partition for partition, key, _ in read_topic(topics)}
    assert where == {home: partition_of(home, topics.partitions) for home in homes}


@pytest.mark.kafka
def test_a_missing_topic_and_a_dead_broker_say_what_to_do(kafka: KafkaConfig) -> None:
    async def fails(transport: KafkaTransport) -> TransportError:
        try:
            with pytest.raises(TransportError) as caught:
                await transport.start()
            return caught.value
        finally:
            await transport.stop()

    dead = asyncio.run(fails(KafkaTransport(KafkaConfig(bootstrap="127.0.0.1:1"))))
    assert dead.reason == "KafkaConnectionError"
    missing = asyncio.run(fails(KafkaTransport(kafka, topic="kvtrail.nowhere", request_timeout_s=1)))
    assert missing.reason in ("UnknownTopicOrPartitionError", "timeout")
    assert dead.remedy and missing.remedy


def test_a_compression_without_its_package_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="cramjam"):
        KafkaTransport(KafkaConfig(compression="zstd"))
    KafkaTransport(KafkaConfig(compression="gzip"))


def test_a_recording_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.jsonl"
    transport = RecordingTransport(path)
    real: Any = os.write

    async def work() -> None:
        await transport.send("n:a", b'{"a":1}', 1, 1)
        monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
        with pytest.raises(TransportError, match="no room"):
            await transport.send("n:a", b'{"a":2}', 2, 2)
        monkeypatch.setattr(os, "write", real)
        await transport.send("n:a", b'{"a":2}', 2, 2)
        await transport.stop()

    asyncio.run(work())
    assert path.read_bytes() == b'{"a":1}\n{"a":2}\n'


def test_a_recording_in_an_impossible_place_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransportError, match="cannot be opened"):
        asyncio.run(RecordingTransport(tmp_path / "file" / "history.jsonl").start())
