"""Every named query, on the real engine, over a history whose answers are known."""

import re
from collections.abc import Iterator

import pytest
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.events import EVENT_TYPES, Event
from kvtrail.store import queries as q
from kvtrail.store.client import Client, connect
from kvtrail.store.results import StoredEvent
from kvtrail.store.rows import Record, Source, dead_letter_rows, fact_rows, finding_rows, record_rows
from msgspec.structs import replace

from .samples import (
    NONSENSE,
    TOPIC,
    decoded,
    example_events,
    facts,
    finding,
    letter,
    many,
    record,
    refused_record,
)

pytestmark = pytest.mark.engine


class Seeded:
    """A database with the example history, and what was put into it."""

    def __init__(self, config: ClickHouseConfig) -> None:
        self.client = connect(config)
        self.events = example_events()
        self.by_type = {event.type: event for event in self.events}
        self.hit, self.create = self.by_type["hit"], self.by_type["create"]
        last = self.events[-1].time_us
        self.bad = refused_record(3, last)
        again = record(self.events[5:], 2)
        self.records = [
            record(self.events[:5], 0),
            record(self.events[5:], 1),
            # Twice sent by its producer: kept as evidence, its events dropped.
            Record(again.source, again.raw, again.batch, frozenset(event.seq for event in self.events[5:])),
            self.bad,
        ]
        self.client.insert(*record_rows(self.records), token=f"{TOPIC}/0/0-3")
        at = Source("kvtrail.findings", 0, 0, last)
        self.first, self.second = finding(self.hit, self.create), finding(self.hit, self.create, revision=2)
        self.client.insert(*finding_rows([(at, self.first), (at, self.first)]), token="f/0/0-1")
        self.client.insert(*finding_rows([(at, self.second)]), token="f/0/2-2")
        self.letter = letter(self.bad)
        self.client.insert(*dead_letter_rows([(at, self.letter)] * 2), token="d/0/0-1")
        self.client.insert(*fact_rows([(at, fact) for fact in facts()]), token="facts/0/0-1")


@pytest.fixture
def seeded(database: ClickHouseConfig) -> Iterator[Seeded]:
    seeded = Seeded(database)
    yield seeded
    seeded.client.close()


def ids(events: list[StoredEvent]) -> list[str]:
    return [stored.event.id for stored in events]


def test_events_come_back_equal_with_their_proof(seeded: Seeded) -> None:
    wanted = sorted(seeded.events, key=lambda event: event.time_us)
    found = q.EVENTS_BY_ID.run(seeded.client, ids=[event.id for event in seeded.events])
    assert [stored.event for stored in found] == wanted
    for stored in found:
        evidence = q.RECORD.run(seeded.client, topic=stored.topic, partition=stored.partition, offset=stored.offset)
        assert len(evidence) == 1
        carrier = seeded.records[stored.offset]
        assert decoded(evidence[0].raw_base64) == carrier.raw
        assert carrier.batch.events[stored.index] == stored.event
        assert stored.append_us == carrier.source.append_us


def test_by_request_key_trace_and_finding(seeded: Seeded) -> None:
    client = seeded.client
    of_request = [e.id for e in seeded.events if e.request_id == "req-2044"]
    assert ids(q.EVENTS_BY_REQUEST.run(client, request_id="req-2044")) == of_request
    assert ids(q.EVENTS_BY_REQUEST.run(client, request_id="nobody")) == []
    of_key = [e.id for e in sorted(seeded.events, key=lambda e: e.time_us) if e.key == seeded.hit.key]
    assert ids(q.EVENTS_BY_KEY.run(client, key=seeded.hit.key)) == of_key
    assert ids(q.EVENTS_BY_KEY.run(client, key=seeded.hit.key, store="other")) == []
    assert ids(q.EVENTS_BY_KEY.run(client, key=seeded.hit.key, since_us=seeded.hit.time_us)) == [
        e.id for e in seeded.events if e.key == seeded.hit.key and e.time_us >= seeded.hit.time_us
    ]
    assert ids(q.EVENTS_BY_TRACE.run(client, trace_id=seeded.create.trace_id)) == [seeded.create.id]
    assert ids(q.EVENTS_OF_FINDING.run(client, finding_id=seeded.first.id)) == [seeded.create.id, seeded.hit.id]
    assert ids(q.INSTANCE_HISTORY.run(client, key=seeded.hit.key, store="kv-nvme", home=seeded.hit.home)) == of_key
    assert ids(q.INSTANCE_HISTORY.run(client, key=seeded.hit.key, store="kv-nvme", rank=1)) == []


