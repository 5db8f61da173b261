"""One partition of the sink stores by itself: it waits for nobody, hands over when told, commits nothing it lost."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaConnectionError
from kvtrail.schemas.config import Config, SinkConfig
from kvtrail.schemas.errors import StoreRefused
from kvtrail.schemas.topics import FINDINGS, LIFECYCLE
from kvtrail.store.rows import Rows
from kvtrail.streams.batches import Batch, Cut
from kvtrail.streams.intake import Item
from kvtrail.streams.records import Record
from kvtrail.streams.sink import Sink
from kvtrail.streams.sink_report import Place
from kvtrail.streams.storing import StoredPartition
from kvtrail.streams.taking_over import taken_over

EVENTS, FOUND = TopicPartition(LIFECYCLE, 0), TopicPartition(FINDINGS, 0)
DEADLINE_S = 10


class Ones:
    """Every record becomes one row."""

    def take(self, record: Record) -> Item:
        return Item(record=record, size=1)

    def rows(self, items: Sequence[Item]) -> Rows:
        return Rows("t", {})

    def forget(self, item: Item) -> None:
        pass


class Log:
    """A consumer's commits; `failures` are raised first."""

    def __init__(self, *failures: Exception) -> None:
        self.commits: list[tuple[TopicPartition, int]] = []
        self.failures = [*failures]

    async def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.commits += [(tp, offset) for tp, (offset, metadata) in offsets.items() if not metadata]


class Store:
    """Takes batches while its door is open."""

    def __init__(self) -> None:
        self.batches: list[tuple[TopicPartition, int, int]] = []
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def __call__(self, tp: TopicPartition, batch: Batch) -> None:
        self.asked.set()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.batches.append((tp, batch.first, batch.last))


def held(tp: TopicPartition, log: Any, store: Store, rows: int = 3) -> StoredPartition:
    cut = Cut(intake=Ones(), position=0, pending=None, batch_rows=rows, batch_wait_s=600)
    return StoredPartition(
        tp, cut, Place(), consumer=log, store=store, busy=lambda: False, interrupted=lambda: False, retry_cap_s=0.01
    )  # fmt: skip


def records(first: int, count: int) -> list[Record]:
    return [
        Record(topic=LIFECYCLE, partition=0, offset=first + n, append_us=0, value=b"") for n in range(count)
    ]  # fmt: skip


async def ended(*tasks: "asyncio.Task[None]") -> None:
    await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)


def test_a_finding_does_not_wait_for_events_that_the_store_is_slow_with() -> None:
    async def run() -> None:
        log, slow, quick = Log(), Store(), Store()
        slow.open.clear()
        events, found = held(EVENTS, log, slow), held(FOUND, log, quick, rows=1)
        tasks = [asyncio.create_task(each.run()) for each in (events, found)]
        events.add(records(0, 3), 0, behind=False)
        await asyncio.wait_for(slow.asked.wait(), DEADLINE_S)
        found.add(records(0, 1), 0, behind=False)
        await asyncio.wait_for(quick.asked.wait(), DEADLINE_S)
        found.close()
        await ended(tasks[1])
        assert quick.batches == [(FOUND, 0, 0)] and log.commits == [(FOUND, 1)]
        assert not slow.batches and events.since is not None
        slow.open.set()
        events.close()
        await ended(tasks[0])
        assert slow.batches == [(EVENTS, 0, 2)] and events.since is None
        assert events.place.records == 3

    asyncio.run(run())


def test_a_partition_that_is_closed_finishes_the_batch_in_hand_and_begins_no_other() -> None:
    async def run() -> None:
        log, store = Log(), Store()
        store.open.clear()
        partition = held(EVENTS, log, store)
        task = asyncio.create_task(partition.run())
        partition.add(records(0, 3), 0, behind=True)
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        partition.add(records(3, 3), 0, behind=True)
        partition.close()
        store.open.set()
        await ended(task)
        assert log.commits == [(EVENTS, 3)]

    asyncio.run(run())


