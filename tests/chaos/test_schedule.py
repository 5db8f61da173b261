"""The schedule is a seed's, and reaches everything; the comparison sees what is more, less, or there twice."""

from collections import Counter
from itertools import islice

import pytest
from kvtrail.tests.chaos.schedule import disturbances
from kvtrail.tests.streams.comparison import difference


def test_a_seed_is_a_schedule() -> None:
    assert [*islice(disturbances(5, 2.0), 200)] == [*islice(disturbances(5, 2.0), 200)]
    assert [*islice(disturbances(5, 2.0), 200)] != [*islice(disturbances(6, 2.0), 200)]


def test_every_act_and_every_target_has_its_share() -> None:
    found = [*islice(disturbances(1, 2.0), 3000)]
    acts, first = Counter(each.act for each in found), Counter(each.targets[0] for each in found)
    assert acts.keys() == {"kill", "pause", "stop", "restart", "third"}
    assert acts["kill"] > 0.55 * len(found)
    workers = {"detector-0", "detector-1", "sink-0", "resolver-0", "fleet-0", "notifier-0"}
    assert first.keys() == {*workers, "store", "broker"}
    assert all(count > 0.06 * len(found) for count in first.values()), first
    assert all(len(set(each.targets)) == 8 for each in found)
    assert sum(each.gap_s for each in found) / len(found) == pytest.approx(2.0, rel=0.15)
    assert any(each.for_s > 6 for each in found), "longer than a session"


def test_rows_are_compared_as_often_as_they_are_there() -> None:
    assert difference("x", ["a", "b"], ["b", "a"]) == []
    [more] = difference("x", ["a", "b", "b", "c"], ["a", "b"])
    assert (more.live, more.undisturbed, more.first_live, more.first_undisturbed) == (2, 0, "b", "")
    [both] = difference("x", ["a", "z"], ["a", "y", "x"])
    assert (both.live, both.undisturbed, both.first_live, both.first_undisturbed) == (1, 2, "z", "x")
    assert "first undisturbed: x" in str(both)
