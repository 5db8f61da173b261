"""The simulator is deterministic, valid on the wire, and its answer key is what the judge finds."""

import pytest
from kvtrail.judging.offline import judge_history
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.findings import Finding
from kvtrail.simulator.delivery import DeliverySpec
from kvtrail.simulator.faults import FAULTS
from kvtrail.simulator.fleet import FleetSpec
from kvtrail.simulator.injection import Expected
from kvtrail.simulator.run import Run, score

ONE_OF_EACH = len(FAULTS)


def records(run: Run) -> list[Fact | Batch]:
    decoder = EnvelopeDecoder()
    return [sent.fact or decoder.decode(sent.record) for sent in run.sent()]


def test_equal_seeds_give_equal_histories_and_others_do_not() -> None:
    first, again, other = (list(Run(seed=seed, events=3000, faults=5).sent()) for seed in (7, 7, 8))
    assert [(sent.home, sent.record, sent.fact) for sent in first] == [
        (sent.home, sent.record, sent.fact) for sent in again
    ]
    assert [sent.record for sent in first] != [sent.record for sent in other]


def test_every_record_is_valid_on_the_wire() -> None:
    for record in records(Run(seed=3, events=5000, faults=20)):
        if isinstance(record, Batch):
            assert record.events and not record.rejects


def test_delivery_duplicates_and_reorders_but_loses_nothing() -> None:
    run = Run(seed=5, events=5000, delivery=DeliverySpec(duplicate=0.1, reorder=0.1))
    made = {event.id for event in Run(seed=5, events=5000).history() if not isinstance(event, Fact)}
    sent = [event.id for item in run.sent() for event in item.events]
    assert set(sent) == made
    assert len(sent) > len(made)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fleet_that_behaves_is_silent(seed: int) -> None:
    findings = [
        finding for finding in judge_history(records(Run(seed=seed, events=30_000))) if finding.status == "open"
    ]
    assert [(finding.cause, finding.subject) for finding in findings] == []


@pytest.mark.parametrize(("skew_ms", "seed"), [(20, 1), (1500, 1), (2400, 3)])
def test_a_busy_fleet_is_silent(skew_ms: int, seed: int) -> None:
    """Ten thousand requests a second over six nodes that fight for room in one store, their clocks wrong by up to
    half of what is allowed: their envelopes overtake each other all the time."""
    run = Run(seed=seed, events=30_000, fleet=FleetSpec(request_ms=0.1, skew_ms=skew_ms, shared=100))
    assert [(found.cause, found.subject) for found in judge_history(records(run)) if found.status == "open"] == []


def test_faults_in_a_busy_fleet_are_found() -> None:
    run = Run(seed=3, events=40_000, faults=ONE_OF_EACH, fleet=FleetSpec(request_ms=0.1, shared=150))
    assert score_of(run) == ([], [], [])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_fault_is_found_once_with_its_cause_and_nothing_else(seed: int) -> None:
    run = Run(seed=seed, events=60_000, faults=2 * ONE_OF_EACH)
    result = score_of(run)
    assert len(run.answers) == 2 * ONE_OF_EACH
    assert result == ([], [], [])


def score_of(run: Run) -> tuple[list[Expected], list[tuple[Expected, str]], list[tuple[str, str]]]:
    result = score(run.answers, judge_history(records(run)))
    return result.missed, result.misnamed, [(finding.cause, finding.subject) for finding in result.false_alarms]


def test_the_score_tells_missed_misnamed_and_false_alarms_apart() -> None:
    run = Run(seed=1, events=20_000, faults=ONE_OF_EACH)
    findings = [finding for finding in judge_history(records(run)) if finding.status == "open"]
    missing, renamed = findings[0], findings[1]
    stray = change(missing, subject="node-99/i/n:node-99/1")
    result = score(run.answers, [stray, change(renamed, cause="ANOTHER"), *findings[2:]])
    assert [expected.subject for expected in result.missed] == [missing.subject]
    assert [(expected.subject, cause) for expected, cause in result.misnamed] == [(renamed.subject, "ANOTHER")]
    assert [finding.subject for finding in result.false_alarms] == [stray.subject]


def change(finding: Finding, **fields: str) -> Finding:
    values = {name: getattr(finding, name) for name in finding.__struct_fields__}
    return Finding(**{**values, **fields})
