"""Observations of all partitions in the one order in which the log of the whole fleet was written. Pure.

What came of one record is folded once, however often it is said, and never out of order within its partition. Between
partitions the broker's append time orders; whoever calls says up to when nothing more can come.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from ..judging.observations import Observation
from .observing import Observations

Due = tuple[int, int, int, tuple[Observation, ...]]
"""Append time, partition and offset of a record of the lifecycle topic, and what was observed in it."""


class Merge:
    """`folded`: by partition the offset of the last record whose observations were given out, and its time."""

    def __init__(self, folded: dict[int, tuple[int, int]] | None = None) -> None:
        self.folded = dict(folded or {})
        self.late = 0
        """Records whose observations came after later ones had been given out."""
        self.waiting = 0
        self._heap: list[Due] = []
        self._taken = dict(self.folded)
        self._released_us = 0

    def take(self, record: Observations) -> None:
        """What a detector said."""
        partition = record.partition
        for one in record.observed:
            offset, append_us = self._taken.get(partition, (-1, 0))
            if one.offset <= offset:
                continue
            append_us = max(append_us, one.append_us)  # a broker's clock may step back
            self._taken[partition] = one.offset, append_us
            self.late += append_us < self._released_us
            self.waiting += len(one.observations)
            heappush(self._heap, (append_us, partition, one.offset, one.observations))

    def release(self, until_us: int, most: int | None = None) -> Iterator[Due]:
        """Everything appended up to then, in order; and what there is beyond `most` observations, whenever it was."""
        while self._heap and (self._heap[0][0] <= until_us or (most is not None and self.waiting > most)):
            due = heappop(self._heap)
            self.waiting -= len(due[3])
            self.folded[due[1]] = due[2], due[0]
            self._released_us = max(self._released_us, due[0])
            yield due
