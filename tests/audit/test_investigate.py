"""Investigations on the real engine: from an id to the whole history, and clear answers where there is none."""

from collections.abc import Iterator
from typing import Literal

import pytest
from kvtrail.audit import investigate
from kvtrail.audit.archive import AmbiguousQuestion, NothingFound, Wanted
from kvtrail.audit.document import history_document
from kvtrail.audit.history import History, Question, build_history
from kvtrail.audit.render import render_history, render_table
from kvtrail.audit.stored import StoredArchive
from kvtrail.audit.verdict import Outcome, reach_verdict
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.dead_letters import dead_letter
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.errors import StoreUnavailable, UndecodableRecord
from kvtrail.schemas.events import Create, Expire, Hit, Invalidate, NodeStart, Resolve
from kvtrail.schemas.topics import FINDINGS, LIFECYCLE
from kvtrail.store.client import Client, connect
from kvtrail.store.rows import Record, Source, finding_rows, record_rows
from msgspec.structs import replace

from .samples import (
    CONTOSO,
    CREATE,
    FINDING,
    INCIDENT,
    KEY,
    NORTHWIND,
    OWN_HIT,
    STORE,
    WRONG_HIT,
    at,
    event,
    finding,
    identity,
    renamed,
)
from .seeding import put

pytestmark = pytest.mark.engine


@pytest.fixture
def client(database: ClickHouseConfig) -> Iterator[Client]:
    with connect(database) as client:
        yield client


@pytest.fixture
def archive(database: ClickHouseConfig) -> StoredArchive:
    return StoredArchive(lambda: connect(database))


def ask(archive: StoredArchive, kind: Literal["request", "key", "finding"], value: str, store: str = "") -> History:
    return archive.investigate(Question(kind=kind, value=value, store=store))


def test_by_request_key_and_finding_as_from_memory(client: Client, archive: StoredArchive) -> None:
    put(client, INCIDENT, [FINDING])
    for question in (
        Question(kind="request", value="req-3"),
        Question(kind="key", value=KEY),
        Question(kind="key", value=KEY, store=STORE),
        Question(kind="finding", value=FINDING.id),
    ):
        told = archive.investigate(question)
        assert told == build_history(question, INCIDENT, [FINDING])
        assert "created by northwind: key does not cover tenant, template digest, token ids" in render_history(told)


def test_a_request_without_findings_is_cleared_from_the_store(client: Client, archive: StoredArchive) -> None:
    put(client, [CREATE, OWN_HIT])
    assert reach_verdict(ask(archive, "request", "req-2")).outcome is Outcome.CLEARED


def test_revisions_and_retractions_come_from_the_store(client: Client, archive: StoredArchive) -> None:
    put(client, INCIDENT, [FINDING])
    assert ask(archive, "request", "req-3").incidents != ()
    put(client, [], [replace(FINDING, revision=2, status="retracted", reason="policy allows it")], offset=100)
    told = ask(archive, "request", "req-3")
    assert [one.status for one in told.findings] == ["retracted"] and told.incidents == ()


def test_blast_radius_counts_all_of_the_cause(client: Client, archive: StoredArchive) -> None:
    creates = [event(10 + n, "13:00:00", Create(tokens=5), NORTHWIND, key=f"support_v{n}:m1") for n in range(3)]
    hits = [
        event(20 + n, "13:00:01", Hit(reused_tokens=5), identity(f"t{n}"), key=f"support_v{n}:m1") for n in range(3)
    ]
    others = [finding(create, hit) for create, hit in zip(creates, hits, strict=True)]
    put(client, [*INCIDENT, *creates, *hits], [FINDING, *others])
    (incident,) = ask(archive, "request", "req-3").incidents
    assert (incident.findings, incident.requests, incident.entries, incident.tenant_count) == (4, 4, 4, 5)
    assert incident.tenants == ("contoso", "t0", "t1", "t2") and incident.owners == ("northwind",)
    assert incident.sentence == "this key does not cover tenant: 4 hits, 5 tenants"
    assert {key for _, key in incident.keys} == {KEY, *(create.key for create in creates)}
    assert incident == archive.incidents(Wanted(cause_id=FINDING.cause_id))[0]


