"""The heartbeat's events and the watch over their finding, without a broker."""

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.homes import partition_of
from kvtrail.schemas.paging import HeartbeatConfig
from kvtrail.schemas.reserved import HEARTBEAT_NODE, is_own
from kvtrail.streams.heartbeat import beat
from kvtrail.streams.heartbeat_watch import HeartbeatWatch

S = 1_000_000
PARTITIONS = 5


def judged(beats: int) -> tuple[Judge, list[Finding]]:
    """What a judge makes of some heartbeats."""
    transport = MemoryTransport()
    with LifecyclePublisher(HEARTBEAT_NODE, transport) as publisher:
        for number in range(beats):
            beat(publisher, PARTITIONS, f"beat-{number}")
        assert publisher.flush(10)
        assert not publisher.stats().refused
    judge, decoder = Judge(JudgingConfig(), "test", FactBook()), EnvelopeDecoder()
    found: list[Finding] = []
    for number, (_, raw) in enumerate(transport.records):
        batch = decoder.decode(raw)
        assert not batch.rejects
        found += judge.batch(batch, number)
    return judge, found


def test_every_beat_is_one_critical_finding_in_each_partition_and_nothing_else() -> None:
    judge, found = judged(3)
    assert {(one.cause, one.severity, one.status) for one in found} == {("CROSS_TENANT_REUSE", "critical", "open")}
    assert sorted(partition_of(one.home, PARTITIONS) for one in found) == sorted([*range(PARTITIONS)] * 3)
    assert all(is_own(one) for one in found)
    stats = judge.stats()
    assert stats["compared"] == 0 and stats["coverage"] == {}, "kvtrail's own hits are nobody's coverage"
    assert stats["live"] == stats["held"] == 0, "nothing is left of a beat"
    assert not judge.revisions.standing


def test_silence_is_noticed_by_partition_and_ends() -> None:
    _, found = judged(1)
    by_partition = {partition_of(one.home, PARTITIONS): one for one in found}
    watch = HeartbeatWatch(HeartbeatConfig(every_s=30, deadline_s=120), PARTITIONS, since_us=0)
    assert watch.silent(120 * S) == []
    assert watch.silent(121 * S) == [*range(PARTITIONS)], "also what never came"
    for partition, one in by_partition.items():
        assert watch.seen(one, one.event_time_us + 2 * S) == pytest.approx(2)
        watch.last[partition] = 100 * S
    watch.last[3] = 10 * S
    assert watch.silent(200 * S) == [3]
    incident = watch.incident("test", [3])
    assert (incident.findings, incident.severity, incident.last_us) == (1, "critical", 10 * S)
    watch.seen(by_partition[3], 200 * S)
    watch.seen(by_partition[3], 50 * S)
    assert watch.silent(210 * S) == [], "an older one that comes late changes nothing"


def test_where_it_is_off_nothing_is_awaited() -> None:
    watch = HeartbeatWatch(HeartbeatConfig(enabled=False), PARTITIONS, since_us=0)
    assert watch.silent(10**9 * S) == []
