"""The incident as it happens on a real model, before anybody judges it."""

import pytest
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cli.incident.recording import Recorder, Recording, Tee, read_recording
from kvtrail.cli.incident.scenario import play
from kvtrail.cli.incident.steps import STEPS, Played, pairs
from kvtrail.judging.offline import judge_history
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def recording(language_model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("incident")
    recorder = Recorder()
    publisher = LifecyclePublisher("cache-node", Tee(MemoryTransport(), recorder))
    with EntryStore(folder / "nvme", publisher, capacity_bytes=1 << 30) as store:
        for played in play(language_model, store, publisher, recorder.fact, run="test"):
            recorder.answer(played)
    assert publisher.close()
    recorder.write(folder / "r.jsonl", deployment="demo", model="m", weights_digest="", versions={})
    return read_recording((folder / "r.jsonl").read_bytes())


def by_name(recording: Recording) -> dict[str, Played]:
    return {played.step.name: played for played in recording.played}


def test_the_wrong_key_serves_contoso_northwinds_days(recording: Recording) -> None:
    played = by_name(recording)["other tenant"]
    assert played.hit
    assert not played.right
    assert "90 days" in played.answer
    assert played.key == "support_v7:SmolLM2-135M-Instruct"


def test_an_edit_without_a_new_name_serves_the_old_days(recording: Recording) -> None:
    played = by_name(recording)["after the edit"]
    assert played.hit
    assert not played.right
    assert "90 days" in played.answer


def test_the_right_key_answers_everything_right_and_still_reuses(recording: Recording) -> None:
    right = [played for played in recording.played if played.step.keyed_by == "fingerprint"]
    assert len(right) == 4
    assert all(played.right for played in right)
    assert [played.hit for played in right] == [False, True, False, False]
    assert [(wrong.right, fixed.right) for wrong, fixed in pairs(recording.played)] == [
        (True, True),
        (True, True),
        (False, True),
        (False, True),
    ]


def test_the_next_epoch_cannot_reach_the_wrong_entry(recording: Recording) -> None:
    played = by_name(recording)["other tenant, next epoch"]
    assert not played.hit
    assert played.right


def test_exactly_the_two_wrong_answers_are_findings(recording: Recording) -> None:
    findings = judge_history(recording.records)
    assert [(f.requester.request_id, f.cause, f.status) for f in findings if f.requester is not None] == [
        (played.request_id, played.step.finding, "open") for played in recording.played if played.step.finding
    ]
    assert len(findings) == len([step for step in STEPS if step.finding])
    first, second = findings
    assert [d.dimension for d in first.differing] == ["tenant_id", "template_digest", "token_ids_digest"]
    assert [d.dimension for d in second.differing] == ["template_digest", "token_ids_digest"]
    assert (first.severity, second.severity) == ("critical", "medium")