def test_restarts_and_sweeps_belong_to_the_history(client: Client, archive: StoredArchive) -> None:
    boot = event(1, "12:00:00", NodeStart(), None, key="", store="", request_id="")
    create = renamed(CREATE, seq=2)
    sweep = event(3, "12:05:00", Invalidate(scope="node", cause="rollout"), None, key="", request_id="")
    elsewhere = event(1, "12:05:00", NodeStart(), None, key="", store="", home="n:n2", node="n2", request_id="")
    hit = event(4, "12:06:00", Hit(), NORTHWIND)
    put(client, [boot, create, sweep, hit, elsewhere])
    assert [row.event.type for row in ask(archive, "request", "req-4").rows] == ["create", "invalidate", "hit"]


def test_an_identity_that_came_later_is_joined(client: Client, archive: StoredArchive) -> None:
    nameless = renamed(WRONG_HIT, identity=None)
    late = event(4, "14:21:00", Resolve(event_id=WRONG_HIT.id), CONTOSO, key="", store="", request_id="req-3")
    put(client, [CREATE, OWN_HIT, nameless, late])
    assert ask(archive, "key", KEY).rows[-1].event.identity == CONTOSO


def test_a_gap_or_a_refusal_beside_it_is_told(client: Client, archive: StoredArchive) -> None:
    gap = replace(finding(CREATE, WRONG_HIT), id="0" * 32, subject="lane", cause="STREAM_GAP", creator=None,
                  requester=None, key="", store="", title="3 event(s) missing: 4-6", severity=Severity.MEDIUM,
                  cause_id="gap", evidence=(), differing=())  # fmt: skip
    letter = dead_letter(UndecodableRecord("is not JSON."), b"x", topic=LIFECYCLE, partition=0, offset=7,
                         stage="decode", at_us=at("12:30:00"), lane=("n1", "i1", "n:n1"))  # fmt: skip
    put(client, [CREATE, OWN_HIT], [gap], [letter])
    told = ask(archive, "request", "req-2")
    assert any("3 event(s) missing: 4-6" in line for line in told.unseen)
    assert any("1 refused records or events of n:n1" in line for line in told.unseen)
    assert reach_verdict(told).outcome is Outcome.UNKNOWN


