"""A pending range that goes again: the same records, the same rows, or it is said."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.envelope import EnvelopeEncoder
from kvtrail.schemas.errors import BrokerError
from kvtrail.schemas.events import Event, Hit
from kvtrail.schemas.topics import LIFECYCLE
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.store.results import LedgerRow
from kvtrail.store.rows import Source
from kvtrail.streams.batches import Batch
from kvtrail.streams.deadletters import DeadLetterTopic
from kvtrail.streams.intake import Item, LifecycleIntake
from kvtrail.streams.lanes import StoredLanes
from kvtrail.streams.metrics import Registry
from kvtrail.streams.records import Record
from kvtrail.streams.resending import compare
from kvtrail.streams.writer import Writer

TP = TopicPartition(LIFECYCLE, 0)
NOW_US = time.time_ns() // 1000  # else retention takes it at the first merge
CHANGED = "kvtrail_sink_changed_batches_total"


def _record(offset: int, node: str = "n1") -> Record:
    events = [
        Event(node=node, incarnation="i1", home=f"n:{node}", seq=seq, time_us=seq, body=Hit(), key=f"k{seq}")
        for seq in range(offset * 2 + 1, offset * 2 + 3)
    ]
    value = EnvelopeEncoder().encode(events)
    return Record(topic=LIFECYCLE, partition=0, offset=offset, append_us=NOW_US, value=value)


def _batch(records: Sequence[Record], *, again: bool) -> Batch:
    intake = LifecycleIntake(StoredLanes())
    items = [intake.take(record) for record in records]
    return Batch(first=records[0].offset, last=records[-1].offset, items=items, intake=intake, again=again)


class Letters:
    async def publish(self, letters: Sequence[Any]) -> list[tuple[Source, Any]]:
        return [(Source("kvtrail.dead-letter", 0, at, 1), letter) for at, letter in enumerate(letters)]


RUBBISH = Record(topic=LIFECYCLE, partition=0, offset=3, append_us=NOW_US, value=b"rubbish")
LOG = [*map(_record, range(3)), RUBBISH]


@pytest.mark.engine
def test_a_range_sent_again_is_held_against_what_the_engine_has_of_it(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        metrics = Registry()
        writer = Writer(client, cast(DeadLetterTopic, Letters()), 0, interrupted=lambda: False, metrics=metrics)

        def write(records: Sequence[Record], *, again: bool) -> None:
            asyncio.run(writer.write(TP, _batch(records, again=again)))

        write(LOG, again=True)
        assert client.query("SELECT count() AS n FROM events") == [{"n": 6}]
        write(LOG, again=True)
        assert CHANGED not in metrics.render()
        with pytest.raises(BrokerError, match="0-3 hold other records") as stopped:
            write([*LOG[:2], _record(2, "another"), RUBBISH], again=True)
        assert stopped.value.field == "kvtrail.lifecycle/0"
        [row] = queries.BATCHES_WITHIN.run(client, topic=LIFECYCLE, partition=0, first_offset=0, last_offset=3)
        assert (row.records, row.events, row.rejects) == (4, 6, 1)
        assert client.query("SELECT count() AS n FROM events") == [{"n": 6}]


def test_a_build_that_decodes_otherwise_is_told_apart_from_another_log() -> None:
    items = _batch(LOG, again=True).items
    row = _ledger(items)
    assert compare(items, []) == "same"
    assert compare(items, [row]) == "same"
    assert compare(items, [_ledger(items[:2]), _ledger(items[2:])]) == "same", "halves of a bisected batch"
    fewer = LedgerRow(row.first_offset, row.last_offset, row.records, row.events - 1, row.rejects + 1, row.hash_xor)
    assert compare(items, [fewer]) == "decoded otherwise"
    assert compare(items[:3], [row]) == "other records"
    assert compare(items, [LedgerRow(0, 3, 4, row.events, row.rejects, "ab")]) == "other records"


def _ledger(items: Sequence[Item]) -> LedgerRow:
    import hashlib

    folded = 0
    for item in items:
        folded ^= int.from_bytes(hashlib.sha256(item.record.value).digest(), "little")
    batches = [item.batch for item in items if item.batch is not None]
    return LedgerRow(
        items[0].record.offset, items[-1].record.offset, len(items), sum(len(batch.events) for batch in batches),
        sum(len(batch.rejects) for batch in batches), f"{folded:x}",
    )  # fmt: skip
