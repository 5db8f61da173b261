"""Which events of a lane are already stored, as intervals of `seq`. Pure.

Insert tokens make a batch that is sent again harmless; they do nothing against an event that a producer sent twice,
in two records. For that the sink remembers, for each lane, the runs it has stored: almost always one run. A refused
event's number counts as stored: it is, as a dead letter.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Lane = tuple[str, str, str]
"""(node, incarnation, home)."""


class Runs:
    """A set of positive integers, kept as sorted, disjoint, non-adjacent runs."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in runs:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def common(self, first: int, last: int) -> frozenset[int]:
        """The numbers of `first`..`last` that are in the set."""
        at = max(0, bisect_right(self._firsts, first) - 1)
        found: list[int] = []
        while at < len(self._firsts) and self._firsts[at] <= last:
            found += range(max(first, self._firsts[at]), min(last, self._lasts[at]) + 1)
            at += 1
        return frozenset(found)

    def add(self, first: int, last: int) -> None:
        """Put `first`..`last` into the set, joining what it touches."""
        lasts, firsts = self._lasts, self._firsts
        if lasts and first == lasts[-1] + 1:
            lasts[-1] = last
            return
        low = bisect_right(firsts, first) - 1
        if low < 0 or lasts[low] < first - 1:
            low += 1
        high = low
        while high < len(firsts) and firsts[high] <= last + 1:
            first, last = min(first, firsts[high]), max(last, lasts[high])
            high += 1
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def remove(self, number: int) -> None:
        """Take one number out of the set."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0 or self._lasts[at] < number:
            return
        first, last = self._firsts[at], self._lasts[at]
        left = [(a, b) for a, b in ((first, number - 1), (number + 1, last)) if a <= b]
        self._firsts[at : at + 1] = [a for a, _ in left]
        self._lasts[at : at + 1] = [b for _, b in left]


class StoredLanes:
    """The runs of every lane of one partition."""

    def __init__(self, runs: Iterable[tuple[Lane, int, int]] = ()) -> None:
        self._lanes: dict[Lane, Runs] = {}
        for lane, first, last in runs:
            self._lanes.setdefault(lane, Runs()).add(first, last)

    def take(self, lane: Lane, first: int, last: int) -> frozenset[int]:
        """Count the run `first`..`last` as stored from now on; returns what of it was already, to be dropped."""
        runs = self._lanes.setdefault(lane, Runs())
        known = runs.common(first, last)
        runs.add(first, last)
        return known

    def forget(self, lane: Lane, numbers: Iterable[int]) -> None:
        """These are not stored after all."""
        for number in numbers:
            self._lanes[lane].remove(number)
