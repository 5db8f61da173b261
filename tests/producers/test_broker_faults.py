"""A real broker that dies under load, and one that was never there."""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.cli.local.ports import free_ports
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.kafka import KafkaTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.transport import TransportError
from kvtrail.schemas.config import KafkaConfig, PublisherConfig
from kvtrail.streams.topics import ensure_topics

from .agents import Running, spooled
from .load import Load, complete, nothing_lost
from .reading import TENANT, decode, events, first_arrivals, gaps, read_topic, runs, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def own(broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """A broker of one's own, with the topics."""
    asyncio.run(ensure_topics(broker.config))
    yield broker


@pytest.mark.parametrize("ack_timeout_s", [30.0, 0.5], ids=["patient", "producer replaced"])
def test_nothing_is_lost_or_out_of_order_when_the_broker_is_killed(own: KafkaBroker, ack_timeout_s: float) -> None:
    transport = KafkaTransport(own.config, ack_timeout_s=ack_timeout_s)
    publisher = LifecyclePublisher("gpu-1", transport, PublisherConfig(linger_s=0.01))
    with Load(publisher) as load:
        for _ in range(2):
            sent = publisher.stats().sent
            until(lambda sent=sent: publisher.stats().sent > sent + 200, "events arrive")  # type: ignore[misc]  # bound now
            own.kill()
            waiting = publisher.stats().buffered
            until(lambda waiting=waiting: publisher.stats().buffered > waiting + 500, "events wait")  # type: ignore[misc]  # bound now
            own.start()
        sent = publisher.stats().sent
        until(lambda: publisher.stats().sent > sent + 500, "events arrive again")
    assert publisher.close(60)
    stats = publisher.stats()
    assert stats.lost == 0 and stats.sent == stats.accepted == load.made + 1

    batches = decode(value for _, _, value in read_topic(own.config))
    arrived = first_arrivals(batches)
    assert len(arrived) == load.made + 1
    for home in {event.home for event in arrived}:
        assert [event.seq for event in arrived if event.home == home] == list(
            range(1, sum(event.home == home for event in arrived) + 1)
        )
    if ack_timeout_s < 1:
        assert transport.producers_built > 1


def test_a_sequence_that_the_broker_refuses_costs_nothing(own: KafkaBroker) -> None:
    """aiokafka #1017: after OutOfOrderSequenceNumber a producer never delivers again."""
    transport = KafkaTransport(own.config, ack_timeout_s=2)
    publisher = LifecyclePublisher("gpu-1", transport, PublisherConfig(linger_s=0.01))
    with Load(publisher) as load:
        for built in (1, 2, 3):
            sent = publisher.stats().sent
            until(lambda sent=sent: publisher.stats().sent > sent + 100, "events arrive", 60)  # type: ignore[misc]  # bound now
            assert transport._link is not None
            numbers = transport._link.producer._txn_manager._sequence_numbers
            for partition in list(numbers):
                numbers[partition] += 7  # as if seven records had been lost on the way
            until(lambda built=built: transport.producers_built > built, "the producer is replaced", 60)  # type: ignore[misc]  # bound now
        sent = publisher.stats().sent
        until(lambda: publisher.stats().sent > sent + 100, "events arrive again", 60)
    assert publisher.close(60)
    stats = publisher.stats()
    assert stats.lost == 0 and stats.sent == stats.accepted == load.made + 1
    complete(own.config, {"gpu-1": load.made + 1})


def test_a_broker_that_comes_late_gets_everything(tmp_path_factory: pytest.TempPathFactory) -> None:
    port = free_ports(1)[0]
    publisher = LifecyclePublisher.to_kafka("gpu-1", KafkaConfig(bootstrap=f"127.0.0.1:{port}"))
    for n in range(1000):
        publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu")
    until(lambda: publisher.stats().failures > 0, "the broker is missed")
    assert publisher.stats().last_error == "KafkaConnectionError"
    with KafkaBroker(tmp_path_factory.mktemp("late"), port=port) as broker:
        asyncio.run(ensure_topics(broker.config))
        assert publisher.flush(60)
        assert publisher.stats().last_error == ""
        assert publisher.close()
        batches = decode(value for _, _, value in read_topic(broker.config))
    assert [event.seq for event in events(batches)] == list(range(1, 1002))
    assert {gaps(lane) for lane in runs(batches).values()} == {0}


def test_a_dead_broker_costs_bounded_memory_and_close_still_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    publisher = LifecyclePublisher.to_kafka(
        "gpu-1", KafkaConfig(bootstrap="127.0.0.1:1"), PublisherConfig(max_events=1000, close_s=0.2)
    )
    for n in range(5000):
        publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu")
    until(lambda: publisher.stats().failures > 2, "several attempts fail")
    assert publisher.stats().buffered <= 1002
    assert not publisher.close()
    stats = publisher.stats()
    assert stats.sent == 0 and stats.accepted == stats.lost == 5001
    flood = [record for record in caplog.records if record.name.startswith("aiokafka")]
    assert len(flood) == len({(record.name, record.msg) for record in flood}), "each message once"


def test_a_broker_that_stops_answering_costs_disk_and_nothing_else(own: KafkaBroker, tmp_path: Path) -> None:
    config = PublisherConfig(linger_s=0.01, spool_directory=tmp_path, spool_after_s=0.2, max_events=2_000)
    publisher = LifecyclePublisher("gpu-1", KafkaTransport(own.config, ack_timeout_s=2), config)
    with Load(publisher) as load:
        until(lambda: publisher.stats().sent > 200, "events arrive")
        os.kill(own.pid, signal.SIGSTOP)
        until(lambda: publisher.stats().spooled > 20, "records wait on disk")
        os.kill(own.pid, signal.SIGCONT)
        until(lambda: publisher.stats().spooled == 0, "the spool is emptied", 60)
        own.kill()
        until(lambda: publisher.stats().spooled > 20, "records wait on disk again")
        own.start()
    assert publisher.close(60)
    assert publisher.stats().lost == 0 and publisher.stats().spooled == 0
    complete(own.config, {"gpu-1": load.made + 1})
    assert not list(tmp_path.glob("*/*"))


def test_an_agent_holds_what_a_broker_does_not_take(own: KafkaBroker, tmp_path: Path) -> None:
    line = spooled(KafkaTransport(own.config, ack_timeout_s=2), tmp_path / "spool", "1")
    with Running(tmp_path / "agent.sock", line) as running:
        publisher = AgentPublisher("gpu-1", running.path, linger_s=0.01, max_events=2_000)
        with Load(publisher) as load:
            until(lambda: publisher.stats().sent > 200, "events arrive")
            own.kill()
            sent = publisher.stats().sent
            until(lambda: line.spool.records > 20 and publisher.stats().sent > sent + 200, "the agent keeps them")
            own.start()
            until(lambda: line.spool.records == 0, "the spool is emptied", 60)
        assert publisher.close(60) and publisher.stats().lost == 0
        until(lambda: line.spool.records == 0, "the spool is emptied", 60)
    complete(own.config, {"gpu-1": load.made + 1})


def test_a_producer_that_is_replaced_leaves_nothing_at_work(own: KafkaBroker) -> None:
    async def work() -> None:
        transport = KafkaTransport(own.config, ack_timeout_s=0.5, request_timeout_s=1)
        await transport.send("n:gpu-1", b"{}", 1, 1)
        os.kill(own.pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(TransportError):
                    await transport.send("n:gpu-1", b"{}", 2, 2)
            await transport.stop()
            assert asyncio.all_tasks() == {asyncio.current_task()}
        finally:
            os.kill(own.pid, signal.SIGCONT)

    asyncio.run(work())


PAUSE_S = 60.0


@pytest.mark.timeout(300)
def test_a_broker_that_stands_still_for_a_minute_costs_neither_transport_an_event(
    own: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = PublisherConfig(linger_s=0.01, spool_directory=tmp_path / "inside", spool_after_s=0.2, max_events=5_000)
    inside = LifecyclePublisher("gpu-1", KafkaTransport(own.config), config)
    line = spooled(KafkaTransport(own.config), tmp_path / "outside", "1")
    with Running(tmp_path / "agent.sock", line) as running:
        outside = AgentPublisher("gpu-2", running.path, linger_s=0.01, max_events=5_000)
        with Load(inside) as first, Load(outside) as second:
            until(lambda: inside.stats().sent > 200 and line.sent > 20, "events of both arrive")
            os.kill(own.pid, signal.SIGSTOP)
            try:
                began, accepted = time.monotonic(), (inside.stats().accepted, outside.stats().accepted)
                until(lambda: time.monotonic() - began >= PAUSE_S, "a minute of it", 2 * PAUSE_S)
                assert inside.stats().spooled > 20 and line.spool.records > 20, "the load has gone on"
                assert inside.stats().accepted > accepted[0] + 1000
                assert outside.stats().accepted > accepted[1] + 1000
            finally:
                os.kill(own.pid, signal.SIGCONT)
            until(lambda: inside.stats().spooled == 0 == line.spool.records, "both spools are emptied", 60)
        assert inside.close(60) and outside.close(60)
        until(lambda: line.spool.records == 0, "the agent's spool is emptied", 60)
    nothing_lost(own.config, (inside, first), (outside, second))
    assert not list((tmp_path / "inside").glob("*/*"))
    gc.collect()
    assert "destroyed" not in caplog.text and "Unclosed" not in caplog.text