def test_a_busy_key_is_read_in_part_and_its_creates_in_full(
    client: Client, archive: StoredArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(investigate, "EVENTS_A_KEY", 50)
    busy = [event(10 + n, "12:05:00", Hit(), NORTHWIND) for n in range(200)]
    end = event(300, "14:00:00", Expire(reason="ttl"), NORTHWIND)
    again = event(301, "14:10:00", Create(tokens=7), NORTHWIND)
    wrong = renamed(WRONG_HIT, seq=302)
    put(client, [CREATE, *busy, end, again, wrong], [finding(again, wrong)])
    told = ask(archive, "request", "req-3")
    assert {CREATE.id, end.id, again.id, wrong.id} <= {row.event.id for row in told.rows}
    assert len(told.rows) < 100 and told.rows[-1].asked
    assert told.rows[-1].creator is not None and told.rows[-1].creator.event_id == again.id


def test_unknown_ids_say_what_was_searched(client: Client, archive: StoredArchive) -> None:
    with pytest.raises(NothingFound, match="The store is empty"):
        ask(archive, "request", "nobody")
    put(client, INCIDENT, [FINDING])
    for kind, hint in (("request", "trace id"), ("key", "none begins like it"), ("finding", "kvtrail findings")):
        with pytest.raises(NothingFound, match=hint) as raised:
            ask(archive, kind, "nobody")  # type: ignore[arg-type]
        assert "newest event stored is of 2026-11-29 14:20:09 UTC" in str(raised.value)
    with pytest.raises(NothingFound, match="in this store"):
        ask(archive, "key", KEY, store="elsewhere")


def test_a_beginning_is_enough_where_it_is_unambiguous(client: Client, archive: StoredArchive) -> None:
    put(client, INCIDENT, [FINDING])
    assert ask(archive, "key", KEY[:8]).question.value == KEY
    assert ask(archive, "finding", FINDING.id[:8]).question.value == FINDING.id
    put(client, [event(50 + n, "15:00:00", Create(), NORTHWIND, key=f"{KEY[:12]}{n}") for n in range(12)], offset=100)
    with pytest.raises(AmbiguousQuestion) as raised:
        ask(archive, "key", KEY[:8])
    assert len(raised.value.candidates) == 10 and raised.value.more
    assert all(one.value.startswith(KEY[:8]) and one.store == STORE for one in raised.value.candidates)
    assert ask(archive, "key", KEY).question.value == KEY


def test_a_trace_id_leads_to_its_requests(client: Client, archive: StoredArchive) -> None:
    put(client, [renamed(CREATE, trace_id="trace-9"), OWN_HIT])
    with pytest.raises(AmbiguousQuestion, match="trace id") as raised:
        ask(archive, "request", "trace-9")
    assert raised.value.candidates == (Question(kind="request", value="req-1"),)
    assert archive.look_up("trace-9") == Question(kind="request", value="req-1")


def test_search_understands_every_kind_of_id(client: Client, archive: StoredArchive) -> None:
    put(client, INCIDENT, [FINDING])
    assert archive.look_up("req-3") == Question(kind="request", value="req-3")
    assert archive.look_up(FINDING.id) == Question(kind="finding", value=FINDING.id)
    assert archive.look_up(FINDING.id[:6]) == Question(kind="finding", value=FINDING.id)
    assert archive.look_up(KEY) == Question(kind="key", value=KEY)
    assert archive.look_up(KEY[:9]).value == KEY
    for nothing in ("nobody", "%", "'; DROP TABLE events --", "\x00"):
        with pytest.raises(NothingFound):
            archive.look_up(nothing)
    put(client, [event(60, "15:00:00", Create(), NORTHWIND, key="req-3")], offset=100)
    with pytest.raises(AmbiguousQuestion) as raised:
        archive.look_up("req-3")
    assert [one.kind for one in raised.value.candidates] == ["request", "key"]


def test_lists_are_loudest_first_and_filtered(client: Client, archive: StoredArchive) -> None:
    mild = finding(CREATE, OWN_HIT, cause="TEMPLATE_MISMATCH", dimension="template_digest")
    later = event(9, "15:00:00", Hit(reused_tokens=1), CONTOSO)
    gone = finding(CREATE, later, status="retracted", reason="no")
    put(client, [*INCIDENT, later], [mild, FINDING, gone])
    assert archive.findings(Wanted()) == [FINDING, mild]
    assert archive.findings(Wanted(status="")) == [FINDING, mild, gone]
    assert archive.findings(Wanted(severity=Severity.HIGH)) == [FINDING]
    assert archive.findings(Wanted(cause="TEMPLATE_MISMATCH")) == [mild]
    assert archive.findings(Wanted(since_us=WRONG_HIT.time_us)) == [FINDING]
    assert archive.findings(Wanted(limit=1)) == [FINDING]
    assert [one.cause for one in archive.incidents(Wanted())] == ["CROSS_TENANT_REUSE", "TEMPLATE_MISMATCH"]
    assert [one.cause for one in archive.incidents(Wanted(cause="TEMPLATE_MISMATCH"))] == ["TEMPLATE_MISMATCH"]
    assert archive.incidents(Wanted(cause_id="none")) == []


def test_health_counts(client: Client, archive: StoredArchive) -> None:
    empty = archive.health()
    assert (empty.events, empty.newest_event_us, empty.newest_insert_us, empty.dead_letters) == (0, 0, 0, 0)
    letter = dead_letter(UndecodableRecord("is not JSON."), b"x", topic=LIFECYCLE, partition=0, offset=7,
                         stage="decode", at_us=at("12:30:00"))  # fmt: skip
    put(client, INCIDENT, [FINDING], [letter])
    told = archive.health()
    assert (told.events, told.hits, told.findings_open, told.findings_retracted) == (3, 2, 1, 0)
    assert told.newest_event_us == WRONG_HIT.time_us and told.newest_append_us > WRONG_HIT.time_us
    assert told.dead_letter_codes == (("undecodable_record", 1),) and told.newest_dead_letter_us == at("12:30:00")
    archive.check()


def test_a_store_that_comes_back_is_found_again(database: ClickHouseConfig) -> None:
    away = ClickHouseConfig(url="http://127.0.0.1:9", database=database.database)
    where = [away, database]
    archive = StoredArchive(lambda: connect(where[0]))
    with pytest.raises(StoreUnavailable):
        archive.check()
    where.pop(0)
    archive.check()


def test_an_event_whose_clock_is_off_stands_where_it_was_received_and_says_so(
    client: Client, archive: StoredArchive
) -> None:
    wild = renamed(WRONG_HIT, node="n9", home="n:n9", seq=1, time_us=4_949_683_200_000_000)
    put(client, INCIDENT, [FINDING])
    raw = EnvelopeEncoder().encode([wild])
    record = Record(Source(LIFECYCLE, 0, 99, at("14:21:00")), raw, EnvelopeDecoder().decode(raw))
    client.insert(*record_rows([record]), token="wild")
    told = ask(archive, "key", KEY)
    [row] = [row for row in told.rows if row.event.id == wild.id]
    assert (row.received_us, row.time_us, row.event.time_us) == (at("14:21:00"), at("14:21:00"), wild.time_us)
    assert all(not other.received_us for other in told.rows if other is not row)
    assert [other.time_us for other in told.rows] == sorted(other.time_us for other in told.rows)
    [line] = [line for line in render_table(told).splitlines() if "clock=off" in line]
    assert line.startswith("14:21:00 cache.hit") and "clock=off:2126-11-07T00:00:00" in line
    [entry] = [one for one in history_document(told)["rows"] if one["event_id"] == wild.id]
    assert (entry["time_us"], entry["received_us"]) == (wild.time_us, at("14:21:00"))


def test_a_producers_clock_that_is_off_dates_no_list(client: Client, archive: StoredArchive) -> None:
    """Shown is when the broker had it, and that the clock is off; the event itself stays as it was sent."""
    far, never = 4_949_683_200_000_000, 0
    ahead = replace(FINDING, id="a" * 32, event_time_us=far)
    behind = replace(FINDING, id="b" * 32, event_time_us=never)
    put(client, INCIDENT, [FINDING])
    appended = FINDING.event_time_us + 1_000
    client.insert(*finding_rows([(Source(FINDINGS, 0, 7, appended), one) for one in (ahead, behind)]), token="f/0/7-8")
    listed = {one.id: one for one in archive.findings(Wanted())}
    assert listed[ahead.id].event_time_us == listed[behind.id].event_time_us == appended
    assert listed[FINDING.id] == FINDING
    assert listed[ahead.id].title == f"{FINDING.title} (clock of the producer is off: 2126-11-07)"
    assert listed[behind.id].title == f"{FINDING.title} (clock of the producer is off: 1970-01-01)"
    (incident,) = archive.incidents(Wanted())
    assert (incident.first_us, incident.last_us) == (FINDING.event_time_us, appended)
    assert archive.findings(Wanted(since_us=appended + 1)) == []
    told = render_history(ask(archive, "request", "req-3"))
    assert "2126" not in told and "1970" not in told
