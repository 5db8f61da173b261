"""Recordings of the incident, and the account of whether it went as it must. No model: the checked-in recording."""

from pathlib import Path

import msgspec
import pytest
from kvtrail.cli.incident.account import finding_of, problems
from kvtrail.cli.incident.recording import Recorder, Recording, read_recording
from kvtrail.cli.incident.steps import STEPS, days_in, pairs
from kvtrail.cli.tour import load
from kvtrail.judging.offline import judge_history
from kvtrail.producers.facts import epoch_bumped
from kvtrail.schemas.envelope import Batch
from kvtrail.schemas.errors import ConfigError, KvtrailError
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.findings import Finding


@pytest.fixture(scope="module")
def recording() -> Recording:
    return load()


@pytest.fixture(scope="module")
def findings(recording: Recording) -> list[Finding]:
    return judge_history(recording.records)


def test_the_recording_plays_todays_steps(recording: Recording) -> None:
    """A change of the incident needs a new recording: `kvtrail demo --record cli/recordings/incident.jsonl`."""
    assert tuple(played.step for played in recording.played) == STEPS


def test_the_recording_holds_every_event_of_one_incarnation(recording: Recording) -> None:
    events = [event for record in recording.records if isinstance(record, Batch) for event in record.events]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len({event.incarnation for event in events}) == 1
    assert [event.type for event in events].count("hit") == sum(played.hit for played in recording.played)
    assert sum(isinstance(record, Fact) for record in recording.records) == 1


def test_no_prompt_and_no_answer_is_in_an_event(recording: Recording) -> None:
    raw = (
        msgspec.json.encode([r for r in recording.records if isinstance(r, Fact)])
        + repr([r for r in recording.records if isinstance(r, Batch)]).encode()
    )
    for played in recording.played:
        for text in (played.answer, played.step.question, "support assistant"):
            assert text.encode() not in raw


def test_todays_judge_finds_in_it_what_it_must(recording: Recording, findings: list[Finding]) -> None:
    assert problems(recording.played, findings) == []
    assert len(findings) == 2


def test_a_missing_finding_is_a_problem(recording: Recording, findings: list[Finding]) -> None:
    for finding in findings:
        (said,) = problems(recording.played, [one for one in findings if one is not finding])
        assert finding.cause in said


def test_a_retracted_finding_is_a_missing_one(recording: Recording, findings: list[Finding]) -> None:
    first, second = findings
    assert len(problems(recording.played, [msgspec.structs.replace(first, status="retracted"), second])) == 1


def test_a_finding_about_a_right_answer_is_a_problem(recording: Recording, findings: list[Finding]) -> None:
    party = findings[0].requester
    assert party is not None
    right = recording.played[5]
    extra = msgspec.structs.replace(
        findings[0], id="f" * 32, requester=msgspec.structs.replace(party, request_id=right.request_id)
    )
    (said,) = problems(recording.played, [*findings, extra])
    assert "no finding" in said


def test_a_finding_about_nothing_of_ours_is_a_problem(recording: Recording, findings: list[Finding]) -> None:
    extra = msgspec.structs.replace(findings[0], id="f" * 32, requester=None, cause="STREAM_GAP")
    (said,) = problems(recording.played, [*findings, extra])
    assert "STREAM_GAP" in said


def test_two_findings_about_one_request_are_a_problem(recording: Recording, findings: list[Finding]) -> None:
    again = msgspec.structs.replace(findings[0], id="f" * 32)
    assert len(problems(recording.played, [*findings, again])) == 1


def test_a_right_answer_where_a_wrong_one_belongs_is_a_problem(recording: Recording, findings: list[Finding]) -> None:
    played = [
        msgspec.structs.replace(one, answer="Within 14 days.") if one.step.name == "other tenant" else one
        for one in recording.played
    ]
    (said,) = problems(played, findings)
    assert "Within 14 days." in said


def test_findings_are_found_by_request(recording: Recording, findings: list[Finding]) -> None:
    assert [finding_of(played, findings) is not None for played in recording.played] == [
        bool(played.step.finding) for played in recording.played
    ]
    assert len(pairs(recording.played)) == 4


@pytest.mark.parametrize(
    ("answer", "days"),
    [
        ("You can return it within 90 days.", [90]),
        ("14 days, or 30-day exchange", [14, 30]),
        ("one day", []),
        ("in 1990", []),
    ],
)
def test_days_in_an_answer(answer: str, days: list[int]) -> None:
    assert days_in(answer) == days


def test_what_is_written_reads_back(recording: Recording, tmp_path: Path) -> None:
    recorder = Recorder()
    fact = epoch_bumped("e9", why="a test")
    recorder.answer(recording.played[0])
    recorder.fact(fact)
    path = tmp_path / "new" / "r.jsonl"
    recorder.write(path, deployment="d", model="m", weights_digest="ab" * 32, versions={"torch": "2"})
    found = read_recording(path.read_bytes())
    assert found.played == recording.played[:1]
    assert found.records == (fact,)
    assert (found.about.deployment, found.about.model) == ("d", "m")
    assert [entry.name for entry in path.parent.iterdir()] == ["r.jsonl"]


def test_a_recording_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorder().write(tmp_path / "file" / "r", deployment="", model="", weights_digest="", versions={})


@pytest.mark.parametrize(
    "line",
    [b"not json", b'{"v":9}', b'{"v":1,"node":"n"}', b'{"answer":{"step":1}}', b'{"fact":{"id":1}}'],
)
def test_a_bad_line_is_named(line: bytes) -> None:
    with pytest.raises(KvtrailError, match="line 2"):
        read_recording(b'{"recording":' + ABOUT + b"}\n" + line)


def test_a_file_that_is_no_recording_says_so() -> None:
    with pytest.raises(KvtrailError, match="recording"):
        read_recording(b"")
    with pytest.raises(KvtrailError, match="recording"):
        read_recording(b'{"recording":' + ABOUT.replace(b'"v":1', b'"v":2') + b"}")


ABOUT = (
    b'{"v":1,"recorded_at":"2026-11-29T16:00:00+00:00","deployment":"","model":"","weights_digest":"","versions":{}}'
)
