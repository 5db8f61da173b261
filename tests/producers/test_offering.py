"""Events that know only a request id are offered to the context topic, once they are where they belong."""

import asyncio
from pathlib import Path

import pytest
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.offering import OfferingTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.transport import TransportError
from kvtrail.schemas.config import KafkaConfig, PublisherConfig
from kvtrail.schemas.context import decode_record, lacks_identity
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Event
from kvtrail.schemas.topics import CONTEXT
from msgspec.structs import replace

from .reading import TENANT, decode, events, read_topic, until

FAST = PublisherConfig(linger_s=0.0)


class Ends:
    """A publisher with two ends in memory."""

    def __init__(self, config: PublisherConfig = FAST) -> None:
        self.lifecycle, self.context = MemoryTransport(), MemoryTransport()
        self.transport = OfferingTransport(self.lifecycle, self.context, limit=5)
        self.publisher = LifecyclePublisher("gpu-1", self.transport, config)

    def offered(self) -> list[Event]:
        found = [decode_record(record, EnvelopeDecoder()) for _, record in self.context.records]
        return [event for event in found if isinstance(event, Event)]


def publish_all_sorts(publisher: LifecyclePublisher) -> None:
    publisher.create("k1", None, store="kv", tier="nvme", tokens=8, request_id="r1")
    publisher.create("k2", TENANT, store="kv", tier="nvme", request_id="r2")
    publisher.hit("k1", None, store="kv", tier="nvme")
    publisher.expire("k1", "ttl", store="kv", tier="nvme", request_id="r3")
    publisher.hit("k3", None, store="pool", tier="shared", request_id="r4", place="p@1", trace_id="ab")


def test_what_a_context_can_complete_is_offered_and_nothing_else() -> None:
    ends = Ends()
    publish_all_sorts(ends.publisher)
    assert ends.publisher.flush() and ends.publisher.close()
    published = events(decode(record for _, record in ends.lifecycle.records))
    wanted = [event for event in published if lacks_identity(event)]
    assert [event.request_id for event in wanted] == ["r1", "r4"] and len(published) == 6
    # Whole, with their ids: what the resolver sends is made of them.
    assert sorted(ends.offered(), key=lambda event: event.request_id) == wanted
    assert sorted(key for key, _ in ends.context.records) == ["r1", "r4"]


def test_records_with_identities_are_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()

    def refuse(self: object, raw: bytes) -> None:
        raise AssertionError

    monkeypatch.setattr(EnvelopeDecoder, "decode", refuse)
    ends.publisher.hit("k1", TENANT, store="kv", tier="nvme", request_id="r1")
    ends.publisher.expire("k1", "ttl", store="kv", tier="nvme", request_id="r1")
    assert ends.publisher.flush() and ends.publisher.close()
    assert ends.context.attempts == 0 and len(ends.lifecycle.records) >= 1


def test_an_offer_that_fails_holds_up_nothing_and_the_newest_are_kept() -> None:
    ends = Ends()
    ends.context.down = True
    for number in range(30):
        ends.publisher.hit("k", None, store="kv", tier="nvme", request_id=f"r{number}")
        assert ends.publisher.flush()
    until(lambda: ends.transport.offers.failures > 0, "an attempt")
    ends.context.down = False
    until(lambda: ends.transport.offers.waiting == 0, "the offers")
    assert ends.offered()[-1].request_id == "r29" and 0 < ends.transport.offers.lost < 30
    assert ends.publisher.close() and ends.publisher.stats().sent == 31


def test_nothing_is_offered_before_its_record_is_taken() -> None:
    ends = Ends()
    ends.lifecycle.down = True
    ends.publisher.hit("k", None, store="kv", tier="nvme", request_id="r1")
    until(lambda: ends.lifecycle.attempts > 1, "attempts")
    assert ends.context.attempts == 0
    ends.lifecycle.down = False
    assert ends.publisher.flush() and ends.publisher.close()
    assert [event.request_id for event in ends.offered()] == ["r1"]


def test_what_had_waited_in_a_spool_is_offered_by_the_next_process(tmp_path: Path) -> None:
    config = replace_config(spool_directory=tmp_path)
    first = Ends(config)
    first.lifecycle.down = True
    first.publisher.hit("k", None, store="kv", tier="nvme", request_id="r1")
    first.publisher.close(0.2)
    assert first.context.attempts == 0
    second = Ends(config)
    until(lambda: len(second.context.records) == 1, "the offer")
    assert second.offered()[0].request_id == "r1" and second.offered()[0].incarnation == first.publisher.incarnation
    assert second.publisher.close()


def replace_config(**changes: object) -> PublisherConfig:
    return FAST.model_copy(update={"spool_after_s": 0.05, **changes})


def test_a_forked_child_has_ends_of_its_own() -> None:
    ends = Ends()
    fresh = ends.transport.fresh()
    asyncio.run(fresh.stop())
    assert fresh.offers is not ends.transport.offers
    ends.publisher.close()


def test_inner_errors_are_inner_errors() -> None:
    ends = Ends()
    ends.lifecycle.down = True
    with pytest.raises(TransportError):
        asyncio.run(ends.transport.send("n:x", b"{}", 1, 1))
    ends.publisher.close()


@pytest.mark.kafka
def test_on_a_real_broker(topics: KafkaConfig) -> None:
    with LifecyclePublisher.to_kafka("gpu-1", topics, FAST) as publisher:
        publish_all_sorts(publisher)
        assert publisher.flush(30)
    found = [decode_record(value, EnvelopeDecoder()) for _, _, value in read_topic(topics, CONTEXT)]
    assert sorted(event.request_id for event in found) == ["r1", "r4"]
    stored = events(decode(value for _, _, value in read_topic(topics)))
    assert {event.id for event in found if isinstance(event, Event)} < {event.id for event in stored}
    assert [replace(event, identity=TENANT) for event in found if isinstance(event, Event)] != found
