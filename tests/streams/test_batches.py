"""The sink's steps against every crash: whatever dies, whenever, the store ends with each row once."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.schemas.envelope import EnvelopeEncoder
from kvtrail.schemas.errors import StoreError, StoreRefused, StoreRejected, StoreUnavailable
from kvtrail.schemas.events import Event, Hit
from kvtrail.schemas.topics import LIFECYCLE
from kvtrail.store.client import Client, SchemaMissing
from kvtrail.store.rows import Source
from kvtrail.streams.batches import Batch, Cut
from kvtrail.streams.deadletters import DeadLetterTopic
from kvtrail.streams.intake import LifecycleIntake
from kvtrail.streams.lanes import StoredLanes
from kvtrail.streams.metrics import Registry
from kvtrail.streams.pending import decode_pending
from kvtrail.streams.records import Record
from kvtrail.streams.writer import Interrupted, Writer

TP = TopicPartition(LIFECYCLE, 0)
_encoder = EnvelopeEncoder()


def _record(offset: int, first: int, count: int) -> Record:
    events = [
        Event(node="n1", incarnation="i1", home="n:n1", seq=seq, time_us=seq, body=Hit(), key=f"k{seq}")
        for seq in range(first, first + count)
    ]
    return Record(topic=LIFECYCLE, partition=0, offset=offset, append_us=offset, value=_encoder.encode(events))


def _log() -> list[Record]:
    """Twelve records; two of them repeat what a producer had already sent."""
    firsts = [1, 4, 7, 4, 10, 13, 16, 19, 10, 22, 25, 28]
    return [_record(offset, first, 3) for offset, first in enumerate(firsts)]


LOG = _log()
EVENTS = 30


class Crash(BaseException):
    """The process is gone."""


class World:
    """What survives a crash: the log, the group's commit, the store. `faults` happen at the steps they number."""

    def __init__(self, faults: Mapping[int, str]) -> None:
        self.committed: tuple[int, str] = (0, "")
        self.tokens: set[str] = set()
        self.rows: list[dict[str, Any]] = []
        self.ledger: list[dict[str, Any]] = []
        self._faults = dict(faults)
        self._step = 0

    def _fault(self) -> str:
        self._step += 1
        return self._faults.pop(self._step, "")

    async def commit(self, offset: int, metadata: str) -> None:
        fault = self._fault()
        if fault == "before":
            raise Crash
        self.committed = (offset, metadata)
        if fault:
            raise Crash

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str) -> None:
        fault = self._fault()
        if fault == "before":
            raise Crash
        if fault == "unavailable":
            raise StoreUnavailable("is away")
        if token not in self.tokens:
            self.tokens.add(token)
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            self.rows += rows
            self.ledger.append(ledger_row([row for row in rows if row["record"]]))
        if fault == "unanswered":
            raise StoreUnavailable("took it and did not say so")
        if fault:
            raise Crash

    def query(self, sql: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What the ledger holds of a range."""
        first, last = params["first_offset"], params["last_offset"]
        return [row for row in self.ledger if first <= row["first_offset"] and row["last_offset"] <= last]

    def lanes(self, before: int) -> StoredLanes:
        return StoredLanes(
            ((row["node"], row["incarnation"], row["home"]), row["first_seq"], row["last_seq"])
            for row in self.rows
            if row["record"] and row["k_offset"] < before
        )


def ledger_row(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As the materialized view makes it."""
    folded = 0
    for record in records:
        folded ^= int.from_bytes(record["sha256"], "little")
    offsets = [record["k_offset"] for record in records]
    return {
        "first_offset": min(offsets), "last_offset": max(offsets), "records": len(records),
        "events": sum(record["n_events"] for record in records),
        "rejects": sum(record["n_rejects"] for record in records), "hash_xor": f"{folded:x}",
    }  # fmt: skip


class NoLetters:
    async def publish(self, letters: Sequence[Any]) -> list[tuple[Source, Any]]:
        raise AssertionError("nothing is refused here")


async def _live(world: World, batch_rows: int, fetch: int) -> None:
    """One life of a sink, to the end of the log or to its crash."""
    position, metadata = world.committed
    cut = Cut(
        intake=LifecycleIntake(world.lanes(position)),
        position=position,
        pending=decode_pending(metadata),
        batch_rows=batch_rows,
        batch_wait_s=0,
    )
    metrics = Registry()
    writer = Writer(
        cast(Client, world), cast(DeadLetterTopic, NoLetters()), 0, interrupted=lambda: False, metrics=metrics
    )

    async def store(batch: Batch) -> None:
        await writer.write(TP, batch)

    for start in range(position, len(LOG), fetch):
        cut.add(LOG[start : start + fetch], now=float(start))
        while cut.due(float(start)):
            await cut.flush(world.commit, store)
    while cut.due(1e9):
        await cut.flush(world.commit, store)
    assert "kvtrail_sink_changed_batches_total" not in metrics.render()


FAULTS = st.dictionaries(
    st.integers(1, 30), st.sampled_from(["before", "after", "unavailable", "unanswered"]), max_size=8
)


@settings(max_examples=150, deadline=None)
@given(FAULTS, st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=1, max_size=4))
def test_every_row_is_stored_once_whatever_crashes(faults: dict[int, str], lives: list[tuple[int, int]]) -> None:
    world = World(faults)
    for life in range(len(faults) + 1):
        try:
            asyncio.run(_live(world, *lives[life % len(lives)]))
            break
        except Crash:
            continue
    stored = sorted(row["seq"] for row in world.rows if not row["record"])
    assert stored == list(range(1, EVENTS + 1))
    assert sorted(row["k_offset"] for row in world.rows if row["record"]) == list(range(len(LOG)))
    assert world.committed == (len(LOG), "")


