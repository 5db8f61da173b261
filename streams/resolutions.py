"""What a resolver keeps of a partition, and how what it made of one leaves: runs for envelopes, letters. Pure."""

from collections.abc import Iterator
from itertools import groupby, pairwise

from ..schemas.dead_letters import DeadLetter, dead_letter
from ..schemas.errors import BadInput
from ..schemas.events import Event
from .joining import Window
from .records import Record
from .refusals import RefusalLimit

AT_ONCE = 128
"""Resolutions in one record: each may bring an identity of its own."""


class Place:
    """One partition: its window, how far it was read, how far everything had been sent, and the limit of refusals."""

    def __init__(self, window: Window, position: int, sent: int, limit: RefusalLimit) -> None:
        self.window, self.position, self.sent, self.limit = window, position, sent, limit
        self.records = self.refused = 0
        self.committed: tuple[int, int] | None = None

    @property
    def state(self) -> tuple[int, int]:
        """What a commit says: where to read from, and what had been sent."""
        return self.window.low, self.sent


def runs_of(made: list[Event]) -> Iterator[list[Event]]:
    """Resolutions as runs that an envelope can hold: of one lane, their numbers contiguous, each once."""
    made = sorted({event.id: event for event in made}.values(), key=lambda e: (e.home, e.incarnation, e.seq))
    for _, group in groupby(made, key=lambda event: (event.home, event.incarnation)):
        events = list(group)
        ends = [at for at, (one, other) in enumerate(pairwise(events), 1) if other.seq != one.seq + 1]
        for start, end in pairwise([0, *ends, len(events)]):
            for at in range(start, end, AT_ONCE):
                yield events[at : min(at + AT_ONCE, end)]


def refusal_letter(error: BadInput, record: Record) -> DeadLetter:
    return dead_letter(
        error, record.value, topic=record.topic, partition=record.partition, offset=record.offset, stage="resolve",
        at_us=record.append_us,
    )  # fmt: skip
