"""A partition's state is the fold of its log's prefix ending at `next`. Pure: no clock, no Kafka, no Faust.

Records come from anybody, more than once, with holes: what decides is only where a record stands against `next`.
Below it, the record is already inside the state and is skipped. At it, it is judged. Above it, whoever delivered it
skipped something, and the missing range has to be read from the log before the record may be judged.
"""

from collections.abc import Iterable
from typing import Protocol

from ..schemas.envelope import Batch, EnvelopeDecoder
from ..schemas.findings import Finding
from .observing import Observed
from .records import Record
from .refusals import RefusalLimit, refused

UNJUDGED_KEPT = 1000
"""How many offsets of records that were left out are remembered, for the limit after a restart."""


class Frozen(Protocol):
    """A state that may be encoded in another thread while the judge goes on."""

    def encode(self) -> bytes: ...


class Judging(Protocol):
    """What the fold needs of a judge."""

    def batch(self, batch: Batch, append_us: int) -> list[Finding]: ...

    def freeze(self) -> Frozen: ...


class JudgingFailed(Exception):
    """Decoding or judging a record raised what no bad input raises. The judge's state is no longer to be used;
    `findings` are those of the records before it."""

    def __init__(self, record: Record, findings: list[Finding]) -> None:
        super().__init__(f"record {record.offset} could not be judged")
        self.record = record
        self.findings = findings

    def like(self, other: "JudgingFailed") -> bool:
        """Whether both failed at the same record in the same way."""
        return self.record.offset == other.record.offset and repr(self.__cause__) == repr(other.__cause__)


class Fold:
    """One partition's prefix. `next` is the offset of the first record that is not part of it."""

    def __init__(
        self, judge: Judging, next_offset: int, last_append_us: int = 0, limit: RefusalLimit | None = None
    ) -> None:
        self.judge = judge
        self.next = next_offset
        self.last_append_us = last_append_us
        self.rejected = 0
        self.newest_event_us = 0
        """The newest event time met since this fold was made, by the producers' clocks."""
        self.unjudged: list[int] = []
        """Offsets of the newest records of the prefix that were left out of it."""
        self.observed: list[Observed] = []
        """What the rules that compare homes need of the records applied; whoever hands it on empties it."""
        self.usable = True
        """False once judging a record has failed half-way."""
        self._decoder = EnvelopeDecoder()
        self._limit = limit

    def unseen(self, records: Iterable[Record]) -> list[Record]:
        """Those of `records` that are not part of the prefix, in order of offset, each once."""
        return sorted({record.offset: record for record in records if record.offset >= self.next}.values(), key=_offset)

    def missing(self, records: list[Record]) -> tuple[int, int] | None:
        """The range `first, end` of offsets that must be read from the log before all of these may be applied."""
        expected = self.next
        for record in records:
            if record.offset > expected:
                return self.next, records[-1].offset + 1
            expected = record.offset + 1
        return None

    def apply(self, records: Iterable[Record]) -> list[Finding]:
        """Judge records that follow the prefix, in order; the findings are new revisions, in order.

        Holes between them must be real holes of the log: call `missing` first. Raises `ValueError` on a record
        that is already part of the prefix, since judging it again would be wrong, `TooManyRefused`, and
        `JudgingFailed`, after which only `become` helps.
        """
        findings: list[Finding] = []
        for record in records:
            if record.offset < self.next:
                raise ValueError("a record below the prefix's end is already part of it")
            try:
                batch = self._decoder.decode(record.value)
                if batch.first is not None:
                    findings += self.judge.batch(batch, record.append_us)
                    self._note(record)
            except MemoryError:
                raise  # says nothing about the record
            except Exception as error:
                self.usable = False
                raise JudgingFailed(record, findings) from error
            self.rejected += len(batch.rejects)
            if self._limit is not None:
                self._limit.take(refused(batch))
            if batch.events:
                self.newest_event_us = max(self.newest_event_us, batch.events[-1].time_us)
            self.next = record.offset + 1
            self.last_append_us = record.append_us
        return findings

    def _note(self, record: Record) -> None:
        observations = getattr(self.judge, "observations", None)
        if observations:
            self.observed.append(Observed(record.offset, record.append_us, tuple(observations)))
            observations.clear()

    def become(self, other: "Fold", judge: Judging | None = None) -> None:
        """Go on from another fold of the same log, with `judge` in place of its own. The limit goes on as it was."""
        self.judge = other.judge if judge is None else judge
        self.observed += other.observed  # some of it again, which whoever reads it drops
        self.next, self.last_append_us, self.usable = other.next, other.last_append_us, True

    def leave_out(self, record: Record) -> None:
        """The next record is part of the prefix without having been judged. Raises `TooManyRefused`."""
        if self._limit is not None:
            self._limit.take(True)
        self.unjudged = [*self.unjudged[1 - UNJUDGED_KEPT :], record.offset]
        self.next, self.last_append_us = record.offset + 1, record.append_us

    def close(self, end: int) -> None:
        """Nothing is left in the log below `end`."""
        self.next = max(self.next, end)


def _offset(record: Record) -> int:
    return record.offset