def test_a_partition_that_is_lost_commits_nothing_more() -> None:
    async def run() -> None:
        log, store = Log(), Store()
        store.open.clear()
        partition = held(EVENTS, log, store)
        task = asyncio.create_task(partition.run())
        partition.add(records(0, 3), 0, behind=False)
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        partition.lose()
        store.open.set()
        await ended(task)
        assert store.batches and not log.commits
        assert partition.cut.position == 0

    asyncio.run(run())


def test_a_broker_that_is_away_is_asked_again_and_a_group_that_refuses_is_not() -> None:
    async def run() -> None:
        log, store = Log(KafkaConnectionError(), KafkaConnectionError()), Store()
        partition = held(EVENTS, log, store)
        task = asyncio.create_task(partition.run())
        partition.add(records(0, 3), 0, behind=False)
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        partition.close()
        await ended(task)
        assert log.commits == [(EVENTS, 3)]

        partition = held(EVENTS, Log(CommitFailedError()), Store())
        partition.add(records(0, 3), 0, behind=False)
        await asyncio.wait_for(partition.run(), DEADLINE_S)  # ends by itself: it is taken over again

    asyncio.run(run())


async def _sink(*partitions: StoredPartition) -> Any:
    sink: Any = Sink(Config())
    for client in ("_consumer", "_producer", "_admin"):  # nothing here needs them
        end = getattr(vars(sink)[client], "stop", None) or vars(sink)[client].close
        await end()
    for partition in partitions:
        tp = vars(partition)["_tp"]
        sink.partitions[tp] = partition
        vars(sink)["_tasks"][tp] = asyncio.create_task(partition.run())
    return sink


def test_what_only_a_person_can_mend_ends_the_sink_and_what_ended_by_itself_is_taken_over_again() -> None:
    async def run() -> None:
        refusing, store = Store(), Store()
        refusing.error = StoreRefused("no.", field="clickhouse.password")
        bad, good = held(EVENTS, Log(), refusing), held(FOUND, Log(CommitFailedError()), store)
        sink = await _sink(bad, good)
        good.add(records(0, 3), 0, behind=False)
        await asyncio.wait({vars(sink)["_tasks"][FOUND]}, timeout=DEADLINE_S)
        sink._collect_ended()
        assert [*sink.partitions] == [EVENTS]
        bad.add(records(0, 3), 0, behind=False)
        await asyncio.wait({vars(sink)["_tasks"][EVENTS]}, timeout=DEADLINE_S)
        with pytest.raises(StoreRefused):
            sink._collect_ended()

    asyncio.run(run())


def test_a_revoked_partition_is_handed_over_when_its_batch_is_stored() -> None:
    async def run() -> None:
        log, store = Log(), Store()
        store.open.clear()
        partition = held(EVENTS, log, store)
        sink = await _sink(partition)
        partition.add(records(0, 3), 0, behind=False)
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        handing_over = asyncio.create_task(sink.revoked([EVENTS]))
        await asyncio.sleep(0)
        assert not handing_over.done()
        store.open.set()
        await ended(handing_over)
        assert log.commits == [(EVENTS, 3)] and not sink.partitions

    asyncio.run(run())


class Owning:
    """A consumer that names what it had until the next assignment, as aiokafka does."""

    def __init__(self, *partitions: TopicPartition) -> None:
        self.partitions = {*partitions}

    def assignment(self) -> set[TopicPartition]:
        return self.partitions


def test_what_is_being_revoked_is_not_taken_over_before_the_group_has_answered() -> None:
    async def run() -> None:
        store = Store()
        store.open.clear()
        slow, quick = held(EVENTS, Log(), store), held(FOUND, Log(), Store())
        sink = await _sink(slow, quick)
        vars(sink)["_consumer"] = Owning(EVENTS, FOUND)
        taken: list[TopicPartition] = []

        async def take_over(tp: TopicPartition) -> None:
            taken.append(tp)

        vars(sink)["_take_over"] = take_over
        slow.add(records(0, 3), 0, behind=False)
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        handing_over = asyncio.create_task(sink.revoked([EVENTS, FOUND]))
        await asyncio.wait({vars(sink)["_tasks"][FOUND]}, timeout=DEADLINE_S)
        sink._collect_ended()
        await sink._take_over_new()
        assert not taken and not handing_over.done()
        store.open.set()
        await ended(handing_over)
        sink._collect_ended()
        await sink._take_over_new()
        assert not taken  # others may still be storing it
        sink.assigned([EVENTS, FOUND])
        await sink._take_over_new()
        assert {*taken} == {EVENTS, FOUND}

    asyncio.run(run())


