"""Lanes: what was seen, in what order, and what is missing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.judging.ledger.lanes import Incarnations, Lane


def lane() -> Lane:
    return Lane(0, "n", "i", "n:n", 1 << 14, 0)


@given(st.permutations(range(1, 30)), st.lists(st.integers(1, 29), max_size=10))
@settings(deadline=None)
def test_every_number_is_taken_once_and_kept_in_order(arrival: list[int], again: list[int]) -> None:
    one = lane()
    orders: dict[int, int] = {}
    for position, seq in enumerate([*arrival, *again], 1):
        order = one.take(seq, position)
        assert (order is None) == (seq in orders)
        if order is not None:
            orders[seq] = order
    assert [orders[seq] for seq in sorted(orders)] == sorted(orders.values())
    assert one.whole and one.gaps() == ()


@given(st.sets(st.integers(1, 40), min_size=1))
def test_gaps_are_what_is_missing_before_the_newest(seen: set[int]) -> None:
    one = lane()
    for position, seq in enumerate(seen, 1):
        one.take(seq, position)
    missing = {seq for first, last in one.gaps() for seq in range(first, last + 1)}
    assert missing == set(range(1, max(seen))) - seen


def test_a_late_event_takes_its_successors_place_among_other_lanes() -> None:
    one, other = lane(), Lane(1, "m", "i", "n:n", 1 << 14, 0)
    first, early, third = one.take(1, 1), other.take(1, 2), one.take(3, 3)
    after = other.take(2, 4)
    late = one.take(2, 5)
    assert None not in (first, early, third, after, late)
    assert first < early < late < third < after  # type: ignore[operator]  # none is None


def test_what_is_given_up_stays_reported_and_is_not_waited_for() -> None:
    one = lane()
    for position, seq in enumerate((1, 4, 8), 1):
        one.take(seq, position)
    one.give_up()
    assert one.whole and one.blind_from == one.order(2, 2)
    assert one.gaps() == ((2, 3), (5, 7))
    assert one.take(2, 9) is None and one.take(8, 9) is None
    assert one.take(9, 10) is not None
    assert (one.whole, one.gaps()) == (True, ((2, 3), (5, 7)))


def test_a_beginning_that_is_given_up_leaves_a_lane_that_is_whole() -> None:
    one = lane()
    one.take(3, 1)
    one.give_up()
    assert one.whole and one.gaps() == ((1, 2),) and one.blind_from == one.order(1, 1)
    assert one.take(1, 2) is None


def test_incarnations_are_ordered_by_arrival_unless_the_nodes_clock_denies_it() -> None:
    known = Incarnations()
    skew = 5_000_000
    two = known.open(0, "n", "i2", "n:n", 100_000_000, skew)
    three = known.open(1, "n", "i3", "n:n", 99_000_000, skew)
    one = known.open(2, "n", "i1", "n:n", 10_000_000, skew)
    between = known.open(3, "n", "i1b", "n:n", 50_000_000, skew)
    assert [lane.incarnation for lane in known.lanes] == ["i1", "i1b", "i2", "i3"]
    assert one.ordinal < between.ordinal < two.ordinal < three.ordinal
    assert (one.next, between.next, two.next, three.next) == (between, two, three, None)
