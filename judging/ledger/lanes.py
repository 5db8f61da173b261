"""Lanes: what has been seen of each (node, incarnation, home), and where an event stands in its home's order.

The order of a home is a number: position << 64 | incarnation << 48 | seq. The position is the event's arrival, except
for an event that comes late: it takes the position of its successor in its lane (or of the first event of its node's
next incarnation), so producer order holds inside a lane while nothing already seen from other lanes moves.
"""

from bisect import bisect_right
from operator import itemgetter

SEQ_BITS = 48
POSITION_SHIFT = 64
MAX_SEQ = (1 << SEQ_BITS) - 1
NEVER = (1 << 128) - 1
"""After every order."""
_FIRST_ORDINAL = 1 << 14
_SPACING = 8


class Lane:
    """One lane. `runs` are the seqs seen, as [first, last, position of first], disjoint and sorted."""

    __slots__ = (
        "blind_from", "first_us", "gap_us", "heard_us", "home", "incarnation", "index", "last_us", "lost", "next",
        "node", "ordinal", "runs",
    )  # fmt: skip

    def __init__(self, index: int, node: str, incarnation: str, home: str, ordinal: int, first_us: int) -> None:
        self.index, self.node, self.incarnation, self.home = index, node, incarnation, home
        self.ordinal = ordinal
        self.first_us = self.last_us = first_us
        self.heard_us = 0
        """When the log last brought a record of it."""
        self.runs: list[list[int]] = []
        self.next: Lane | None = None
        self.blind_from = NEVER
        """Order of its first event that was refused or lost for good: what it said is unknown."""
        self.gap_us = 0
        """When its oldest open gap was seen, by the event that showed it."""
        self.lost: list[tuple[int, int]] = []
        """Gaps that nobody waits for any longer."""

    def event_id(self, order: int) -> str:
        """The id of this lane's event at `order`."""
        return f"{self.node}/{self.incarnation}/{self.home}/{order & MAX_SEQ}"

    @property
    def start(self) -> int:
        """The order before all of this lane's events and after all of its node's earlier incarnations."""
        return self.runs[0][2] << POSITION_SHIFT | self.ordinal << SEQ_BITS

    def order(self, position: int, seq: int) -> int:
        return position << POSITION_SHIFT | self.ordinal << SEQ_BITS | min(seq, MAX_SEQ)

    def take(self, seq: int, position: int) -> int | None:
        """Mark `seq` as seen at arrival `position`. The event's order, or None when it had been seen."""
        runs = self.runs
        if self.next is not None and self.next.runs:
            position = min(position, self.next.runs[0][2])
        if not runs or seq > runs[-1][1]:
            if runs and seq == runs[-1][1] + 1 and self.next is None:
                runs[-1][1] = seq
            else:
                self._insert(len(runs), seq, position)
            return self.order(position, seq)
        index = bisect_right(runs, seq, key=itemgetter(0)) - 1
        if index >= 0 and seq <= runs[index][1]:
            return None
        position = runs[index + 1][2]
        self._insert(index + 1, seq, position)
        return self.order(position, seq)

    def _insert(self, index: int, seq: int, position: int) -> None:
        runs = self.runs
        after = runs[index] if index < len(runs) else None
        before = runs[index - 1] if index else None
        if before is not None and before[1] == seq - 1:
            before[1] = seq
            if after is not None and after[0] == seq + 1:
                before[1] = after[1]
                del runs[index]
        elif after is not None and after[0] == seq + 1:
            after[0] = seq
        else:
            runs.insert(index, [seq, seq, position])

    def is_late(self, order: int) -> bool:
        """Whether an event of this lane that stands after `order` had been seen."""
        return (order & MAX_SEQ) < self.runs[-1][1] or self.next is not None

    @property
    def whole(self) -> bool:
        """Every seq up to the newest one has been seen or given up."""
        return len(self.runs) == 1 and self.runs[0][0] == 1

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Runs of seqs before the newest one that have not been seen, those given up included."""
        found, expected = list(self.lost), 1
        for first, last, _ in self.runs:
            if first > expected:
                found.append((expected, first - 1))
            expected = last + 1
        return tuple(sorted(found))

    @property
    def hole(self) -> int:
        """Where its first missing event belongs, `NEVER` where none is missing."""
        expected = 1
        for first, last, position in self.runs:
            if first > expected:
                return self.order(position, expected)
            expected = last + 1
        return NEVER

    def give_up(self) -> None:
        """Wait no longer for what is missing: should it still come, it changes nothing."""
        self.blind_from = min(self.blind_from, self.hole)
        self.lost = list(self.gaps())
        self.runs = [[1, self.runs[-1][1], self.runs[0][2]]]


class Incarnations:
    """The lanes of one node in one home, oldest incarnation first."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        self.lanes: list[Lane] = []

    def find(self, incarnation: str) -> Lane | None:
        for lane in reversed(self.lanes):
            if lane.incarnation == incarnation:
                return lane
        return None

    def open(self, index: int, node: str, incarnation: str, home: str, time_us: int, skew_us: int) -> Lane:
        """A lane for an incarnation not seen before. It is the newest, unless the node's own clock says that it is
        older than one already known by more than the skew."""
        at = len(self.lanes)
        while at and time_us < self.lanes[at - 1].first_us - skew_us:
            at -= 1
        before = self.lanes[at - 1].ordinal if at else 0
        if at == len(self.lanes):
            ordinal = before + _SPACING if at else _FIRST_ORDINAL
        else:
            ordinal = (before + self.lanes[at].ordinal) // 2
        lane = Lane(index, node, incarnation, home, ordinal, time_us)
        if at:
            self.lanes[at - 1].next = lane
        if at < len(self.lanes):
            lane.next = self.lanes[at]
        self.lanes.insert(at, lane)
        return lane
