"""The gateway's publisher: what a call says arrives, and nothing is ever in the gateway's way."""

import os
import threading
from collections.abc import Iterator

import pytest
from kvtrail.producers.context import ContextPublisher
from kvtrail.producers.memory import MemoryTransport
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.context import RequestContext, decode_context
from kvtrail.schemas.homes import partition_of
from kvtrail.schemas.topics import CONTEXT

from .reading import read_topic, until


@pytest.fixture
def memory() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def publisher(memory: MemoryTransport) -> Iterator[ContextPublisher]:
    with ContextPublisher(memory, clock_ns=lambda: 5_000_000) as publisher:
        yield publisher


def test_a_context_carries_what_the_call_said(publisher: ContextPublisher, memory: MemoryTransport) -> None:
    publisher.publish("r1", "northwind", principal="agent-3", tool_schema_digest="", trace_id="ab" * 16)
    publisher.publish("r2", "contoso", at_us=7)
    assert publisher.flush()
    assert [(key, decode_context(record)) for key, record in memory.records] == [
        ("r1", RequestContext(
            request_id="r1", tenant_id="northwind", at_us=5_000, principal="agent-3", tool_schema_digest="",
            trace_id="ab" * 16,
        )),
        ("r2", RequestContext(request_id="r2", tenant_id="contoso", at_us=7)),
    ]  # fmt: skip
    assert publisher.close() and publisher.stats().sent == 2


def test_one_requests_contexts_keep_their_order(publisher: ContextPublisher, memory: MemoryTransport) -> None:
    for number in range(600):
        publisher.publish(f"r{number % 3}", "northwind", at_us=number)
    assert publisher.flush()
    for request in ("r0", "r1", "r2"):
        times = [decode_context(record).at_us for key, record in memory.records if key == request]
        assert times == sorted(times) and len(times) == 200


def test_bad_values_are_counted_and_the_rest_goes_on(
    publisher: ContextPublisher, memory: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.publish("r1", " ")
    publisher.publish("r1", "northwind", template_digest="support_v7")
    publisher.publish(b"r1", "northwind")  # type: ignore[arg-type]  # what a careless caller does
    publisher.publish("r1", object())  # type: ignore[arg-type]  # what a careless caller does
    publisher.publish("", "northwind")
    publisher.publish("r1", "northwind", isolation_domain="the salt itself")
    publisher.publish("r2", "northwind")
    assert publisher.flush()
    assert [key for key, _ in memory.records] == ["r2"]
    assert (publisher.stats().refused, publisher.stats().sent) == (6, 1)
    assert "context.isolation_domain" in caplog.text or "context.template_digest" in caplog.text
    assert "the salt itself" not in caplog.text and "support_v7" not in caplog.text


def test_while_the_broker_is_away_the_newest_are_kept(memory: MemoryTransport) -> None:
    memory.down = True
    publisher = ContextPublisher(memory, limit=10)
    publisher.publish("first", "northwind")
    until(lambda: publisher.stats().failures > 0, "an attempt")
    for number in range(50):
        publisher.publish(f"r{number}", "northwind")
    stats = publisher.stats()
    assert stats.waiting <= 11 and stats.lost == 51 - stats.waiting
    memory.down = False
    assert publisher.flush(30)
    assert [key for key, _ in memory.records][-10:] == [f"r{number}" for number in range(40, 50)]
    assert publisher.close()


def test_what_is_left_at_the_end_is_counted(memory: MemoryTransport) -> None:
    memory.down = True
    publisher = ContextPublisher(memory)
    publisher.publish("r1", "northwind")
    until(lambda: publisher.stats().failures > 0, "an attempt")
    assert not publisher.close(0.1)
    publisher.publish("r2", "northwind")
    stats = publisher.stats()
    assert (stats.sent, stats.waiting, stats.lost) == (0, 0, 2)
    assert not publisher.close()


def test_from_many_threads(publisher: ContextPublisher, memory: MemoryTransport) -> None:
    def work(name: int) -> None:
        for number in range(200):
            publisher.publish(f"{name}-{number}", "northwind")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert publisher.flush(30)
    assert len({key for key, _ in memory.records}) == 1600


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_begins_anew(publisher: ContextPublisher, memory: MemoryTransport) -> None:
    publisher.publish("parent", "northwind")
    assert publisher.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            publisher.publish("child", "northwind")
            status = 0 if publisher.flush(10) and publisher.stats().sent == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publisher.publish("parent again", "northwind")
    assert publisher.flush()
    assert [key for key, _ in memory.records] == ["parent", "parent again"]


@pytest.mark.kafka
def test_on_a_real_broker_it_is_keyed_by_request(topics: KafkaConfig) -> None:
    with ContextPublisher.to_kafka(topics) as publisher:
        for number in range(20):
            publisher.publish(f"r{number}", "northwind")
        assert publisher.flush(30)
    found = read_topic(topics, CONTEXT)
    assert sorted(decode_context(value).request_id for _, _, value in found) == sorted(f"r{n}" for n in range(20))
    for partition, key, _ in found:
        assert partition == partition_of(key.decode(), topics.partitions)
