"""Every query of the dashboard and its alert rules, on the real engine, with the incident and without it."""

import time
from collections.abc import Iterator

import pytest
from kvtrail.dashboards import queries
from kvtrail.dashboards.alerts import AlertRule
from kvtrail.dashboards.integrity import RULES
from kvtrail.dashboards.macros import Window
from kvtrail.dashboards.queries import QUERIES
from kvtrail.dashboards.shapes import Format, PanelQuery
from kvtrail.dashboards.verify import kind, problems, run
from kvtrail.judging.rules import RULES as CAUSES
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.dimensions import Severity
from kvtrail.store import queries as store_queries
from kvtrail.store.client import Client, connect
from kvtrail.tests.dashboards import history
from msgspec.structs import replace

pytestmark = pytest.mark.engine

ALL: dict[str, tuple[str, ...]] = {"tenant": ()}


def window(back_s: int = 3600, tenant: tuple[str, ...] = ()) -> Window:
    """The last hour, as a dashboard asks for it."""
    now = int(time.time())
    return Window(start_s=now - back_s, end_s=now + 1, interval_s=60, variables={"tenant": tenant})


@pytest.fixture
def clean(database: ClickHouseConfig) -> Iterator[Client]:
    """A store whose only traffic is northwind with itself."""
    with connect(database) as client:
        now = int(time.time() * history.S)
        history.store_events(client, history.events(now - 120 * history.S)[:2], now - 30 * history.S)
        yield client


@pytest.fixture
def incident(database: ClickHouseConfig) -> Iterator[Client]:
    """A store with the incident."""
    with connect(database) as client:
        history.store_incident(client, int(time.time() * history.S))
        yield client


def value(client: Client, query: PanelQuery, within: Window | None = None) -> float | None:
    """What a stat tile shows."""
    [row] = run(client, query, within or window())
    shown = row["value"]
    return None if shown is None else float(shown)


def test_every_query_runs_and_answers_in_its_shape(incident: Client) -> None:
    assert problems(incident, window()) == []


