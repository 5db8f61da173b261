"""Active checks in an investigation: what they came to, whom they accuse, which entry a request's check was about."""

import pytest
from kvtrail.audit.document import history_document
from kvtrail.audit.history import History, Question, build_history
from kvtrail.audit.render import render_history
from kvtrail.audit.verdict import Outcome, reach_verdict
from kvtrail.judging.offline import judge_history
from kvtrail.schemas.events import Check, Event
from kvtrail.schemas.findings import Finding

from .samples import CONTOSO, CREATE, INCIDENT, KEY, NORTHWIND, OWN_HIT, STORE, event, renamed

CANARY = event(
    1, "14:20:11", Check(check="canary", result="fail", expected="contoso", observed="northwind"), None,
    node="gateway", home="n:gateway", store="", tier="gpu", key="", request_id="req-3",
)  # fmt: skip


def spot_check(result: str, **more: str) -> Event:
    body = Check(check="spot_check", result=result, detail="layer 3 keys.", **more)  # type: ignore[arg-type]  # as in YAML
    return event(4, "14:20:10", body, CONTOSO, request_id="req-3")


def asked(events: list[Event], value: str = "req-3", findings: list[Finding] | None = None) -> History:
    found = judge_history(events) if findings is None else findings
    return build_history(Question(kind="request", value=value), events, found)


def test_a_gateways_canary_is_joined_to_its_entry_by_the_request() -> None:
    told = reach_verdict(asked([*(renamed(one, identity=None) for one in INCIDENT), CANARY]))
    assert told.outcome is Outcome.IMPLICATED and told.cause == "CANARY_MISMATCH"
    said = f"The answer to contoso shows the canary of northwind: entry {KEY[:16]}… in store {STORE} is not theirs."
    assert told.happened[0] == said
    assert KEY[:16] in told.steps[0]


def test_check_rows_are_shown_with_what_they_found() -> None:
    history = asked([*INCIDENT, spot_check("fail", expected="0.02", observed="0.41"), CANARY])
    text = render_history(history)
    assert "cache.check" in text and "check=spot_check  result=fail  expected=0.02  observed=0.41" in text
    assert "expected=contoso  observed=northwind" in text
    assert {row["body"]["check"] for row in history_document(history)["rows"] if row["operation"] == "cache.check"} == {
        "spot_check", "canary",
    }  # fmt: skip
    said = " ".join(reach_verdict(history).happened)
    assert "1 canary: 1 failed." in said and "1 spot check: 1 failed (layer 3 keys)." in said


def test_the_finding_about_the_hit_speaks_before_those_about_its_checks() -> None:
    told = reach_verdict(asked([*INCIDENT, spot_check("fail"), CANARY]))
    assert told.cause == "CROSS_TENANT_REUSE"
    assert any("failed spot check" in line and "canary mismatch" in line for line in told.happened)


def test_a_check_accuses_where_the_history_finds_nothing() -> None:
    bad_bytes = event(3, "12:05:00", Check(check="spot_check", result="fail"), NORTHWIND, request_id="req-2")
    told = reach_verdict(asked([CREATE, OWN_HIT, bad_bytes], "req-2"))
    assert (told.outcome, told.cause) == (Outcome.IMPLICATED, "SPOT_CHECK_FAILED")
    assert "Computed again, entry" in told.happened[0]


def test_a_check_that_passed_is_told_and_clears_nothing_by_itself() -> None:
    passed = event(3, "12:05:00", Check(check="bypass_diff", result="pass"), NORTHWIND, request_id="req-2")
    cleared = reach_verdict(asked([CREATE, OWN_HIT, passed], "req-2"))
    assert cleared.outcome is Outcome.CLEARED and "1 bypass diff: 1 passed." in cleared.happened
    unknown = reach_verdict(asked([OWN_HIT, passed], "req-2", []))
    assert unknown.outcome is Outcome.UNKNOWN and "1 bypass diff: 1 passed." in unknown.happened


def test_nothing_is_cleared_beside_a_failed_check_that_is_not_judged_yet() -> None:
    failed = event(3, "12:05:00", Check(check="bypass_diff", result="fail"), NORTHWIND, request_id="req-2")
    told = reach_verdict(asked([CREATE, OWN_HIT, failed], "req-2", []))
    assert told.outcome is Outcome.UNKNOWN
    assert any("1 check failed" in line for line in told.unknown)


@pytest.mark.parametrize("kind", ["isolation_probe", "canary"])
def test_no_result_is_no_verdict(kind: str) -> None:
    nothing = event(3, "12:05:00", Check(check=kind, result="inconclusive"), NORTHWIND, request_id="req-2")  # type: ignore[arg-type]  # parametrized
    told = reach_verdict(asked([CREATE, OWN_HIT, nothing], "req-2"))
    assert told.outcome is Outcome.CLEARED
    assert any("came to no result" in line for line in told.happened)