def test_what_was_read_before_a_move_is_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        sink, moves = await _sink(), [True, False]
        log: Any = Owning(EVENTS)
        sought: list[tuple[TopicPartition, int]] = []
        log.seek = lambda tp, offset: sought.append((tp, offset))
        vars(sink).update(_consumer=log, _writer=object())

        async def read(tp: TopicPartition, *_: Any) -> tuple[Cut, int]:
            if moves.pop(0):
                await sink.revoked([tp])
                sink.assigned([tp])
            return Cut(intake=Ones(), position=5, pending=None, batch_rows=3, batch_wait_s=600), 7

        monkeypatch.setattr("kvtrail.streams.sink.taken_over", read)
        await sink._take_over_new()
        assert not sink.partitions and not sought
        await sink._take_over_new()
        assert [*sink.partitions] == [EVENTS] and sought == [(EVENTS, 7)]
        sink.partitions[EVENTS].close()
        await ended(vars(sink)["_tasks"][EVENTS])

    asyncio.run(run())


def test_a_batch_that_outlives_the_revocations_deadline_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr("kvtrail.streams.sink._REVOKE_DEADLINE_S", 0.01)
        log, store = Log(), Store()
        store.open.clear()
        partition = held(EVENTS, log, store)
        sink = await _sink(partition)
        partition.add(records(0, 3), 0, behind=True)
        assert partition.cut.behind
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        await asyncio.wait_for(sink.revoked([EVENTS]), DEADLINE_S)
        assert not sink.partitions
        store.open.set()
        await ended(vars(sink)["_tasks"][EVENTS])
        assert store.batches and not log.commits

    asyncio.run(run())


def test_batches_of_events_are_few_at_a_time_and_findings_go_past_them() -> None:
    async def run() -> None:
        sink, store = await _sink(), Store()
        store.open.clear()
        began: list[TopicPartition] = []

        class Writes:
            """The store behind the sink."""

            async def write(self, tp: TopicPartition, batch: Batch) -> None:
                began.append(tp)
                await (store(tp, batch) if tp.topic == LIFECYCLE else asyncio.sleep(0))

        vars(sink)["_writer"] = Writes()
        batch = Batch(first=0, last=0, items=[], intake=Ones())
        tasks = [asyncio.create_task(sink._store(TopicPartition(LIFECYCLE, each), batch)) for each in range(7)]
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        await asyncio.wait_for(sink._store(FOUND, batch), DEADLINE_S)
        assert began[-1] == FOUND and len(began) == 5
        store.open.set()
        await ended(*tasks)
        assert len(store.batches) == 7

    asyncio.run(run())