def test_barriers_and_late_identities(seeded: Seeded) -> None:
    assert ids(q.BARRIERS.run(seeded.client, home="n:node-a")) == [
        seeded.by_type["node_start"].id,
        seeded.by_type["invalidate"].id,
    ]
    resolve = seeded.by_type["resolve"]
    assert resolve.identity is not None
    assert q.RESOLUTIONS.run(seeded.client, ids=[seeded.hit.id]) == [(seeded.hit.id, resolve.identity.to_wire())]


def test_tail_is_newest_first(seeded: Seeded) -> None:
    tail = q.EVENT_TAIL.run(seeded.client, limit=3)
    assert ids(tail) == [event.id for event in reversed(seeded.events[-3:])]
    assert ids(q.EVENT_TAIL.run(seeded.client, type="hit")) == [seeded.hit.id]
    assert ids(q.EVENT_TAIL.run(seeded.client, tenant_id="northwind", type="create")) == [seeded.create.id]
    assert q.EVENT_TAIL.run(seeded.client, after_us=tail[0].append_us) == []


def test_current_finding_is_its_newest_revision(seeded: Seeded) -> None:
    client = seeded.client
    assert q.FINDINGS_CURRENT.run(client) == [seeded.second]
    assert q.FINDINGS_CURRENT.run(client, min_rank=Severity.CRITICAL.rank, cause=seeded.first.cause) == [seeded.second]
    assert q.FINDINGS_CURRENT.run(client, cause="OTHER") == []
    assert q.FINDINGS_CURRENT.run(client, tenant_id="northwind") == [seeded.second]
    assert q.FINDINGS_CURRENT.run(client, tenant_id="fabrikam") == []
    assert q.FINDINGS_CURRENT.run(client, since_us=seeded.hit.time_us + 1) == []
    assert q.FINDING_REVISIONS.run(client, finding_id=seeded.first.id) == [seeded.first, seeded.second]
    assert q.FINDINGS_BY_REQUEST.run(client, request_id="req-2044") == [seeded.second]
    assert q.FINDINGS_BY_REQUEST.run(client, request_id="req-1001") == [seeded.second]
    assert q.FINDINGS_BY_KEY.run(client, key=seeded.hit.key) == [seeded.second]


def test_a_retracted_finding_is_not_open(seeded: Seeded) -> None:
    retracted = replace(seeded.second, revision=3, status="retracted", reason="it was the same tenant")
    at = Source("kvtrail.findings", 0, 3, seeded.hit.time_us)
    seeded.client.insert(*finding_rows([(at, retracted)]), token="f/0/3-3")
    assert q.FINDINGS_CURRENT.run(seeded.client) == []
    assert q.FINDINGS_CURRENT.run(seeded.client, status="") == [retracted]
    assert q.INCIDENTS.run(seeded.client) == []
    assert q.FINDINGS_BY_REQUEST.run(seeded.client, request_id="req-2044") == [retracted]


def test_incident_and_blast_radius(seeded: Seeded) -> None:
    (incident,) = q.INCIDENTS.run(seeded.client)
    assert (incident.cause_id, incident.findings, incident.keys, incident.requests) == (seeded.first.cause_id, 1, 1, 1)
    assert (incident.creator_tenants, incident.requester_tenants) == (("northwind",), ("contoso",))
    assert (incident.severity, incident.dimension, incident.example) == ("critical", "tenant_id", seeded.first.id)
    assert incident.incomplete == 0
    (touched,) = q.INCIDENT_REQUESTS.run(seeded.client, cause_id=incident.cause_id)
    assert (touched.request_id, touched.tenant_id, touched.creator_tenant) == ("req-2044", "contoso", "northwind")
    radius = {(row.tenant_id, row.type): row for row in q.BLAST_RADIUS.run(seeded.client, key=seeded.hit.key)}
    assert radius["contoso", "hit"].reused_tokens == 8992
    assert radius["contoso", "hit"].request_ids == ("req-2044",)
    assert radius["northwind", "create"].events == 1
    (provenance,) = q.PROVENANCE.run(seeded.client, key=seeded.hit.key)
    assert (provenance.creates, provenance.hits, provenance.expiries, provenance.invalidations) == (1, 1, 1, 1)
    assert (provenance.creators, provenance.readers) == (("northwind",), ("contoso",))
    assert provenance.first_creator["request_id"] == "req-1001"
    assert provenance.last_creator["time_us"] == seeded.create.time_us


