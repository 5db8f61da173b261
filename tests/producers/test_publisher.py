"""What a call does: order, homes, numbers, bounds, refusals. In memory; real transports have their own tests."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kvtrail.producers.incarnation import new_incarnation
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.stats import metrics
from kvtrail.producers.transport import RecordRejected
from kvtrail.schemas.config import PublisherConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.events import Check, Create, Hit, Invalidate, LookupCount, NodeStart
from kvtrail.schemas.homes import shared_home, shared_homes
from kvtrail.schemas.identity import Identity

from .reading import TENANT, decode, events, gaps, runs, until

FAST = PublisherConfig(linger_s=0.0)


@pytest.fixture
def memory() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def publisher(memory: MemoryTransport) -> Iterator[LifecyclePublisher]:
    with LifecyclePublisher("gpu-1", memory, FAST) as publisher:
        yield publisher


def bodies(memory: MemoryTransport) -> list[Any]:
    return [event.body for event in events(decode(record for _, record in memory.records))]


def test_events_carry_what_the_call_said(publisher: LifecyclePublisher, memory: MemoryTransport) -> None:
    publisher.create("k1", TENANT, store="kv", tier="nvme", tokens=8992, ttl_s=300, request_id="r1", place="f1@0")
    publisher.hit("k1", TENANT, store="kv", tier="nvme", reused_tokens=8992, request_id="r2")
    publisher.expire("k1", "ttl", store="kv", tier="nvme")
    publisher.commit("k1", store="kv", tier="nvme", bytes=7)
    publisher.check("k1", check="canary", result="pass", store="kv", tier="nvme")
    publisher.lookups([LookupCount(tenant_id="northwind", hit=3, miss=4)])
    publisher.request_end("r2")
    assert publisher.flush()
    got = events(decode(record for _, record in memory.records))
    assert [event.type for event in got] == [
        "node_start", "create", "hit", "expire", "commit", "check", "lookups", "request_end",
    ]  # fmt: skip
    assert [event.seq for event in got] == list(range(1, 9))
    assert {event.home for event in got} == {"n:gpu-1"}
    create = got[1]
    assert create.body == Create(tokens=8992, ttl_s=300)
    assert (create.key, create.store, create.tier, create.place) == ("k1", "kv", "nvme", "f1@0")
    assert create.identity == TENANT
    assert (create.node, create.incarnation, create.request_id) == ("gpu-1", publisher.incarnation, "r1")
    assert got[2].body == Hit(reused_tokens=8992)


def test_times_come_from_the_clock(memory: MemoryTransport) -> None:
    times = iter([5_000_000, 3_999_999])
    with LifecyclePublisher("gpu-1", memory, FAST, clock_ns=lambda: next(times)) as publisher:
        publisher.node_start()
        publisher.expire("k", "ttl", store="kv", tier="gpu")
    assert [event.time_us for event in events(decode(record for _, record in memory.records))] == [5000, 3999]


def test_an_incarnation_begins_with_its_node_start(memory: MemoryTransport) -> None:
    with LifecyclePublisher("gpu-1", memory, FAST) as publisher:
        publisher.create("k", TENANT, store="kv", tier="shared")
    batches = decode(record for _, record in memory.records)
    started = [event for event in events(batches) if event.type == "node_start"]
    assert [(event.home, event.seq, event.body) for event in started] == [("n:gpu-1", 1, NodeStart())]


def test_a_node_that_says_what_survived_is_not_announced_twice(memory: MemoryTransport) -> None:
    with LifecyclePublisher("gpu-1", memory, FAST) as publisher:
        publisher.node_start(["nvme"], version="1.2")
        publisher.create("k", TENANT, store="kv", tier="nvme")
    assert bodies(memory) == [NodeStart(surviving_tiers=("nvme",), version="1.2"), Create()]


def test_surviving_tiers_given_at_the_start_are_published_at_once(memory: MemoryTransport) -> None:
    with LifecyclePublisher("gpu-1", memory, FAST, surviving_tiers=["nvme"]) as publisher:
        assert publisher.flush()
    assert bodies(memory) == [NodeStart(surviving_tiers=("nvme",))]


def test_homes(publisher: LifecyclePublisher, memory: MemoryTransport) -> None:
    publisher.hit("k", TENANT, store="kv", tier="gpu", owner="gpu-2")
    publisher.hit("k", TENANT, store="pool", tier="shared")
    publisher.invalidate("k", store="pool", tier="shared")
    publisher.invalidate(store="kv", tier="nvme", scope="store")
    publisher.invalidate(store="kv", tier="nvme", scope="node", owner="gpu-3")
    assert publisher.flush()
    by_home: dict[str, list[str]] = {home: [] for home, _ in memory.records}
    for event in events(decode(record for _, record in memory.records)):
        by_home[event.home].append(event.type)
    assert by_home == {
        "n:gpu-1": ["node_start", "invalidate"],
        "n:gpu-2": ["hit"],
        "n:gpu-3": ["invalidate"],
        shared_home("pool", "k"): ["hit", "invalidate"],
    }


def test_an_invalidation_of_a_shared_store_reaches_every_slot_as_one_operation(memory: MemoryTransport) -> None:
    config = PublisherConfig(linger_s=0, slots=5)
    with LifecyclePublisher("gpu-1", memory, config) as publisher:
        publisher.invalidate(store="pool", tier="shared", scope="store", where={"tenant_id": "northwind"})
        publisher.invalidate(store="pool", tier="shared", scope="store")
        assert publisher.flush()
        assert publisher.stats().sent == 1 + 2 * 5
    sent = [event for event in events(decode(record for _, record in memory.records)) if event.type == "invalidate"]
    assert {event.home for event in sent} == set(shared_homes("pool", 5))
    operations = [event.body.op_id for event in sent if isinstance(event.body, Invalidate)]
    assert len(set(operations)) == 2 and all(operations.count(op) == 5 for op in operations)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tokens": -1}, "create.tokens"),
        ({"tokens": "many"}, "create.tokens"),
        ({"payload_digest": "latest"}, "create.payload_digest"),
        ({"tier": "floppy"}, "create.tier"),
        ({"key": None}, "create.key"),
        ({"key": 7}, "create.key"),
        ({"key": ["k"]}, "create.key"),
        ({"key": None, "tier": "shared"}, "create.key"),
        ({"key": "\ud800"}, "create.key"),
        ({"key": "a prompt " * 1000}, "create.key"),
        ({"finish": "a prompt " * 1000}, "create.finish"),
        ({"parts": ["a prompt " * 100]}, "create.parts[0]"),
        ({"parts": ["12345"] * 2000}, "create.parts"),
        ({"identity": {"tenant_id": "northwind"}}, "create.identity"),
        ({"identity": "northwind"}, "create.identity"),
        ({"rank": "0"}, "create.rank"),
        ({"place": b"slot"}, "create.place"),
        ({"rederived_key": b"\x01" * 32}, "create.rederived_key"),
        ({"parts": [b"layer"]}, "create.parts"),
        ({"generation": 1.5}, "create.generation"),
        ({"state": "halfway"}, "create.state"),
        ({"parts": 3}, "create.arguments"),
        ({"colour": "blue"}, "create.arguments"),
        ({"request_id": "r" * 1025}, "create.request_id"),
        ({"identity": Identity(tenant_id="kvtrail:thief")}, "create.identity.tenant_id"),
        ({"owner": "kvtrail:thief"}, "create.owner"),
        ({"owner": "o" * 2000}, "create.owner"),
        ({"owner": 7}, "create.owner"),
        ({"store": b"pool", "tier": "shared"}, "create.store"),
        ({"store": "\ud800", "tier": "shared"}, "create.store"),
    ],
)
def test_a_cache_call_no_event_can_hold_is_counted_and_is_a_gap(
    publisher: LifecyclePublisher, memory: MemoryTransport, arguments: dict[str, Any], field: str
) -> None:
    good: dict[str, Any] = {"key": "k", "identity": TENANT, "store": "kv", "tier": "nvme"}
    publisher.create(**good)
    publisher.create(**(good | arguments))
    publisher.create(**good)
    assert publisher.flush()
    assert publisher.stats().refused == {field: 1}
    assert publisher.stats().buffered == 0
    batches = decode(record for _, record in memory.records)
    assert [event.seq for event in events(batches)] == [1, 2, 4]
    assert {lane: gaps(found) for lane, found in runs(batches).items()} == {(publisher.incarnation, "n:gpu-1"): 1}


BAD_CALLS: dict[str, Any] = {
    "create": lambda publisher, **bad: publisher.create("k", TENANT, store="kv", tier="gpu", **bad),
    "hit": lambda publisher, **bad: publisher.hit("k", TENANT, store="kv", tier="gpu", **bad),
    "commit": lambda publisher, **bad: publisher.commit("k", store="kv", tier="gpu", **bad),
    "expire": lambda publisher, **bad: publisher.expire("k", "ttl", store="kv", tier="gpu", **bad),
    "invalidate": lambda publisher, **bad: publisher.invalidate("k", store="kv", tier="gpu", **bad),
}


@pytest.mark.parametrize("bad", [{"request_id": "r" * 1025}, {"colour": "blue"}, {"owner": "kvtrail:x"}])
@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_refusal_at_the_end_of_a_lane_is_made_visible_too(
    publisher: LifecyclePublisher, memory: MemoryTransport, call: str, bad: dict[str, Any]
) -> None:
    BAD_CALLS[call](publisher, **bad)
    assert publisher.close(30)
    assert sum(publisher.stats().refused.values()) == 1
    batches = decode(record for _, record in memory.records)
    assert [(event.seq, event.type) for event in events(batches)] == [(1, "node_start"), (3, "check")]


def test_the_gap_is_in_the_home_that_the_call_names(publisher: LifecyclePublisher, memory: MemoryTransport) -> None:
    publisher.hit("k", TENANT, store="pool", tier="shared", request_id="r" * 1025)
    publisher.hit("k", TENANT, store="kv", tier="nvme", owner="gpu-2", request_id="r" * 1025)
    assert publisher.close(30)
    found = runs(decode(record for _, record in memory.records))
    missing = {home for (_, home), lane in found.items() if gaps(lane) == 1}
    assert missing == {shared_home("pool", "k"), "n:gpu-2"}


@pytest.mark.parametrize(
    "call",
    [
        lambda publisher: publisher.request_end("r" * 1025),
        lambda publisher: publisher.lookups([LookupCount(tenant_id="t" * 1025)]),
        lambda publisher: publisher.lookups([LookupCount(tenant_id="good"), LookupCount(tenant_id="kvtrail:x")]),
        lambda publisher: publisher.check("k", check="canary", result="odd", store="kv", tier="gpu"),
        lambda publisher: publisher.node_start(3),
    ],
)
def test_other_calls_no_event_can_hold_cost_no_number(
    publisher: LifecyclePublisher, memory: MemoryTransport, call: Any
) -> None:
    publisher.create("k", TENANT, store="kv", tier="nvme")
    call(publisher)
    publisher.create("k", TENANT, store="kv", tier="nvme")
    assert publisher.flush()
    assert sum(publisher.stats().refused.values()) == 1
    assert [event.seq for event in events(decode(record for _, record in memory.records))] == [1, 2, 3]


def test_a_publisher_whose_name_no_record_can_hold_ends(memory: MemoryTransport) -> None:
    publisher = LifecyclePublisher("\ud800", memory, FAST)
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    publisher.hit("k", TENANT, store="kv", tier="gpu", request_id="r" * 1025)
    assert publisher.close(30)
    assert memory.records == [] and publisher.stats().buffered == 0


def test_an_event_that_is_larger_than_a_record_may_be_is_counted() -> None:
    memory = MemoryTransport()
    with LifecyclePublisher("gpu-1", memory, PublisherConfig(linger_s=0.01, envelope_bytes=2048)) as publisher:
        publisher.create("k", TENANT, store="kv", tier="nvme", parts=["p" * 100] * 50)
        publisher.create("k", TENANT, store="kv", tier="nvme")
        assert publisher.flush()
        assert publisher.stats().refused == {"create.size": 1}
    assert [event.seq for event in events(decode(record for _, record in memory.records))] == [1, 3]


@pytest.mark.parametrize("wrong", [True, 7.0, [7]])
def test_a_count_of_another_type_is_refused_whatever_was_counted_before(
    publisher: LifecyclePublisher, wrong: Any
) -> None:
    for count in (1, 7, wrong):
        publisher.hit("k", TENANT, store="kv", tier="gpu", reused_tokens=count)
    assert publisher.flush()
    assert publisher.stats().refused == {"hit.reused_tokens": 1}


def test_a_missing_argument_reaches_the_count_and_not_the_engine(
    publisher: LifecyclePublisher, memory: MemoryTransport
) -> None:
    publisher.create("k", TENANT)  # type: ignore[call-arg]  # what an engine might do
    publisher.hit()  # type: ignore[call-arg]  # what an engine might do
    assert publisher.stats().refused == {"create.arguments": 1, "hit.arguments": 1}
    assert publisher.flush()
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    assert publisher.close(30)
    assert gaps(runs(decode(r for _, r in memory.records))[publisher.incarnation, "n:gpu-1"]) == 2


@pytest.mark.parametrize("name", ["create", "hit", "commit"])
def test_a_call_wakes_a_sender_that_sleeps(publisher: LifecyclePublisher, memory: MemoryTransport, name: str) -> None:
    until(lambda: publisher._buffer.alarm == 1, "the sender sleeps")
    getattr(publisher, name)("k", *([] if name == "commit" else [TENANT]), store="kv", tier="gpu")
    until(lambda: name in {event.type for event in events(decode(r for _, r in memory.records))}, "it is sent", 5)


def test_refusals_are_logged_once_a_kind_without_the_value(
    publisher: LifecyclePublisher, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        publisher.create("k", TENANT, store="kv", tier="secret-tier")  # type: ignore[arg-type]  # on purpose
        publisher.create("k", TENANT, store="kv", tier="gpu", tokens=-1)
    assert publisher.flush()
    said = [record.getMessage() for record in caplog.records if record.name == "kvtrail.producers"]
    assert len(said) == 2
    assert "secret-tier" not in "".join(said)


def test_what_goes_over_the_bound_is_dropped_and_shows_as_a_gap() -> None:
    memory = MemoryTransport(down=True)
    publisher = LifecyclePublisher("gpu-1", memory, PublisherConfig(max_events=10, linger_s=0))
    publisher.node_start()
    for n in range(9):
        publisher.hit(f"a{n}", TENANT, store="kv", tier="gpu")
    until(lambda: publisher._buffer.staged == 10, "the sender has taken all of them")
    for n in range(5):
        publisher.hit(f"b{n}", TENANT, store="kv", tier="gpu")
    publisher.hit("c", TENANT, store="kv", tier="gpu", owner="gpu-2")
    stats = publisher.stats()
    assert stats.dropped == {"full": 6}
    assert stats.accepted == stats.buffered + stats.lost == 10 + 6
    memory.down = False
    assert publisher.flush(30)
    publisher.hit("z", TENANT, store="kv", tier="gpu")
    assert publisher.close()
    batches = decode(record for _, record in memory.records)
    lanes = runs(batches)
    assert gaps(lanes[publisher.incarnation, "n:gpu-1"]) == 5
    assert gaps(lanes[publisher.incarnation, "n:gpu-2"]) == 1
    keys = [event.key for event in events(batches) if event.home == "n:gpu-1" and event.type == "hit"]
    assert keys == [*(f"a{n}" for n in range(9)), "z"]


def test_a_loss_at_the_end_of_a_lane_is_made_visible_by_a_heartbeat() -> None:
    memory = MemoryTransport(down=True)
    publisher = LifecyclePublisher("gpu-1", memory, PublisherConfig(max_events=2, linger_s=0))
    publisher.node_start()
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    until(lambda: publisher._buffer.staged == 2, "the sender has taken both")
    publisher.invalidate(store="pool", tier="shared", scope="store")
    memory.down = False
    assert publisher.close(30)
    batches = decode(record for _, record in memory.records)
    for home in shared_homes("pool"):
        assert runs(batches)[publisher.incarnation, home] == [(2, 2)]
    beats = [event for event in events(batches) if event.home.startswith("s:")]
    assert {(event.store, event.tier) for event in beats} == {("pool", "shared")}
    assert all(isinstance(event.body, Check) and event.body.check == "heartbeat" for event in beats)


def test_memory_is_bounded_while_nothing_can_be_sent() -> None:
    memory = MemoryTransport(down=True)
    publisher = LifecyclePublisher("gpu-1", memory, PublisherConfig(max_events=500, linger_s=0))

    def work() -> None:
        for n in range(2000):
            publisher.hit(str(n), TENANT, store="pool", tier="shared")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = publisher.stats()
    # node_start, and what four threads may be past the check at one moment
    assert stats.buffered <= 500 + 1 + 4
    until(lambda: publisher.stats().accepted == 8001, "the books agree: the sender is not moving events just then")
    assert len(publisher._buffer.queue) <= 2 * 505
    assert not publisher.close(0)
    stats = publisher.stats()
    assert stats.buffered == 0 and stats.accepted == stats.lost == 8001
    assert set(stats.dropped) == {"full", "closed"}


def test_after_close_calls_are_counted_and_harmless(memory: MemoryTransport) -> None:
    publisher = LifecyclePublisher("gpu-1", memory, FAST)
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    assert publisher.close()
    assert publisher.close()
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    assert publisher.flush()
    stats = publisher.stats()
    assert (stats.sent, stats.buffered, stats.dropped) == (2, 0, {"closed": 1})


def test_closing_without_an_event_sends_nothing(memory: MemoryTransport) -> None:
    assert LifecyclePublisher("gpu-1", memory, FAST).close()
    assert memory.records == []


class Picky(MemoryTransport):
    """Takes no record of one home."""

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        if home == "n:gpu-2":
            raise RecordRejected("is too large.", reason="too_large")
        await super().send(home, record, first, last)


def test_a_record_that_is_never_taken_is_dropped_counted_and_holds_nothing_up() -> None:
    memory = Picky()
    publisher = LifecyclePublisher("gpu-1", memory, FAST)
    publisher.hit("k", TENANT, store="kv", tier="gpu", owner="gpu-2")
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    assert publisher.flush()
    stats = publisher.stats()
    assert stats.dropped == {"rejected": 1}
    assert stats.sent == 2 and stats.last_error == "too_large"
    assert publisher.close()


class Bumpy(MemoryTransport):
    """Fails every other attempt, sometimes after the record was taken."""

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        self.down = self.attempts % 2 == 0
        await super().send(home, record, first, last)
        if self.attempts % 3 == 0:
            raise ConnectionError


def test_failures_change_neither_order_nor_content() -> None:
    memory = Bumpy()
    publisher = LifecyclePublisher("gpu-1", memory, PublisherConfig(linger_s=0, envelope_events=8))
    for n in range(40):
        publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu")
    assert publisher.close(60)
    first: list[bytes] = []
    for _, record in memory.records:
        if record not in first:
            first.append(record)
    assert [event.seq for event in events(decode(first))] == list(range(1, 42))
    assert publisher.stats().failures > 0 and publisher.stats().last_error == ""


def test_records_stay_within_their_limits() -> None:
    memory = MemoryTransport()
    config = PublisherConfig(linger_s=0.02, envelope_events=50, envelope_bytes=4096)
    with LifecyclePublisher("gpu-1", memory, config) as publisher:
        for n in range(200):
            publisher.hit(f"{n:x}" * 100, TENANT, store="kv", tier="gpu")
    batches = decode(record for _, record in memory.records)
    assert max(len(record) for _, record in memory.records) <= 4096
    assert max(len(batch.events) for batch in batches) <= 50
    assert [event.seq for event in events(batches)] == list(range(1, 202))


def test_a_publisher_needs_a_name(memory: MemoryTransport) -> None:
    with pytest.raises(ConfigError, match="node"):
        LifecyclePublisher("", memory)


def test_incarnations_sort_by_time_and_differ() -> None:
    made = [new_incarnation() for _ in range(50)]
    assert len(set(made)) == 50
    assert [name[:11] for name in made] == sorted(name[:11] for name in made)


def test_a_snapshot_can_be_put_on_a_page_for_prometheus(memory: MemoryTransport) -> None:
    publisher = LifecyclePublisher('gpu-1 "a"', memory)
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    publisher.request_end("r", colour="blue")  # type: ignore[call-arg]  # refused
    assert publisher.flush()
    text = metrics(publisher.stats())
    assert 'kvtrail_publisher_sent_events_total{node="gpu-1 \\"a\\""} 2\n' in text
    assert 'kvtrail_publisher_refused_calls_total{node="gpu-1 \\"a\\"",field="request_end.arguments"} 1\n' in text
    assert all(line.startswith(("# ", "kvtrail_publisher_")) for line in text.splitlines())
    publisher.close()
