"""The fold of a partition's prefix: what is skipped, what is a gap, and that delivery cannot change the result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import Batch, encode_plain
from kvtrail.schemas.events import Event, Hit
from kvtrail.schemas.findings import Finding, finding_id
from kvtrail.streams.fold import Fold, Frozen
from kvtrail.streams.records import Record


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