def test_rates_lags_and_coverage(seeded: Seeded) -> None:
    since, until = seeded.events[0].time_us - 60_000_000, seeded.events[-1].time_us
    rates = q.RATES.run(seeded.client, since_us=since, until_us=until)
    assert sum(rate.events for rate in rates) == len(seeded.events)
    assert {rate.type for rate in rates} == set(EVENT_TYPES)
    (contoso, northwind) = q.HIT_RATES.run(seeded.client, since_us=since, until_us=until)
    assert (contoso.tenant_id, contoso.hit, contoso.miss, contoso.bypassed) == ("contoso", 7, 2, 1)
    assert (northwind.hit, northwind.partial, northwind.miss) == (41, 3, 9)
    (lag,) = q.INGESTION_LAG.run(seeded.client)
    assert (lag.topic, lag.partition, lag.last_offset, lag.records) == (TOPIC, 0, 3, 4)
    (latency,) = q.PUBLISH_TO_QUERYABLE.run(seeded.client)
    assert latency.events == len(seeded.events)
    assert latency.p50_ms <= latency.p99_ms <= latency.worst_ms
    (none,) = q.PUBLISH_TO_QUERYABLE.run(seeded.client, after_us=until + 10**12)
    assert (none.events, none.p99_ms) == (0, 0)
    coverage = {row.dimension: row for row in q.COVERAGE.run(seeded.client)}
    assert (coverage["template_digest"].hits, coverage["template_digest"].known_hits) == (1, 1)
    assert (coverage["tool_schema_digest"].creates, coverage["tool_schema_digest"].known_creates) == (1, 1)
    (tells,) = q.TELLS.run(seeded.client)
    counted = [
        sum(event.type == type_ for event in seeded.events) for type_ in ("create", "hit", "expire", "node_start")
    ]
    assert [tells["create"], tells["hit"], tells["expire"], tells["node_start"]] == counted
    assert tells["semantic"] == sum(getattr(event.body, "match_mode", "") == "semantic" for event in seeded.events)
    assert (tells["k:media"], tells["nodes"]) == (0, 0)
    assert tells["created_payload"] > 0
    assert all(count > 0 for _, count in q.RESOLVED_DIMENSIONS.run(seeded.client))
    assert sum(count for _, count in q.FACT_COUNTS.run(seeded.client)) == len({fact.id for fact in facts()})


def test_what_the_sink_asks_after_a_restart(seeded: Seeded) -> None:
    client = seeded.client
    (lane,) = q.LANE_INTERVALS.run(client, topic=TOPIC, partition=0)
    assert (lane.node, lane.incarnation, lane.home, lane.first, lane.last) == ("node-a", "6f1c2a9e", "n:node-a", 1, 10)
    (below,) = q.LANE_INTERVALS.run(client, topic=TOPIC, partition=0, before_offset=1)
    assert (below.first, below.last) == (1, 5)
    assert q.LANE_INTERVALS.run(client, topic=TOPIC, partition=1) == []
    (stored,) = q.STORED_UNTIL.run(client, topic=TOPIC, partition=0)
    assert (stored.last_offset, stored.records, stored.events) == (3, 4, 10)
    (empty,) = q.STORED_UNTIL.run(client, topic=TOPIC, partition=7)
    assert (empty.last_offset, empty.records) == (-1, 0)
    assert q.DUPLICATES.run(client) == []
    assert q.BATCH_GAPS.run(client) == []


