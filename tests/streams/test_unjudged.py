"""A defect that meets one record must not stop the records behind it: left out, kept, said, and judged later."""

import asyncio
from pathlib import Path

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.schemas.config import ClickHouseConfig, JudgingConfig, KafkaConfig
from kvtrail.schemas.dead_letters import DeadLetter
from kvtrail.schemas.envelope import Batch
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.topics import DEAD_LETTER, FINDINGS, LIFECYCLE
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.streams.fold import Fold, JudgingFailed
from kvtrail.streams.readmission import readmit, sort_out
from kvtrail.streams.records import Record
from kvtrail.streams.rejudging import compare
from kvtrail.streams.unjudged import judge_again
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import (
    Worker,
    all_judged,
    all_stored,
    config_of,
    end_offsets,
    final,
    publish,
    published_findings,
    samples_of,
    undisturbed,
    until,
)

VALUES = [histories.envelope(histories.incident(f"node-{number}"))[1] for number in range(6)]
LOG = [
    Record(topic=LIFECYCLE, partition=0, offset=at, append_us=at + 1, value=value) for at, value in enumerate(VALUES)
]


class Defective(Judge):
    """Fails half-way through one node's record, as often as it is told to; `failures` is shared by its copies."""

    failures: list[Exception]

    def batch(self, batch: Batch, append_us: int) -> list[Finding]:
        found = super().batch(batch, append_us)
        if batch.node == "node-3" and self.failures:
            raise self.failures.pop(0)
        return found


def _fold(failures: list[Exception]) -> Fold:
    judge = Defective(JudgingConfig(), "test", FactBook())
    judge.failures = failures
    return Fold(judge, 0)


def _load(state: bytes) -> Judge:
    return Judge.load(state, JudgingConfig(), "test", FactBook())


def _run(failures: list[Exception], *, rebuilt_to: int = 3) -> tuple[Fold, list[Finding], DeadLetter | None]:
    """Judge the log with a defect, the way a partition does."""

    async def rebuild(end: int) -> Fold:
        fold = _fold(failures)
        fold.apply(LOG[: max(end, rebuilt_to)])
        return fold

    fold, found = _fold(failures), list[Finding]()
    with pytest.raises(JudgingFailed) as failed:
        fold.apply(LOG)
    found += failed.value.findings
    outcome = asyncio.run(judge_again(fold, failed.value, rebuild, _load))
    found += outcome.findings
    found += fold.apply(LOG[fold.next :])
    return fold, found, outcome.letter


def _expected(log: list[Record]) -> list[Finding]:
    return Fold(Judge(JudgingConfig(), "test", FactBook()), 0).apply(log)


def test_what_fails_twice_alike_is_left_out_and_the_rest_is_judged_as_if_it_had_never_been() -> None:
    fold, found, letter = _run([KeyError("a"), KeyError("a")])
    assert found == _expected([record for record in LOG if record is not LOG[3]])
    assert (fold.next, fold.unjudged) == (6, [3])
    assert letter is not None
    assert (letter.stage, letter.code, letter.offset, letter.raw) == ("judge", "not_judgeable", 3, VALUES[3])
    assert (letter.node, letter.home, letter.index) == ("node-3", "n:node-3", None)
    assert "KeyError" in letter.message


def test_what_fails_once_is_judged_on_a_state_made_anew() -> None:
    fold, found, letter = _run([KeyError("a")])
    assert (found, letter, fold.unjudged) == (_expected(LOG), None, [])


def test_what_fails_in_another_way_is_no_defect_of_the_record() -> None:
    with pytest.raises(JudgingFailed):
        _run([KeyError("a"), KeyError("b")])


def test_what_another_worker_has_judged_meanwhile_is_taken_from_it() -> None:
    fold, found, letter = _run([KeyError("a")], rebuilt_to=6)
    assert (fold.next, letter) == (6, None)
    assert found == _expected(LOG[:3]), "the others are that worker's"


FAILING_JUDGE = """
from kvtrail.judging.judge import Judge
inner = Judge.batch
def batch(self, batch, append_us):
    found = inner(self, batch, append_us)
    if batch.node.startswith("node-bad"):
        raise RuntimeError("a defect of the judge")
    return found
Judge.batch = batch
"""


@pytest.mark.kafka
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_defect_stops_no_partition_and_its_records_are_judged_by_the_next_build(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path)
    metered = config.model_copy(update={"detector": config.detector.model_copy(update={"metrics_port": 0})})
    bad = histories.Lane("node-bad")
    first = [bad.event(event.body, event.identity, event.key) for event in histories.incident("node-bad")]
    second = [bad.event(event.body, event.identity, event.key) for event in histories.incident("node-bad")]
    good = [histories.envelope(histories.incident(f"node-{n}")) for n in range(1, 9)]
    with Worker("sink", config, tmp_path) as sink:
        with Worker("detect", metered, tmp_path, preamble=FAILING_JUDGE) as failing:
            publish(topics, [*good[:4], histories.envelope(first), *good[4:]])
            until(all_judged(config), "everything but one record to be judged")
            assert len({finding.home for finding in final(published_findings(topics)).values()}) == 8
            told = samples_of(failing)
            assert told["kvtrail_detector_unjudged_records_total"] == 1
            failing.kill()  # the letter is on the topic, the record is left out for good
            failing.start()
            until(all_judged(config), "the next life")
            assert failing.stop() == 0
        until(lambda: all_stored(config, LIFECYCLE, FINDINGS, DEAD_LETTER)(), "the sink")
        with connect(database) as client:
            letters = queries.DEAD_LETTERS_FOUND.run(client, stage="judge")
            assert [(letter.raw, letter.code) for letter in letters] == [
                (histories.envelope(first)[1], "not_judgeable")
            ]
            with Worker("detect", config, tmp_path) as mended:
                publish(topics, [histories.envelope(second)])
                until(all_judged(config), "what came after it")
                gap = final(published_findings(topics)).values()
                assert [found.title for found in gap if found.cause == "STREAM_GAP"] == ["5 event(s) missing: 1-5"]
                readable, unreadable = sort_out(letters)
                assert not unreadable
                asyncio.run(readmit(topics, readable))
                until(all_judged(config), "what was sent again")
                assert mended.stop() == 0
            until(lambda: all_stored(config, LIFECYCLE, FINDINGS)(), "the sink")
            assert queries.DUPLICATES.run(client) == []
        assert sink.stop() == 0
    changes, same = compare(final(published_findings(topics)), undisturbed(config))
    assert (changes, same) == ([], 8 * 2 + 4)


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_build_that_can_judge_nothing_stops_before_a_topic_is_drained(topics: KafkaConfig, tmp_path: Path) -> None:
    config = config_of(topics, None, tmp_path)
    config = config.model_copy(update={"detector": config.detector.model_copy(update={"refused_in_a_row": 4})})
    lane = histories.Lane("node-bad")
    with Worker("detect", config, tmp_path, preamble=FAILING_JUDGE) as detector:
        publish(topics, [histories.envelope([lane.event(e.body, e.identity, e.key)]) for e in histories.incident() * 2])
        assert detector.wait() == 1
        assert "4 records in a row were refused" in detector.wait_for("giving up")["message"]
        assert end_offsets(topics, DEAD_LETTER) == {0: 3}
        detector.start(wait=False)  # a restart forgives nothing
        assert detector.wait() == 1
        assert end_offsets(topics, DEAD_LETTER) == {0: 3}
