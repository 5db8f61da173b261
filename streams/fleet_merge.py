"""Observations of all partitions in the one order in which the log of the whole fleet was written. Pure.

What came of one record is folded once, however often it is said, and never out of order within its partition. Between
partitions the broker's append time orders; whoever calls says up to when nothing more can come.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from ..judging.observations import Observation
from .observing import Observations, Observed

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
        self._parts: dict[int, tuple[int, int, list[Observation]]] = {}
        """By partition: of a record that comes in parts its offset, the next part, and what there is so far."""
        self._released_us = 0

    def take(self, record: Observations) -> None:
        """What a detector said."""
        partition = record.partition
        for one in record.observed:
            offset, append_us = self._taken.get(partition, (-1, 0))
            if one.offset <= offset:
                continue
            observations = self._whole(partition, one)
            if observations is None:
                continue
            append_us = max(append_us, one.append_us)  # a broker's clock may step back
            self._taken[partition] = one.offset, append_us
            self.late += append_us < self._released_us
            self.waiting += len(observations)
            heappush(self._heap, (append_us, partition, one.offset, observations))

    def _whole(self, partition: int, one: Observed) -> tuple[Observation, ...] | None:
        """Everything observed in a record once its last part is here. A detector that was killed between two parts
        begins again with the first."""
        if not one.part and not one.more:
            return one.observations
        if not one.part:
            self._parts[partition] = one.offset, 1, list(one.observations)
            return None
        offset, part, so_far = self._parts.get(partition, (-1, 0, []))
        if (one.offset, one.part) != (offset, part):
            return None
        so_far += one.observations
        self._parts[partition] = offset, part + 1, so_far
        if one.more:
            return None
        del self._parts[partition]
        return tuple(so_far)

    def release(self, until_us: int, most: int | None = None) -> Iterator[Due]:
        """Everything appended up to then, in order; and what there is beyond `most` observations, whenever it was."""
        while self._heap and (self._heap[0][0] <= until_us or (most is not None and self.waiting > most)):
            due = heappop(self._heap)
            self.waiting -= len(due[3])
            self.folded[due[1]] = due[2], due[0]
            self._released_us = max(self._released_us, due[0])
            yield due