def test_intervals_keep_holes_and_join_what_touches(seeded: Seeded) -> None:
    def run(offset: int, first: int, count: int) -> None:
        hit = replace(seeded.hit, incarnation="later")
        rows = record_rows([record(many(hit, count, first=first), offset, partition=5)])
        seeded.client.insert(*rows, token=f"{TOPIC}/5/{offset}-{offset}")

    run(10, 1, 4)  # 1..4
    run(11, 20, 3)  # 20..22, a hole before it
    run(12, 5, 2)  # 5..6, late, touches the first
    run(13, 21, 1)  # inside the second, sent twice
    run(15, 8, 2)  # 8..9, and a batch is missing before it
    lanes = q.LANE_INTERVALS.run(seeded.client, topic=TOPIC, partition=5)
    assert [(lane.first, lane.last) for lane in lanes] == [(1, 6), (8, 9), (20, 22)]
    assert [(d.id, d.copies) for d in q.DUPLICATES.run(seeded.client)] == [("node-a/later/n:node-a/21", 2)]
    gaps = [gap for gap in q.BATCH_GAPS.run(seeded.client) if gap.partition == 5]
    assert [(gap.after, gap.before) for gap in gaps] == [(13, 15)]


def test_refusals_and_facts(seeded: Seeded) -> None:
    (refusals,) = q.DEAD_LETTER_COUNTS.run(seeded.client)
    assert (refusals.code, refusals.stage, refusals.letters) == ("undecodable_record", "decode", 1)
    (kept,) = q.DEAD_LETTERS.run(seeded.client)
    assert kept == seeded.letter
    assert kept.raw == NONSENSE
    assert q.FACTS.run(seeded.client) == facts()


def test_parameters_are_checked_and_bound(seeded: Seeded) -> None:
    with pytest.raises(TypeError, match="request_id"):
        q.EVENTS_BY_REQUEST.run(seeded.client)
    with pytest.raises(TypeError, match="nonsense"):
        q.EVENTS_BY_REQUEST.run(seeded.client, request_id="r", nonsense=1)
    for hostile in ("' OR 1 = 1 --", "\\", "\t\n\x00", "{key:String}", "ü" * 9000):
        assert q.EVENTS_BY_REQUEST.run(seeded.client, request_id=hostile) == []
    many_ids = [seeded.hit.id] + [f"node/{n}/n:node/{n}" for n in range(20_000)]
    assert ids(q.EVENTS_BY_ID.run(seeded.client, ids=many_ids)) == [seeded.hit.id]


def test_every_query_is_named_and_runs_on_an_empty_store(database: ClickHouseConfig) -> None:
    names = [query.name for query in q.QUERIES]
    assert len(set(names)) == len(names) >= 25
    samples = {"String": "x", "Array(String)": ["x"]}
    with connect(database) as client:
        for query in q.QUERIES:
            kinds = dict(re.findall(r"\{(\w+):([^}]+)\}", query.sql))
            params = {name: samples.get(kinds[name], 0) for name in query.parameters - query.defaults.keys()}
            assert isinstance(query.run(client, **params), list), query.name


def granules(client: Client, sql: str, params: dict[str, object]) -> tuple[int, int]:
    """Granules of `events` that are read, of how many, by EXPLAIN."""
    settings = {"use_query_condition_cache": 0}
    lines = [str(row["explain"]) for row in client.query(f"EXPLAIN indexes = 1 {sql}", params, settings)]
    last = [re.search(r"Granules: (\d+)/(\d+)", line) for line in lines]
    found = [match for match in last if match]
    return int(found[-1][1]), int(found[0][2])


@pytest.fixture(scope="module")
def large(engine: ClickHouseConfig) -> Iterator[tuple[Client, Event]]:
    """Enough events for forty granules."""
    from kvtrail.schemas.config import Config
    from kvtrail.store.migrate import migrate

    config = engine.model_copy(update={"database": "t_large"})
    client = connect(config)
    migrate(client, Config(clickhouse=config))
    hit = next(event for event in example_events() if event.type == "hit")
    client.insert(*record_rows([record(many(hit, 1000), 0)]), token="large/0")
    copied = "node, incarnation, home, store, tier, key_origin, kind, type, identity, body, outcome"
    client.command(
        f"""INSERT INTO events_in (record, k_topic, k_partition, k_offset, k_index, append_time, seq, event_time,
          tenant_id, request_id, key, trace_id, {copied})
        SELECT 0, '{TOPIC}', 1, 100 + intDiv(number, 1000), number % 1000, now64(6), 5000 + number,
          now64(6) - toIntervalSecond(number), concat('tenant-', toString(number % 7)), concat('q-', toString(number)),
          concat('k-', toString(number)), concat('t-', toString(number)), {copied}
        FROM numbers(330000) AS n CROSS JOIN (SELECT * FROM events LIMIT 1) AS e""",
        settings={"insert_deduplication_token": "large/1", "max_insert_threads": 1},
    )
    yield client, hit
    client.command("DROP DATABASE t_large SYNC", in_database=False)
    client.close()


