"""Histories from events and findings: order, matching, what belongs to a question, and the blast radius."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Literal

import msgspec
from kvtrail.audit.history import History, Question, build_history, in_time_order
from kvtrail.audit.matching import match_hits
from kvtrail.schemas.events import Create, Event, Expire, Hit, Invalidate, NodeStart, Resolve
from kvtrail.schemas.findings import Finding, Party

from .samples import (
    CONTOSO,
    CREATE,
    FINDING,
    INCIDENT,
    KEY,
    NORTHWIND,
    OWN_HIT,
    WRONG_HIT,
    digest,
    event,
    finding,
    identity,
    renamed,
)


def ask(
    kind: Literal["request", "key", "finding", "recording"],
    value: str = "",
    *,
    events: Sequence[Event] = INCIDENT,
    findings: Sequence[Finding] = (FINDING,),
) -> History:
    return build_history(Question(kind=kind, value=value), events, findings)


def test_request_key_and_finding_give_the_same_rows() -> None:
    histories = [ask("request", "req-3"), ask("key", KEY), ask("finding", FINDING.id), ask("recording")]
    rows = [[row.event.id for row in told.rows] for told in histories]
    assert rows == [[CREATE.id, OWN_HIT.id, WRONG_HIT.id]] * 4


def test_each_hit_names_the_creator_it_met_and_how_that_is_known() -> None:
    own, wrong = ask("key", KEY).rows[1:]
    assert (own.matched, wrong.matched) == ("ledger", "finding")
    assert own.creator is not None and own.creator.event_id == CREATE.id
    assert wrong.creator is not None and wrong.creator.tenant_id == "northwind"
    assert wrong.finding == FINDING and own.finding is None


def test_only_what_was_asked_about_is_marked() -> None:
    assert [row.asked for row in ask("request", "req-3").rows] == [False, False, True]
    assert [row.asked for row in ask("finding", FINDING.id).rows] == [False, False, True]
    assert [row.asked for row in ask("key", KEY).rows] == [False, True, True]


def test_unrelated_events_and_findings_are_left_out() -> None:
    other = event(9, "15:00:00", Create(tokens=1), NORTHWIND, key="other")
    other_hit = event(10, "15:00:01", Hit(reused_tokens=1), CONTOSO, key="other")
    beside = finding(other, other_hit, dimension="template_digest")
    told = ask("request", "req-3", events=[*INCIDENT, other, other_hit], findings=[FINDING, beside])
    assert {row.event.key for row in told.rows} == {KEY}
    assert [one.id for one in told.findings] == [FINDING.id]
    assert [one.cause_id for one in told.incidents] == [FINDING.cause_id]


def test_blast_radius_spans_other_keys_of_the_same_cause() -> None:
    create = event(11, "15:00:00", Create(tokens=5), NORTHWIND, key="support_v8:m1")
    hit = event(12, "15:00:09", Hit(reused_tokens=5), identity("fabrikam"), key="support_v8:m1")
    told = ask("request", "req-3", events=[*INCIDENT, create, hit], findings=[FINDING, finding(create, hit)])
    incident = told.incidents[0]
    assert incident.sentence == "this key does not cover tenant: 2 hits, 3 tenants"
    assert (incident.requests, incident.entries, incident.tokens) == (2, 2, 8997)
    assert incident.tenants == ("contoso", "fabrikam") and incident.owners == ("northwind",)
    assert (incident.first_us, incident.last_us) == (WRONG_HIT.time_us, hit.time_us)
    assert {row.event.key for row in told.rows} == {KEY}


def test_a_retracted_finding_touches_but_widens_nothing() -> None:
    retracted = finding(CREATE, WRONG_HIT, revision=2, status="retracted", reason="policy allows it")
    told = ask("request", "req-3", findings=[FINDING, retracted])
    assert [one.status for one in told.findings] == ["retracted"]
    assert told.incidents == ()


def test_a_later_revision_wins_whatever_the_order() -> None:
    newer = finding(CREATE, WRONG_HIT, revision=2, title="Better")
    for revisions in ([FINDING, newer], [newer, FINDING]):
        assert ask("request", "req-3", findings=revisions).findings[0].title == "Better"


def test_events_come_once_and_in_time_order_but_a_lane_keeps_its_own() -> None:
    stepped_back = renamed(WRONG_HIT, time_us=CREATE.time_us - 5)
    ordered = in_time_order([stepped_back, OWN_HIT, CREATE, OWN_HIT])
    assert [one.seq for one in ordered] == [1, 2, 3]


def test_the_creators_request_sees_who_was_served_its_content() -> None:
    told = ask("request", "req-1")
    assert [one.id for one in told.findings] == [FINDING.id]
    assert [meeting.hit.tenant_id for meeting in told.meetings] == ["contoso"]


def test_parties_outlive_their_events() -> None:
    told = ask("finding", FINDING.id, events=[])
    assert told.rows == ()
    assert told.meetings[0].creator is not None
    assert {side.dimension for side in told.meetings[0].dimensions if side.relation == "differs"} == {
        "tenant_id", "template_digest", "token_ids_digest",
    }  # fmt: skip


def test_a_late_identity_is_joined_to_its_event() -> None:
    unnamed = renamed(WRONG_HIT, identity=None)
    resolve = event(4, "14:20:10", Resolve(event_id=WRONG_HIT.id), CONTOSO, key="", store="")
    told = ask("key", KEY, events=[CREATE, unnamed, resolve], findings=[])
    assert told.rows[1].event.identity == CONTOSO


def test_a_gap_beside_the_history_is_told() -> None:
    gap = finding(CREATE, WRONG_HIT, cause="STREAM_GAP", dimension="", title="3 event(s) missing: 4-6")
    gap = msgspec.structs.replace(gap, id="g", subject="lane", creator=None, requester=None, key="", store="")
    told = ask("request", "req-3", findings=[FINDING, gap])
    assert not told.complete
    assert "3 event(s) missing: 4-6" in told.unseen[0]


class TestMatching:
    """The ledger's matching in simple form."""

    def test_another_tier_node_or_rank_is_another_address(self) -> None:
        for place in ({"tier": "gpu"}, {"home": "n:n2"}, {"rank": 1}, {"copy": "b"}, {"store": "other"}):
            assert match_hits([CREATE, renamed(OWN_HIT, **place)]) == {}

    def test_a_replacement_is_what_later_hits_meet(self) -> None:
        end = event(2, "12:10:00", Expire(reason="ttl"), NORTHWIND)
        again = event(3, "12:11:00", Create(tokens=1), CONTOSO)
        hit = event(4, "12:12:00", Hit(), CONTOSO)
        assert match_hits([CREATE, end, again, hit]) == {hit.id: again}

    def test_an_ended_entry_is_met_where_nothing_lives(self) -> None:
        end = event(2, "12:10:00", Expire(reason="ttl"), NORTHWIND)
        hit = event(4, "12:12:00", Hit(), CONTOSO)
        assert match_hits([CREATE, end, hit]) == {hit.id: CREATE}

    def test_an_equal_isolation_domain_comes_first(self) -> None:
        mine = renamed(CREATE, identity=identity("northwind", isolation_domain=digest("a")))
        yours = event(2, "12:05:00", Create(), identity("contoso", isolation_domain=digest("b")))
        hit = event(3, "12:06:00", Hit(), identity("northwind", isolation_domain=digest("a")))
        assert match_hits([mine, yours, hit]) == {hit.id: mine}

    def test_scoped_invalidation_ends_what_it_covers(self) -> None:
        covers = Invalidate(scope="node", where={"tenant_id": "northwind"})
        later = event(3, "12:06:00", Create(), CONTOSO)
        hit = event(5, "12:08:00", Hit(), NORTHWIND)
        sweep = event(4, "12:07:00", covers, None, key="")
        assert match_hits([CREATE, later, sweep, hit]) == {hit.id: later}
        refused = event(4, "12:07:00", Invalidate(scope="node", outcome="refused"), None, key="")
        assert match_hits([CREATE, refused, hit]) == {hit.id: CREATE}

    def test_a_restart_ends_what_does_not_survive_it(self) -> None:
        fresh = event(2, "12:06:00", NodeStart(surviving_tiers=()), None, key="", store="")
        later = event(3, "12:07:00", Create(), CONTOSO)
        hit = event(4, "12:08:00", Hit(), NORTHWIND)
        assert match_hits([CREATE, fresh, later, hit]) == {hit.id: later}

    def test_a_hit_without_a_create_has_no_creator(self) -> None:
        told = ask("request", "req-3", events=[WRONG_HIT], findings=[])
        assert told.rows[0].creator is None and told.meetings[0].creator is None


def test_a_party_says_what_its_event_says() -> None:
    creator = ask("key", KEY).rows[1].creator
    assert creator == Party(
        event_id=CREATE.id, time_us=CREATE.time_us, tenant_id="northwind", request_id="req-1", node="n1",
        identity=NORTHWIND.to_wire(),
    )  # fmt: skip


def test_histories_need_no_service_and_no_web_framework() -> None:
    code = (
        "import sys; import kvtrail.audit.render, kvtrail.audit.document;"
        "heavy = {'clickhouse_connect', 'starlette', 'uvicorn', 'jinja2', 'faust', 'aiokafka', 'torch'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
