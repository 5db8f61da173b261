"""A record that the store rejects over some of its events: only these are refused."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.schemas.envelope import EnvelopeEncoder
from kvtrail.schemas.errors import StoreRejected
from kvtrail.schemas.events import Event, Hit
from kvtrail.schemas.topics import LIFECYCLE
from kvtrail.store.client import Client, SchemaMissing
from kvtrail.store.rows import Source
from kvtrail.streams.batches import Batch
from kvtrail.streams.deadletters import DeadLetterTopic
from kvtrail.streams.intake import LifecycleIntake
from kvtrail.streams.lanes import StoredLanes
from kvtrail.streams.records import Record
from kvtrail.streams.refusals import RefusalLimit, TooManyRefused
from kvtrail.streams.writer import Writer

TP = TopicPartition(LIFECYCLE, 0)


class Picky:
    """A store that takes an insert whole, or rejects it over the events it does not like; a token is taken once."""

    def __init__(self, bad: set[int], *, crash_after: int = 1_000_000) -> None:
        self.stored: list[int] = []
        self.evidence: list[tuple[int, int, int]] = []
        self.letters = 0
        self.bad, self._left, self._tokens = bad, crash_after, set[str]()

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise SystemExit
        if table == "dead_letters":
            self.letters += len(columns["raw"])
            return
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        events = [row["seq"] for row in rows if not row["record"]]
        if self.bad & set(events):
            raise StoreRejected("cannot be parsed.", field="events_in")
        if token in self._tokens:
            return
        self._tokens.add(token)
        self.stored += events
        self.evidence += [(row["k_offset"], row["n_events"], row["n_rejects"]) for row in rows if row["record"]]

    def revived(self) -> "Picky":
        self._left = 1_000_000
        return self


class Letters:
    def __init__(self) -> None:
        self.letters: list[Any] = []

    async def publish(self, letters: Sequence[Any]) -> list[tuple[Source, Any]]:
        self.letters = [*letters]
        return [(Source("kvtrail.dead-letter", 0, at, 1), letter) for at, letter in enumerate(letters)]


def _batch(sizes: Sequence[int], limit: RefusalLimit | None = None) -> Batch:
    """Records of one lane, with so many events each."""
    intake, seq, items = LifecycleIntake(StoredLanes()), 1, []
    for offset, size in enumerate(sizes):
        events = [
            Event(node="n1", incarnation="i1", home="n:n1", seq=at, time_us=at, body=Hit(), key=f"k{at}")
            for at in range(seq, seq + size)
        ]
        seq += size
        value = EnvelopeEncoder().encode(events)
        items.append(intake.take(Record(topic=LIFECYCLE, partition=0, offset=offset, append_us=1, value=value)))
    return Batch(first=0, last=len(sizes) - 1, items=items, intake=intake, limit=limit)


def _write(store: Picky, letters: Letters, batch: Batch) -> None:
    writer = Writer(cast(Client, store), cast(DeadLetterTopic, letters), 0, interrupted=lambda: False)
    asyncio.run(writer.write(TP, batch))


def test_one_bad_event_of_an_envelope_is_refused_alone() -> None:
    store, letters = Picky({7}), Letters()
    _write(store, letters, _batch([4, 9, 3]))
    assert sorted(store.stored) == [seq for seq in range(1, 17) if seq != 7]
    assert sorted(store.evidence) == [(0, 4, 0), (1, 8, 1), (2, 3, 0)]
    [letter] = letters.letters
    assert (letter.offset, letter.index, letter.seq, letter.stage, letter.node) == (1, 2, 7, "insert", "n1")


def test_a_record_of_which_nothing_is_accepted_is_refused_as_a_whole() -> None:
    store, letters = Picky({5, 6, 7}), Letters()
    _write(store, letters, _batch([4, 3, 2]))
    assert sorted(store.stored) == [1, 2, 3, 4, 8, 9]
    [letter] = letters.letters
    assert (letter.offset, letter.index, letter.message) == (1, None, "cannot be parsed.")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.sets(st.integers(1, 30), max_size=6), st.integers(0, 40))
def test_whatever_is_at_fault_and_whenever_it_crashes_the_rest_is_stored_once(
    sizes: list[int], bad: set[int], crash_after: int
) -> None:
    store, letters = Picky(bad, crash_after=crash_after), Letters()
    try:
        _write(store, letters, _batch(sizes))
    except SystemExit:
        _write(store.revived(), letters, _batch(sizes))
    events = set(range(1, sum(sizes) + 1))
    assert sorted(store.stored) == sorted(events - bad)
    refused = {letter.seq for letter in letters.letters if letter.seq is not None}
    whole = {letter.offset for letter in letters.letters if letter.seq is None}
    for offset, size in enumerate(sizes):
        own = set(range(sum(sizes[:offset]) + 1, sum(sizes[: offset + 1]) + 1))
        assert own <= bad if offset in whole else own & bad == own & refused, (offset, size)


def test_a_table_that_lacks_a_column_refuses_no_event() -> None:
    class Old(Picky):
        def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str) -> None:
            raise (
                SchemaMissing("has no column copy.", field=table) if len(columns["record"]) < 3 else StoreRejected("?")
            )

    with pytest.raises(SchemaMissing):
        _write(Old(set()), Letters(), _batch([4, 9]))


def test_a_record_whose_own_row_is_rejected_keeps_its_events_and_stops_nobody() -> None:
    class NoEvidence(Picky):
        def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str) -> None:
            if table != "dead_letters" and 1 in columns["record"]:
                raise StoreRejected("no room for evidence.", field=table)
            super().insert(table, columns, token)

    store, letters = NoEvidence(set()), Letters()
    _write(store, letters, _batch([4]))
    assert sorted(store.stored) == [1, 2, 3, 4]
    [letter] = letters.letters
    assert (letter.index, letter.message) == (None, "no room for evidence.")


def test_records_of_which_half_is_rejected_count_against_the_limit() -> None:
    limit = RefusalLimit("kvtrail.lifecycle/0", "sink", in_a_row=3, share=1)
    with pytest.raises(TooManyRefused):
        _write(Picky({1, 2, 5, 6, 9, 10}), Letters(), _batch([4, 4, 4], limit))
    limit = RefusalLimit("kvtrail.lifecycle/0", "sink", in_a_row=3, share=1)
    _write(Picky({1, 5, 9}), Letters(), _batch([4, 4, 4], limit))
