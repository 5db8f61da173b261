"""Verdicts: guilty, at risk, innocent, unknown; and never innocent for want of evidence."""

import pytest
from kvtrail.audit.causes import _ADVICE, advice
from kvtrail.audit.history import History, Question, build_history
from kvtrail.audit.verdict import Outcome, Verdict, reach_verdict
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.events import Create, Event, Hit
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.identity import DIMENSIONS, Identity

from .samples import CONTOSO, CREATE, FINDING, INCIDENT, NORTHWIND, OWN_HIT, WRONG_HIT, event, finding, renamed


def history(value: str, events: list[Event], findings: list[Finding], unseen: tuple[str, ...] = ()) -> History:
    return build_history(Question(kind="request", value=value), events, findings, unseen=unseen)


def verdict(value: str, events: list[Event] = INCIDENT, findings: tuple[Finding, ...] = (FINDING,)) -> Verdict:
    return reach_verdict(history(value, events, list(findings)))


def test_the_incident_says_who_what_since_when_and_what_to_do() -> None:
    told = verdict("req-3")
    text = " ".join(told.happened)
    assert told.outcome is Outcome.IMPLICATED and told.severity is Severity.CRITICAL
    assert "contoso was served an entry that belongs to northwind" in text
    assert "request req-3, at 2026-11-29 14:20:09 UTC, 8\u00a0992 tokens" in text
    assert "2026-11-29 12:04:01 UTC by request req-1, 2 h 16 min before" in text
    assert "does not cover tenant, template digest, token ids" in text
    assert 1 <= len(told.steps) <= 3 and "epoch" in told.steps[0] and "PrefixKey" in told.steps[1]
    assert any(FINDING.id in line for line in told.evidence)
    assert told.uncovered == ("template_digest", "token_ids_digest", "tenant_id")


def test_the_request_that_made_the_entry_is_told_so() -> None:
    assert verdict("req-1").happened[0].startswith("The request asked about made the entry")


def test_a_request_served_its_own_content_is_cleared_with_its_coverage() -> None:
    told = verdict("req-2")
    assert told.outcome is Outcome.CLEARED
    assert "No finding touches this request." in told.happened
    assert any("known on both sides: weights" in line and "template digest" in line for line in told.happened)
    assert any("Another request was served the same entry wrongly" in line for line in told.happened)


def test_missing_digests_never_clear() -> None:
    bare = Identity(tenant_id="northwind")
    told = verdict("req-2", [renamed(CREATE, identity=bare), renamed(OWN_HIT, identity=bare)], ())
    assert told.outcome is Outcome.UNKNOWN
    assert any("weights" in line and "token ids" in line for line in told.unknown)


@pytest.mark.parametrize("dimension", ["weights_digest", "token_ids_digest"])
def test_one_side_is_not_enough(dimension: str) -> None:
    half = NORTHWIND.model_copy(update={dimension: None})
    told = verdict("req-2", [CREATE, renamed(OWN_HIT, identity=half)], ())
    assert told.outcome is Outcome.UNKNOWN
    assert any(DIMENSIONS[dimension].title in line for line in told.happened if "one side only" in line)


def test_a_hit_without_its_create_never_clears() -> None:
    told = verdict("req-2", [OWN_HIT], ())
    assert told.outcome is Outcome.UNKNOWN
    assert "The creator is unknown for 1 of 1 hit." in told.unknown


def test_a_difference_that_nothing_judged_never_clears() -> None:
    told = verdict("req-3", INCIDENT, ())
    assert told.outcome is Outcome.UNKNOWN
    assert any("template digest" in line and "no finding judges it" in line for line in told.unknown)


def test_what_could_not_be_read_never_clears() -> None:
    told = reach_verdict(history("req-2", [CREATE, OWN_HIT], [], unseen=("2 records were refused.",)))
    assert told.outcome is Outcome.UNKNOWN and told.unknown == ("2 records were refused.",)


def test_a_request_that_reused_nothing_is_cleared_and_told_so() -> None:
    told = verdict("req-1", [CREATE], ())
    assert told.outcome is Outcome.CLEARED
    assert any("computed, not reused" in line for line in told.happened)


def test_reuse_reported_without_a_hit_is_not_innocent() -> None:
    partly = renamed(CREATE, body=Create(tokens=100, computed_tokens=10))
    assert verdict("req-1", [partly], ()).outcome is Outcome.UNKNOWN


def test_a_retraction_is_told_with_its_reason() -> None:
    retracted = finding(CREATE, WRONG_HIT, revision=2, status="retracted", reason="the create arrived late")
    told = verdict("req-3", INCIDENT, (retracted,))
    assert any("the create arrived late" in line for line in told.happened)
    assert told.outcome is Outcome.UNKNOWN  # what was recorded still differs


def test_two_creates_at_one_key_are_a_risk_before_any_hit() -> None:
    second = event(2, "12:30:00", Create(tokens=8992), CONTOSO)
    latent = finding(CREATE, second, cause="KEY_UNDERSPECIFIED", dimension="template_digest")
    told = verdict("req-2", [CREATE, second], (latent,))
    assert told.outcome is Outcome.AT_RISK
    assert "No request is known to have been served the wrong one yet" in told.happened[0]


def test_quiet_findings_are_noted_and_do_not_implicate() -> None:
    quiet = finding(CREATE, OWN_HIT, cause="ALLOWED_STALENESS", dimension="", severity=Severity.INFO)
    told = verdict("req-2", INCIDENT, (quiet,))
    assert told.outcome is Outcome.CLEARED
    assert any("allowed staleness (info)" in line for line in told.happened)


def test_an_incomplete_finding_says_so() -> None:
    told = verdict("req-3", INCIDENT, (finding(CREATE, WRONG_HIT, complete=False),))
    assert any("gaps" in line for line in told.unknown)


def test_the_loudest_finding_speaks_first_and_others_are_named() -> None:
    mild = finding(CREATE, OWN_HIT, cause="TEMPLATE_MISMATCH", dimension="template_digest")
    told = reach_verdict(build_history(Question(kind="recording"), INCIDENT, [mild, FINDING]))
    assert told.cause == "CROSS_TENANT_REUSE"
    assert any("Also found here: stale template" in line for line in told.happened)


@pytest.mark.parametrize("cause", [*_ADVICE, *sorted({d.cause for d in DIMENSIONS.values()}), "NEVER_HEARD_OF"])
@pytest.mark.parametrize("served", [True, False])
def test_every_cause_has_one_to_three_steps_that_can_be_filled(cause: str, served: bool) -> None:
    told = advice(cause, served)
    assert 1 <= len(told.steps) <= 3
    about = finding(CREATE, WRONG_HIT, cause=cause)
    said = reach_verdict(history("req-3", INCIDENT, [about]))
    assert "{" not in "".join((*said.steps, *said.happened))


def test_an_unnamed_requester_is_unknown_not_empty() -> None:
    hit = renamed(WRONG_HIT, identity=None, body=Hit(reused_tokens=7))
    about = finding(CREATE, hit)
    assert "an unknown tenant was served" in verdict("req-3", [CREATE, hit], (about,)).happened[0]
