"""From records to rows: what each topic's records become in ClickHouse, and what is refused. Pure.

Deterministic: the same records after the same history give the same rows, byte for byte, or a token would hide rows
that differ. So every time in here is the broker's append time.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from ..schemas.dead_letters import DeadLetter, dead_letter, decode_dead_letter
from ..schemas.envelope import Batch, EnvelopeDecoder
from ..schemas.errors import BadInput
from ..schemas.facts import Fact, Tick, decode_fact
from ..schemas.findings import Finding, decode_finding
from ..store import rows
from .lanes import StoredLanes
from .records import Record
from .refusals import refused


class Item(Struct, frozen=True, kw_only=True):
    """One record, decoded, with the letters of what was refused in it. `size` is its number of rows."""

    record: Record
    batch: Batch | None = None
    drop: frozenset[int] = frozenset()
    finding: Finding | None = None
    fact: Fact | None = None
    letter: DeadLetter | None = None
    letters: tuple[DeadLetter, ...] = ()
    size: int = 1

    @property
    def refused(self) -> bool:
        """Whether the record as a whole counts as refused."""
        return bool(self.letters) if self.batch is None else refused(self.batch)


class Intake(Protocol):
    """One partition's way from records to rows."""

    def take(self, record: Record) -> Item:
        """Decode one record. Call once for each record, in order."""
        ...

    def rows(self, items: Sequence[Item]) -> rows.Rows:
        """The rows of these items, for one insert."""
        ...

    def forget(self, item: Item) -> None:
        """This item was not stored after all: should it come again, it is new."""
        ...


class LifecycleIntake:
    """Envelopes. `lanes` says what is stored already; rejected events leave their neighbours alone."""

    def __init__(self, lanes: StoredLanes) -> None:
        self._lanes = lanes
        self._decoder = EnvelopeDecoder()

    def take(self, record: Record) -> Item:
        batch = self._decoder.decode(record.value)
        lane = (batch.node, batch.incarnation, batch.home)
        drop: frozenset[int] = frozenset()
        if batch.first is not None and batch.last is not None:
            drop = self._lanes.take(lane, batch.first, batch.last)
        letters = tuple(
            letter_of(reject.error, record, "decode", lane=lane, seq=reject.seq, index=reject.index)
            for reject in batch.rejects
        )
        return Item(record=record, batch=batch, drop=drop, letters=letters, size=1 + len(batch.events))

    def rows(self, items: Sequence[Item]) -> rows.Rows:
        return rows.record_rows(
            rows.Record(source_of(item.record), item.record.value, item.batch, item.drop)
            for item in items
            if item.batch is not None
        )

    def forget(self, item: Item) -> None:
        batch = item.batch
        if batch is not None and batch.first is not None:
            lane = (batch.node, batch.incarnation, batch.home)
            self._lanes.forget(lane, [event.seq for event in batch.events if event.seq not in item.drop])


class FindingsIntake:
    """Findings, one a record."""

    def take(self, record: Record) -> Item:
        try:
            return Item(record=record, finding=decode_finding(record.value))
        except BadInput as error:
            return Item(record=record, letters=(letter_of(error, record, "decode"),))

    def rows(self, items: Sequence[Item]) -> rows.Rows:
        return rows.finding_rows((source_of(item.record), item.finding) for item in items if item.finding is not None)

    def forget(self, item: Item) -> None:
        pass


class FactsIntake:
    """Facts, one a record. Ticks only move time and are not stored."""

    def take(self, record: Record) -> Item:
        try:
            fact = decode_fact(record.value)
        except BadInput as error:
            return Item(record=record, letters=(letter_of(error, record, "decode"),))
        return Item(record=record, fact=None if isinstance(fact.body, Tick) else fact)

    def rows(self, items: Sequence[Item]) -> rows.Rows:
        return rows.fact_rows((source_of(item.record), item.fact) for item in items if item.fact is not None)

    def forget(self, item: Item) -> None:
        pass


OWN_STAGES = frozenset({"decode", "insert"})
"""What the sink refuses itself; those letters are stored with the batch of the record they are about."""


class DeadLettersIntake:
    """Dead letters of the other workers, one a record. The sink's own are rows already."""

    def take(self, record: Record) -> Item:
        try:
            letter = decode_dead_letter(record.value)
        except BadInput as error:
            return Item(record=record, letters=(letter_of(error, record, "decode"),))
        return Item(record=record, letter=None if letter.stage in OWN_STAGES else letter)

    def rows(self, items: Sequence[Item]) -> rows.Rows:
        return rows.dead_letter_rows((source_of(item.record), item.letter) for item in items if item.letter is not None)

    def forget(self, item: Item) -> None:
        pass


def letter_of(
    error: BadInput, record: Record, stage: str, *, lane: tuple[str, str, str] = ("", "", ""),
    seq: int | None = None, index: int | None = None,
) -> DeadLetter:  # fmt: skip
    """The dead letter for what `error` says about `record`."""
    return dead_letter(
        error, record.value, topic=record.topic, partition=record.partition, offset=record.offset, stage=stage,
        at_us=record.append_us, lane=lane, seq=seq, index=index,
    )  # fmt: skip


def source_of(record: Record) -> rows.Source:
    """Where the record stands in Kafka, as the rows keep it."""
    return rows.Source(record.topic, record.partition, record.offset, record.append_us)


def letters_of(items: Iterable[Item]) -> list[DeadLetter]:
    """All dead letters of these items, in order."""
    return [letter for item in items for letter in item.letters]