def test_every_query_runs_on_an_empty_store(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        assert problems(client, window()) == []
        for query in QUERIES:
            assert len(run(client, query, window())) == (1 if query.columns == {"value": "number"} else 0), query.name


def test_every_query_runs_for_one_tenant_with_a_hostile_name(incident: Client) -> None:
    assert problems(incident, window(tenant=("it's \\ northwind", "x"))) == []


def test_with_the_incident_no_query_is_empty(incident: Client) -> None:
    history.store_checks(incident, int(time.time() * history.S))
    empty = [query.name for query in QUERIES if not run(incident, query, window())]
    assert empty == []


def test_a_query_whose_shape_is_wrong_is_found(incident: Client) -> None:
    wrong = PanelQuery(name="w", why="", columns={"a": "number"}, sql="SELECT 'x' AS a LIMIT 1")
    unordered = PanelQuery(
        name="u", why="", columns={"time": "time", "n": "number"}, format=Format.TIMESERIES,
        sql="SELECT toDateTime(100 - number) AS time, number AS n FROM numbers(3) LIMIT 3",
    )  # fmt: skip
    broken = PanelQuery(name="b", why="", columns={"a": "number"}, sql="SELECT nothing FROM nowhere LIMIT 1")
    found = problems(incident, window(), [wrong, unordered, broken])
    assert [one.split(":")[0] for one in found] == ["w", "u", "b"]


def test_the_tiles_count_what_is_open_and_nothing_retracted(incident: Client) -> None:
    assert value(incident, queries.OPEN_FINDINGS) == 2
    assert value(incident, queries.TENANTS_AFFECTED) == 2
    assert value(incident, queries.STREAM_GAPS) == 1
    assert value(incident, queries.DEAD_LETTERS) == 1
    rate = value(incident, queries.EVENT_RATE)
    assert rate is not None and rate == pytest.approx(5 / 3601, rel=0.01)
    age = value(incident, queries.NEWEST_EVENT_AGE)
    assert age is not None and 19 <= age < 110


def test_the_tiles_are_quiet_on_clean_data(clean: Client) -> None:
    for query in (queries.OPEN_FINDINGS, queries.TENANTS_AFFECTED, queries.STREAM_GAPS, queries.DEAD_LETTERS):
        assert value(clean, query) == 0, query.name


def test_a_store_without_events_shows_no_age(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        assert value(client, queries.NEWEST_EVENT_AGE) is None


def test_incidents_group_the_findings_of_one_cause(incident: Client) -> None:
    wrong, gap = run(incident, queries.INCIDENTS, window())
    assert (wrong["severity"], wrong["cause"], wrong["dimension"], wrong["store"]) == (
        "critical", "CROSS_TENANT_REUSE", "tenant_id", "nvme-cache",
    )  # fmt: skip
    assert (wrong["findings"], wrong["tenants"], wrong["keys"], wrong["tokens"]) == (2, 2, 1, 220)
    assert (gap["cause"], gap["tenants"]) == ("STREAM_GAP", 0)


def test_wrong_hits_name_both_sides_and_what_differs(incident: Client) -> None:
    rows = run(incident, queries.WRONG_HITS, window())
    assert [row["request"] for row in rows] == ["r4", "r3"]
    assert rows[0] | {"time": 0, "finding": "", "key": ""} == {
        "time": 0, "severity": "high", "cause": "CROSS_TENANT_REUSE", "creator": "northwind", "requester": "contoso",
        "key": "", "differing": "tenant_id, template_digest", "reused": 100, "request": "r4", "finding": "",
    }  # fmt: skip


def test_the_matrix_has_the_pair_once(incident: Client) -> None:
    assert run(incident, queries.TENANT_MATRIX, window()) == [
        {"creator": "northwind", "requester": "contoso", "hits": 2}
    ]


def test_coverage_tells_what_requesters_leave_out(incident: Client) -> None:
    known = {row["dimension"]: row["known"] for row in run(incident, queries.COVERAGE, window())}
    assert known["template_digest"] == 1
    assert "weights_digest" not in known


def test_reuse_is_told_by_tenant(incident: Client) -> None:
    rows = run(incident, queries.REUSE_BY_TENANT, window())
    assert {row["series"] for row in rows} == {"northwind create", "northwind hit", "contoso hit", "contoso create"}
    assert sum(row["rate"] * 60 for row in rows) == pytest.approx(5)


def test_latency_has_its_three_stages(incident: Client) -> None:
    stages = {row["stage"]: row["seconds"] for row in run(incident, queries.LATENCY, window())}
    assert stages.keys() == {"event to Kafka", "Kafka to ClickHouse", "event to finding"}
    assert all(seconds >= 0 for seconds in stages.values())


def test_the_choice_of_a_tenant_narrows_findings_and_traffic(incident: Client) -> None:
    assert run(incident, queries.TENANTS, window()) == [{"tenant_id": "contoso"}, {"tenant_id": "northwind"}]
    other = window(tenant=("fabrikam",))
    assert value(incident, queries.OPEN_FINDINGS, other) == 0
    assert run(incident, queries.REUSE_BY_TENANT, other) == []
    assert value(incident, queries.OPEN_FINDINGS, window(tenant=("contoso", "fabrikam"))) == 2


def test_checks_are_counted_by_result_and_those_that_did_not_pass_are_listed(incident: Client) -> None:
    history.store_checks(incident, int(time.time() * history.S))
    counted = {row["series"]: row["checks"] for row in run(incident, queries.CHECKS_BY_RESULT, window())}
    assert counted == {"canary, fail": 1, "spot check, pass": 1, "bypass diff, inconclusive": 1}
    unsure, wrong = run(incident, queries.CHECKS_NOT_PASSED, window())
    assert (unsure["check"], unsure["result"], unsure["request"]) == ("bypass diff", "inconclusive", "r8")
    assert (wrong["tenant"], wrong["expected"], wrong["observed"], wrong["request"], wrong["key"]) == (
        "contoso", "contoso", "northwind", "r6", history.KEY,
    )  # fmt: skip
    assert run(incident, queries.CHECKS_NOT_PASSED, window(tenant=("northwind",))) == []


def test_a_finding_about_a_check_is_no_further_wrong_hit(incident: Client) -> None:
    hits = len(run(incident, queries.WRONG_HITS, window()))
    history.store_checks(incident, int(time.time() * history.S))
    assert len(run(incident, queries.WRONG_HITS, window())) == hits
    assert [row["hits"] for row in run(incident, queries.TENANT_MATRIX, window())] == [2]
    assert value(incident, queries.OPEN_FINDINGS) == 3


def test_the_dashboard_knows_every_cause_about_checks() -> None:
    assert set(queries.CHECK_CAUSES) == {rule.id for rule in CAUSES.values() if rule.family == "checks"}


def fires(client: Client, rule: AlertRule, within: Window | None = None) -> bool:
    """What Grafana would decide for the rule now."""
    return rule.fires(value(client, rule.query, within or window(back_s=rule.window_s)))


CRITICAL, STOPPED, CHECKED = RULES


def test_the_alert_fires_on_the_incident(incident: Client) -> None:
    assert fires(incident, CRITICAL)
    assert not fires(incident, STOPPED)


def test_the_alert_is_quiet_on_clean_data(clean: Client) -> None:
    assert not fires(clean, CRITICAL)
    assert not fires(clean, STOPPED)


def test_the_alert_is_quiet_once_the_finding_is_retracted(clean: Client) -> None:
    now = int(time.time() * history.S)
    hit = history.events(now - 60 * history.S)[2]
    history.store_findings(clean, [history.wrong_hit(hit)], now - 20 * history.S)
    assert fires(clean, CRITICAL)
    history.store_findings(clean, [history.wrong_hit(hit, revision=2, status="retracted")], now - 10 * history.S)
    assert not fires(clean, CRITICAL)


def test_the_alert_fires_for_an_old_event_judged_late(clean: Client) -> None:
    now = int(time.time() * history.S)
    hit = history.events(now - 86400 * history.S)[2]
    history.store_findings(clean, [history.wrong_hit(hit)], now - 5 * history.S)
    assert fires(clean, CRITICAL)


def test_the_alert_is_quiet_on_what_is_not_critical(clean: Client) -> None:
    now = int(time.time() * history.S)
    hit = history.events(now - 60 * history.S)[2]
    history.store_findings(clean, [history.wrong_hit(hit, severity=Severity.HIGH)], now - 5 * history.S)
    assert not fires(clean, CRITICAL)


def test_the_second_alert_fires_when_events_stop(clean: Client, database: ClickHouseConfig) -> None:
    now = int(time.time())
    later = Window(start_s=now + 3600, end_s=now + 3600 + STOPPED.window_s, variables=ALL)
    assert fires(clean, STOPPED, later)
    assert not fires(clean, CRITICAL, later)


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_that_say_the_same_number_the_alert_and_the_list_take_one(clean: Client, turned: bool) -> None:
    """Partitions that raise a finding apart from each other, told in either order."""
    now = int(time.time() * history.S)
    served = history.events(now - 300 * history.S)[2]
    loud = history.wrong_hit(served)
    mild = replace(loud, severity=Severity.MEDIUM, event_time_us=loud.event_time_us + 1)
    for later, finding in enumerate((mild, loud) if turned else (loud, mild)):
        history.store_findings(clean, [finding], now - 2 + later)
    assert store_queries.FINDINGS_CURRENT.run(clean) == [loud]
    assert value(clean, queries.CRITICAL_ALERT) == 1
    assert value(clean, queries.OPEN_FINDINGS) == 1


def test_a_failed_check_pages_when_it_is_critical_and_makes_a_ticket_when_it_is_not(clean: Client) -> None:
    now = int(time.time() * history.S)
    canary, spot_check, *_ = history.checks(now - 60 * history.S)
    assert not fires(clean, CHECKED)
    history.store_findings(clean, [history.failed_check(canary, Severity.CRITICAL)], now - 9 * history.S)
    assert fires(clean, CRITICAL)
    assert not fires(clean, CHECKED)
    history.store_findings(clean, [history.failed_check(spot_check, Severity.HIGH, "SPOT_CHECK_FAILED")], now)
    assert fires(clean, CHECKED)


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("LowCardinality(Nullable(String))", "text"),
        ("DateTime64(6, 'UTC')", "time"),
        ("Nullable(Float64)", "number"),
        ("Array(String)", None),
    ],
)
def test_column_types_are_seen_as_a_panel_sees_them(type_name: str, expected: str | None) -> None:
    assert kind(type_name) == expected