@pytest.mark.parametrize(
    ("query", "params"),
    [
        (q.EVENTS_BY_REQUEST, {"request_id": "q-77777"}),
        (q.EVENTS_BY_TRACE, {"trace_id": "t-77777"}),
        (q.EVENTS_BY_KEY, {"key": "k-77777"}),
        (q.INSTANCE_HISTORY, {"key": "k-77777", "store": "kv-nvme"}),
        (q.BLAST_RADIUS, {"key": "k-77777"}),
        (q.EVENTS_BY_ID, {"ids": ["node-a/6f1c2a9e/n:node-a/82777"]}),
    ],
    ids=lambda value: value.name if isinstance(value, q.Query) else "",
)
def test_lookups_by_id_read_few_granules(
    large: tuple[Client, Event], query: "q.Query[object]", params: dict[str, object]
) -> None:
    client, _ = large
    assert len(query.run(client, **params)) == 1
    read, total = granules(client, query.sql, {**query.defaults, **params})
    assert total >= 40
    assert read <= 3


def test_a_finding_leads_to_its_events_without_a_scan(large: tuple[Client, Event]) -> None:
    client, hit = large
    subject = "node-a/6f1c2a9e/n:node-a/82777"
    create = next(event for event in example_events() if event.type == "create")
    about = replace(finding(hit, create), subject=subject, evidence=(), creator=None, requester=None)
    client.insert(*finding_rows([(Source("f", 0, 0, hit.time_us), about)]), token="large/f")
    assert [e.event.id for e in q.EVENTS_OF_FINDING.run(client, finding_id=about.id)] == [subject]
    read, total = granules(client, q.EVENTS_OF_FINDING.sql, {"finding_id": about.id})
    assert total >= 40
    assert read <= 3


def test_a_day_of_a_tenant_reads_few_granules(large: tuple[Client, Event]) -> None:
    client, _ = large
    sql = "SELECT count() FROM events WHERE tenant_id = {t:String} AND event_time >= now64(6) - toIntervalHour(1)"
    read, total = granules(client, sql, {"t": "tenant-3"})
    assert total >= 40
    assert read <= 3


def test_lookups_are_grouped_as_asked_and_say_what_they_lack(seeded: Seeded) -> None:
    client, lookups = seeded.client, seeded.by_type["lookups"]
    window = {"since_us": lookups.time_us, "until_us": lookups.time_us}
    (total,) = q.LOOKUPS.run(client, **window)
    assert (total.hit, total.partial, total.miss, total.bypassed, total.tenant) == (48, 3, 11, 1, "")
    northwind, contoso = q.LOOKUPS.run(client, by_tenant=1, by_tier=1, **window)
    assert (northwind.tenant, northwind.tier_name, northwind.hit, northwind.miss) == ("northwind", "nvme", 41, 9)
    assert (contoso.tenant, contoso.hit, contoso.bypassed, contoso.model) == ("contoso", 7, 1, "")
    assert q.LOOKUPS.run(client, since_us=window["since_us"] + 120_000_000, until_us=2**62) == []

    def lacking(since_us: int = 0) -> tuple[int, ...]:
        (found,) = q.LOOKUPS_UNACCOUNTED.run(client, since_us=since_us)
        return found.missing, found.lanes, found.refused, found.quiet_nodes

    assert lacking() == (0, 0, 0, 0)
    # A node that lost 1, 2 and 5 to 9, which had a record of its fourth event twice, and reports no lookups.
    lossy = [replace(e, node="lossy", home="n:lossy") for e in many(seeded.hit, 12)]
    runs = [lossy[2:4], lossy[9:11], lossy[3:4]]
    client.insert(*record_rows([record(run, 10 + n) for n, run in enumerate(runs)]), token="lossy")
    # What fills a gap may come later and in another record.
    assert lacking() == (7, 1, 0, 1)
    client.insert(*record_rows([record(lossy[4:9], 20)]), token="filled")
    assert lacking() == (2, 1, 0, 1)
    assert lacking(2**61) == (0, 0, 0, 0)
