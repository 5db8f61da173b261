"""What a sink holds in memory is bounded by its batches, however long the log and however slow the store; and what
it cuts from a log that it is behind is whole."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from aiokafka import TopicPartition
from kvtrail.schemas.config import Config, SinkConfig
from kvtrail.schemas.topics import LIFECYCLE
from kvtrail.store.rows import Rows
from kvtrail.streams.batches import BEHIND, BEHIND_MOST_S, Batch, Cut
from kvtrail.streams.intake import Item
from kvtrail.streams.records import Record
from kvtrail.streams.sink import Sink
from kvtrail.streams.sink_report import Place
from kvtrail.streams.storing import StoredPartition

BATCH_ROWS, WAIT_S, A_RECORD, CHUNK = 100, 0.125, 10, 7


class Tens:
    """Every record becomes ten rows."""

    def take(self, record: Record) -> Item:
        return Item(record=record, size=A_RECORD)

    def rows(self, items: Sequence[Item]) -> Rows:
        return Rows("t", {})

    def forget(self, item: Item) -> None:
        pass


def _cut() -> Cut:
    return Cut(intake=Tens(), position=0, pending=None, batch_rows=BATCH_ROWS, batch_wait_s=WAIT_S)


def _records(first: int, count: int) -> list[Record]:
    return [
        Record(topic=LIFECYCLE, partition=0, offset=offset, append_us=0, value=b"")
        for offset in range(first, first + count)
    ]


def _held(tp: TopicPartition) -> StoredPartition:
    """Nobody stores anything of it."""

    async def store(tp: TopicPartition, batch: Batch) -> None:
        raise AssertionError

    return StoredPartition(
        tp, _cut(), Place(), consumer=None, store=store, busy=lambda: False, interrupted=lambda: False,
        retry_cap_s=1.0,
    )  # fmt: skip


class Log:
    """A consumer over partitions that never end. Counts what it was asked for."""

    def __init__(self, tps: set[TopicPartition]) -> None:
        self.tps = tps
        self.given = dict.fromkeys(tps, 0)

    def assignment(self) -> set[TopicPartition]:
        return self.tps

    def highwater(self, tp: TopicPartition) -> int:
        return 1_000_000

    async def getmany(self, *wanted: TopicPartition, timeout_ms: int, max_records: int) -> dict[TopicPartition, object]:
        await asyncio.sleep(0)
        found: dict[TopicPartition, object] = {}
        for tp in wanted:
            found[tp] = [
                SimpleNamespace(
                    topic=tp.topic, partition=tp.partition, offset=self.given[tp] + n, timestamp=0, value=b""
                )
                for n in range(CHUNK)
            ]
            self.given[tp] += CHUNK
        return found


def test_a_log_is_not_read_ahead_of_a_store_that_stores_nothing() -> None:
    async def run() -> None:
        config = Config(sink=SinkConfig(batch_rows=BATCH_ROWS, batch_wait_s=600))
        sink = Sink(config)
        log = Log({TopicPartition(LIFECYCLE, partition) for partition in range(3)})
        vars(sink)["_consumer"] = log
        sink.partitions.update((tp, _held(tp)) for tp in log.tps)
        fetch = vars(Sink)["_fetch"]
        for _ in range(20):
            await asyncio.wait_for(fetch(sink), 30)
        most = BATCH_ROWS // A_RECORD + CHUNK
        assert all(BATCH_ROWS // A_RECORD <= given <= most for given in log.given.values()), log.given

    asyncio.run(run())


def _store(cut: Cut) -> int:
    """The next batch, stored; how many rows it had."""

    async def commit(offset: int, metadata: str) -> None:
        pass

    async def store(batch: Batch) -> None:
        pass

    return sum(item.size for item in asyncio.run(cut.flush(commit, store)).items)


def test_a_log_that_is_behind_gives_whole_batches_and_what_is_left_waits_anew() -> None:
    cut = _cut()
    cut.behind = True
    cut.add(_records(0, 8), now=0)
    assert not cut.due(WAIT_S), "more is on its way"
    assert cut.wait_s(WAIT_S) == WAIT_S * (BEHIND - 1)
    cut.add(_records(8, 8), now=2.0)
    assert cut.full
    assert _store(cut) == BATCH_ROWS
    assert not cut.due(1.0 + WAIT_S * BEHIND), "six records are no batch, and came only at 2.0"
    assert cut.due(2.0 + WAIT_S * BEHIND), "even so they do not wait for ever"


def test_a_store_that_is_busy_is_given_more_at_a_time() -> None:
    cut = _cut()
    cut.add(_records(0, 1), now=0)
    cut.busy = True
    assert not cut.due(WAIT_S) and cut.due(WAIT_S * BEHIND), "it is waited for, but not for ever"
    cut.busy = False
    assert cut.due(WAIT_S), "it is free: there is nothing to wait for"


def test_a_wait_that_is_long_anyway_is_no_longer_behind() -> None:
    cut = Cut(intake=Tens(), position=0, pending=None, batch_rows=BATCH_ROWS, batch_wait_s=1.5)
    cut.behind = True
    cut.add(_records(0, 1), now=0)
    assert cut.wait_s(0) == BEHIND_MOST_S
    cut = Cut(intake=Tens(), position=0, pending=None, batch_rows=BATCH_ROWS, batch_wait_s=7)
    cut.behind = True
    cut.add(_records(0, 1), now=0)
    assert cut.wait_s(0) == 7


def test_a_log_that_is_not_behind_is_stored_after_the_configured_wait() -> None:
    cut = _cut()
    cut.add(_records(0, 3), now=0)
    assert not cut.due(WAIT_S / 2)
    assert cut.due(WAIT_S)
    assert _store(cut) == 3 * A_RECORD
    assert cast(object, cut.wait_s(0)) is None