def test_a_pending_range_waits_until_it_is_complete_and_nothing_newer_overtakes_it() -> None:
    cut = Cut(
        intake=LifecycleIntake(StoredLanes()), position=2, pending=(2, 5), batch_rows=1, batch_wait_s=0
    )  # fmt: skip
    cut.add(LOG[2:5], now=0)
    assert not cut.due(1e9)
    cut.add(LOG[5:9], now=0)
    batch = cut.next()
    assert (batch.first, batch.last, len(batch.items)) == (2, 5, 4)


class Failing:
    """A client that fails in one way for records it does not like."""

    def __init__(self, error: Exception, bad: int) -> None:
        self.stored: list[int] = []
        self._error, self.bad = error, bad

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str) -> None:
        if table == "dead_letters":
            return
        if self.bad in columns["k_offset"]:
            raise self._error
        self.stored += [offset for offset, record in zip(columns["k_offset"], columns["record"], strict=True) if record]


class Letters:
    def __init__(self) -> None:
        self.letters: list[Any] = []

    async def publish(self, letters: Sequence[Any]) -> list[tuple[Source, Any]]:
        self.letters += letters
        return [(Source("kvtrail.dead-letter", 0, at, 1), letter) for at, letter in enumerate(letters)]


def _batch() -> Batch:
    intake = LifecycleIntake(StoredLanes())
    return Batch(first=0, last=4, items=[intake.take(record) for record in LOG[:5]], intake=intake)


def test_a_rejected_record_becomes_a_dead_letter_and_its_neighbours_are_stored() -> None:
    client, letters = Failing(StoreRejected("no", field="events_in"), 2), Letters()
    writer = Writer(cast(Client, client), cast(DeadLetterTopic, letters), 0, interrupted=lambda: False)
    asyncio.run(writer.write(TP, _batch()))
    assert client.stored == [0, 1, 3, 4]
    [letter] = letters.letters
    assert (letter.offset, letter.stage, letter.code, letter.raw) == (2, "insert", "not_storable", LOG[2].value)
    assert writer.counts()["dead_letters"] == 1


@pytest.mark.parametrize("error", [StoreRefused("password"), SchemaMissing("has no column x.")])
def test_what_a_person_has_to_mend_stops_the_sink(error: StoreError) -> None:
    """No record is at fault: none may become a dead letter over it."""
    client = Failing(error, 2)
    writer = Writer(cast(Client, client), cast(DeadLetterTopic, NoLetters()), 0, interrupted=lambda: False)
    with pytest.raises(type(error)):
        asyncio.run(writer.write(TP, _batch()))


def test_readiness_follows_the_store() -> None:
    async def run() -> None:
        client = Failing(StoreUnavailable("away"), 2)
        attempts = 0

        def interrupted() -> bool:
            nonlocal attempts
            attempts += 1
            return attempts > 1

        writer = Writer(cast(Client, client), cast(DeadLetterTopic, NoLetters()), 0.001, interrupted=interrupted)
        with pytest.raises(Interrupted):
            await writer.write(TP, _batch())
        assert "away" in await writer.problem()
        assert writer.away_s > 0
        client.bad = -1
        await writer.write(TP, _batch())
        assert (await writer.problem(), writer.away_s) == ("", 0)

    asyncio.run(run())


def test_a_stop_does_not_wait_for_a_store_that_is_away() -> None:
    client = Failing(StoreUnavailable("away"), 2)
    writer = Writer(cast(Client, client), cast(DeadLetterTopic, NoLetters()), 0, interrupted=lambda: True)
    with pytest.raises(Interrupted):
        asyncio.run(writer.write(TP, _batch()))
