"""Runs of stored sequence numbers: a set of integers that stays small."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from kvtrail.streams.lanes import Runs, StoredLanes

LANE = ("n1", "i1", "n:n1")


RUNS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=25)


def _numbers(first: int, length: int) -> set[int]:
    return set(range(first, first + length + 1))


@given(RUNS)
def test_runs_are_the_set_they_stand_for(pairs: list[tuple[int, int]]) -> None:
    runs, model = Runs(), set[int]()
    for first, length in pairs:
        assert runs.common(first, first + length) == model & _numbers(first, length)
        runs.add(first, first + length)
        model |= _numbers(first, length)
    flat = [*runs]
    assert {number for first, last in flat for number in range(first, last + 1)} == model
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(flat))


@given(RUNS, st.integers(0, 25))
def test_every_event_is_kept_exactly_once_restarts_included(pairs: list[tuple[int, int]], restart: int) -> None:
    """After a restart the runs come from the store, merged: what is dropped must not depend on it."""
    lanes, kept = StoredLanes(), list[int]()
    for at, (first, length) in enumerate(pairs):
        if at == restart:
            lanes = StoredLanes((LANE, before, before + more) for before, more in pairs[:at])
        kept += sorted(_numbers(first, length) - lanes.take(LANE, first, first + length))
    assert sorted(kept) == sorted(set().union(*(_numbers(*pair) for pair in pairs)))


def test_lanes_do_not_share_numbers() -> None:
    lanes = StoredLanes([(LANE, 1, 5)])
    assert lanes.take(LANE, 5, 6) == {5}
    assert lanes.take(("n1", "i2", "n:n1"), 5, 6) == frozenset()