def test_what_waits_for_a_busy_store_goes_as_soon_as_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding that is due waits while events are stored, and the end of that wakes it."""
    monkeypatch.setattr("kvtrail.streams.batches.BEHIND_MOST_S", 1e6)
    monkeypatch.setattr("kvtrail.streams.storing.IDLE_S", 1e6)

    async def run() -> None:
        sink, store = await _sink(), Store()
        store.open.clear()
        log = Log()
        began: list[TopicPartition] = []

        class Writes:
            """The store behind the sink."""

            async def write(self, tp: TopicPartition, batch: Batch) -> None:
                began.append(tp)
                await store(tp, batch)

        vars(sink)["_writer"] = Writes()
        cut = Cut(intake=Ones(), position=0, pending=None, batch_rows=3, batch_wait_s=500)
        found = sink.partitions[FOUND] = StoredPartition(
            FOUND, cut, Place(), consumer=log, store=sink._store, busy=lambda: sink._in_hand > 0,
            interrupted=lambda: False, retry_cap_s=0.01,
        )  # fmt: skip
        events = asyncio.create_task(sink._store(EVENTS, Batch(first=0, last=0, items=[], intake=Ones())))
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        found.add(records(0, 1), time.monotonic() - 600, behind=False)
        task = asyncio.create_task(found.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert began == [EVENTS] and found.cut.busy
        store.open.set()
        await asyncio.wait_for(events, DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):
            while log.commits != [(FOUND, 1)]:
                await asyncio.sleep(0)
        found.close()
        await ended(task)

    asyncio.run(run())


def test_a_commit_that_no_broker_takes_holds_no_stop_up() -> None:
    async def run() -> None:
        store, stops = Store(), asyncio.Event()
        cut = Cut(intake=Ones(), position=0, pending=None, batch_rows=3, batch_wait_s=600)
        consumer: Any = Log(*(KafkaConnectionError() for _ in range(1000)))
        partition = StoredPartition(
            EVENTS, cut, Place(), consumer=consumer, store=store, busy=lambda: False, interrupted=stops.is_set,
            retry_cap_s=0.01,
        )  # fmt: skip
        partition.add(records(0, 3), 0, behind=False)
        task = asyncio.create_task(partition.run())
        while len(consumer.failures) == 1000:
            await asyncio.sleep(0)
        stops.set()
        await ended(task)
        assert consumer.failures and not store.batches

    asyncio.run(run())


def test_a_commit_that_is_never_answered_is_made_again_and_is_no_reason_to_be_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mute(Log):
        """A client that has lost its coordinator: the first commits wait for ever."""

        asked = 0
        since: float | None = None

        async def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
            self.asked += 1
            if self.asked == 1:
                self.since = partition.since
                await asyncio.Event().wait()
            assert self.asked > 2 or (partition.since or 0) > (self.since or 0)
            await super().commit(offsets)

    async def run() -> None:
        partition.add(records(0, 3), 0, behind=False)
        task = asyncio.create_task(partition.run())
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        partition.close()
        await ended(task)

    monkeypatch.setattr("kvtrail.streams.clients._COMMIT_S", 0.01)
    log, store = Mute(), Store()
    partition = held(EVENTS, log, store)
    asyncio.run(run())
    assert log.commits == [(EVENTS, 3)] and log.asked == 3


def test_a_worker_has_stood_still_for_as_long_as_the_batch_that_does_not_get_on() -> None:
    async def run() -> None:
        store = Store()
        store.open.clear()
        partition = held(EVENTS, Log(), store)
        sink = await _sink(partition)
        partition.add(records(0, 3), 0, behind=False)
        await asyncio.wait_for(store.asked.wait(), DEADLINE_S)
        assert partition.since is not None
        vars(sink)["_looped_at"] = partition.since + 1000  # the loop goes on; that batch does not
        assert sink.moved_at == partition.since
        store.open.set()
        partition.close()
        await ended(vars(sink)["_tasks"][EVENTS])
        assert sink.moved_at > partition.cut.position

    asyncio.run(run())


def test_events_may_wait_longer_for_their_batch_than_findings() -> None:
    class Broker:
        """Nothing is committed, and nothing is gone."""

        async def list_consumer_group_offsets(self, group: str, partitions: list[TopicPartition]) -> dict[Any, Any]:
            return {}

        async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 7)

    class Nothing:
        """What is stored."""

        async def refused_offsets(self, *_: object) -> set[int]:
            return set()

        async def stored_lanes(self, *_: object) -> list[Any]:
            return []

    async def wait_s(tp: TopicPartition, config: SinkConfig) -> float | None:
        broker: Any = Broker()
        writer: Any = Nothing()
        cut, start = await taken_over(tp, "g", config, broker, broker, writer)
        assert start == 7
        cut.add(records(7, 1), 0)
        return cut.wait_s(0)

    async def run() -> None:
        config = SinkConfig(batch_wait_s=0.2, events_wait_s=5)
        assert await wait_s(EVENTS, config) == 5
        assert await wait_s(FOUND, config) == 0.2
        assert await wait_s(EVENTS, SinkConfig(batch_wait_s=0.2)) == 1.0

    asyncio.run(run())
