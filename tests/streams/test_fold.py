"""The fold of a partition's prefix: what is skipped, what is a gap, and that delivery cannot change the result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import Batch, encode_plain
from kvtrail.schemas.events import Event, Hit
from kvtrail.schemas.findings import Finding, finding_id
from kvtrail.schemas.topics import LIFECYCLE
from kvtrail.streams.fold import Fold, Frozen, JudgingFailed
from kvtrail.streams.partition import portions
from kvtrail.streams.records import Record
from kvtrail.streams.refusals import RefusalLimit, TooManyRefused


def _finding(subject: str, number: int) -> Finding:
    return Finding(
        id=finding_id(subject), revision=1, status="open", rule="r", cause="c", severity=Severity.LOW,
        title=str(number),
    )  # fmt: skip


class Counting:
    """A judge that finds something about every record and remembers the order in which it saw them."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def batch(self, batch: Batch, append_us: int) -> list[Finding]:
        self.seen.append(append_us)
        return [_finding(event.id, len(self.seen)) for event in batch.events]

    def freeze(self) -> Frozen:
        raise NotImplementedError


def _record(offset: int, value: bytes | None = None) -> Record:
    event = Event(node="n1", incarnation="i1", home="n:n1", seq=offset + 1, time_us=1, body=Hit())
    return Record(
        topic="t", partition=0, offset=offset, append_us=offset,
        value=encode_plain(event) if value is None else value,
    )  # fmt: skip


LOG = [_record(offset) for offset in range(12)]


def test_below_next_is_skipped_and_above_is_a_gap() -> None:
    fold = Fold(Counting(), 5)
    assert fold.unseen([LOG[3], LOG[4], LOG[5], LOG[5]]) == [LOG[5]]
    assert fold.missing([LOG[5], LOG[6]]) is None
    assert fold.missing([LOG[7], LOG[8]]) == (5, 9)
    assert fold.missing([LOG[5], LOG[7]]) == (5, 8)
    assert fold.missing([]) is None


def test_a_record_of_the_prefix_is_never_judged_again() -> None:
    fold = Fold(Counting(), 5)
    with pytest.raises(ValueError, match="part of it"):
        fold.apply([LOG[4]])


def test_bad_input_moves_the_prefix_and_is_counted() -> None:
    judge = Counting()
    fold = Fold(judge, 0)
    fold.apply([_record(0, b"\xff"), _record(1, b""), LOG[2]])
    assert (fold.next, fold.rejected, judge.seen) == (3, 2, [2])


def test_an_empty_end_of_the_log_closes_the_gap() -> None:
    fold = Fold(Counting(), 5)
    fold.close(9)
    fold.close(3)
    assert fold.next == 9


class Failing(Counting):
    """A judge with a defect that one record meets."""

    def __init__(self, bad: int, error: Exception) -> None:
        super().__init__()
        self._bad, self._error = bad, error

    def batch(self, batch: Batch, append_us: int) -> list[Finding]:
        found = super().batch(batch, append_us)
        if append_us == self._bad:
            raise self._error
        return found


def test_a_record_that_cannot_be_judged_is_named_and_what_was_found_before_it_is_kept() -> None:
    fold = Fold(Failing(3, KeyError("k")), 0)
    with pytest.raises(JudgingFailed) as failed:
        fold.apply(LOG[:5])
    assert failed.value.record is LOG[3]
    assert len(failed.value.findings) == 3
    assert (fold.next, fold.usable) == (3, False)
    judge = Counting()
    fold.become(Fold(Counting(), 3), judge)
    fold.leave_out(LOG[3])
    assert (fold.next, fold.last_append_us, fold.usable, fold.unjudged) == (4, 3, True, [3])
    fold.apply(LOG[4:6])
    assert judge.seen == [4, 5]


def test_memory_that_is_gone_says_nothing_about_the_record() -> None:
    with pytest.raises(MemoryError):
        Fold(Failing(0, MemoryError()), 0).apply(LOG[:1])


def test_records_that_cannot_be_judged_count_against_the_limit() -> None:
    fold = Fold(Counting(), 0, limit=RefusalLimit("t/0", "detector", in_a_row=3, share=1))
    for record in LOG[:2]:
        fold.leave_out(record)
    fold.apply(LOG[2:3])
    for record in LOG[3:5]:
        fold.leave_out(record)
    with pytest.raises(TooManyRefused):
        fold.leave_out(LOG[5])
    assert fold.next == 5, "what trips the limit is not left out"


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 6)), max_size=30))
def test_any_delivery_gives_the_findings_of_the_log(deliveries: list[tuple[int, int]]) -> None:
    """Whatever is delivered, again, out of order, with holes: the judge sees the log's prefix, in order, once."""
    judge = Counting()
    fold = Fold(judge, 0)
    found: list[Finding] = []
    for start, length in deliveries:
        fresh = fold.unseen(LOG[start : start + length])
        gap = fold.missing(fresh)
        found += fold.apply(LOG[gap[0] : gap[1]] if gap else fresh)
    assert judge.seen == list(range(fold.next))
    assert found == Fold(Counting(), 0).apply(LOG[: fold.next])


def test_the_loop_is_held_for_a_portion_of_a_delivery_at_a_time() -> None:
    records = [
        Record(topic=LIFECYCLE, partition=0, offset=offset, append_us=0, value=b"x" * 400_000) for offset in range(7)
    ]
    assert [[one.offset for one in portion] for portion in portions(records)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [*portions([])] == []
