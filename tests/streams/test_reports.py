"""Liveness and readiness tell the truth: what a worker says of itself in each state it can be in."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.schemas.config import Config, JudgingConfig
from kvtrail.schemas.topics import LIFECYCLE
from kvtrail.streams.detector_report import STUCK_S, DetectorReport
from kvtrail.streams.factfeed import FactFeed
from kvtrail.streams.fold import Fold
from kvtrail.streams.metrics import Registry
from kvtrail.streams.partition import PartitionTask
from kvtrail.streams.records import Record
from kvtrail.streams.sink_report import SinkReport, Worker
from kvtrail.tests.streams import histories


async def _away(_: object) -> dict[int, int]:
    raise KafkaConnectionError


async def _there(_: object) -> dict[int, int]:
    return {}


def _task(partition: int, **state: Any) -> PartitionTask:
    fold = Fold(Judge(JudgingConfig(), "test", FactBook()), 0)
    value = histories.envelope(histories.incident(f"node-{partition}"))[1]
    fold.apply([Record(topic=LIFECYCLE, partition=partition, offset=0, append_us=1, value=value)])
    given: dict[str, Any] = {
        "partition": partition, "next": fold.next, "fold": fold, "recovered": True, "busy": False, "records": 1,
        "moved_at": time.monotonic(), "skipped": 0, "gap_records": 0,
        "saving": SimpleNamespace(bytes=0, took_s=0.0, saved_at=time.monotonic()),
    }  # fmt: skip
    return cast(PartitionTask, SimpleNamespace(**{**given, **state}))


def test_a_detector_is_ready_when_every_partition_it_holds_is_recovered() -> None:
    async def run() -> None:
        owned: set[int] | None = None
        tasks: list[PartitionTask] = []
        facts = cast(FactFeed, SimpleNamespace(facts=1, ticks=2))
        metrics = Registry()
        report = DetectorReport(Config(), metrics, facts, tasks=lambda: tasks, owned=lambda: owned)
        vars(report)["_ends"] = SimpleNamespace(ends=_there)
        assert await report.ready() == ["no partitions have been assigned yet"]
        assert await report.alive() == []
        owned = {0, 1}
        tasks += [_task(0), _task(1, recovered=False, next=77)]
        assert await report.ready() == ["partition 1 is still being recovered (at offset 77)"]
        tasks[1] = _task(1)
        assert await report.ready() == []
        long_ago = time.monotonic() - STUCK_S - 1
        tasks[1] = _task(1, moved_at=long_ago)
        assert await report.alive() == [], "nothing to do is no reason"
        tasks[1] = _task(1, moved_at=long_ago, busy=True)
        [reason] = await report.alive()
        assert reason.startswith("partition 1 has been stuck")
        assert await report.ready() == [reason]
        tasks[1] = _task(1)
        vars(report)["_ends"] = SimpleNamespace(ends=_away)
        assert await report.ready() == ["the broker does not answer"]
        assert await report.alive() == [], "a broker that is away is no reason to restart"
        owned = {0}
        await report.collect()
        text = metrics.render()
        assert 'kvtrail_worker_ready{worker="detector"} 0' in text
        assert 'kvtrail_records_total{worker="detector",topic="kvtrail.lifecycle",partition="1"} 1' in text
        assert "kvtrail_detector_compared_hits 3" in text, "only what this worker holds now"
        assert 'kvtrail_event_age_seconds{worker="detector",topic="kvtrail.lifecycle",partition="1"}' not in text
        assert "kvtrail_lag_records{" not in text, "no sample where the broker does not say"

    asyncio.run(run())


def test_a_sink_is_ready_when_it_holds_what_it_owns_and_the_store_answers() -> None:
    async def run() -> None:
        tp, problem = TopicPartition(LIFECYCLE, 2), "the store is tried again: connect failed."

        async def answer() -> str:
            return problem

        writer = SimpleNamespace(tried_at=time.monotonic(), problem=answer)
        sink = SimpleNamespace(
            writer=writer, places={}, partitions={}, moved_at=time.monotonic(), was_assigned=False, owned=lambda: {tp},
            ends=_there,
        )  # fmt: skip
        report = SinkReport(Config(), Registry(), cast(Worker, sink))
        assert await report.ready() == ["no partitions have been assigned yet"]
        sink.was_assigned = True
        assert await report.ready() == ["kvtrail.lifecycle/2 is still being taken over", problem]
        sink.partitions[tp] = object()
        assert await report.ready() == [problem]
        assert await report.alive() == [], "a store that is away is no reason to restart"
        problem = ""
        assert await report.ready() == []
        sink.ends = _away
        assert await report.ready() == ["the broker does not answer"]
        sink.ends = _there
        sink.moved_at = writer.tried_at = time.monotonic() - 1000
        [reason] = await report.alive()
        assert reason.startswith("nothing has moved for")

    asyncio.run(run())


def test_a_scrape_asks_the_broker_once() -> None:
    async def run() -> None:
        asked: list[object] = []

        async def ends(partitions: Any) -> dict[Any, int]:
            asked.append(partitions)
            return dict.fromkeys(partitions, 10)

        metrics = Registry()
        facts = cast(FactFeed, SimpleNamespace(facts=1, ticks=2))
        detector = DetectorReport(Config(), metrics, facts, tasks=lambda: [_task(0)], owned=lambda: {0})
        vars(detector)["_ends"] = SimpleNamespace(ends=ends)
        await detector.collect()
        assert asked == [{0}]
        assert 'kvtrail_worker_ready{worker="detector"} 1' in metrics.render()
        assert 'kvtrail_lag_records{worker="detector",topic="kvtrail.lifecycle",partition="0"} 9' in metrics.render()

        async def well() -> str:
            return ""

        tp = TopicPartition(LIFECYCLE, 2)
        counts = dict.fromkeys(("rows", "batches", "dead_letters", "retries", "dropped"), 0)
        writer = SimpleNamespace(tried_at=time.monotonic(), problem=well, counts=lambda: counts, away_s=0.0)
        held = SimpleNamespace(cut=SimpleNamespace(position=7))
        worker = SimpleNamespace(
            writer=writer, places={}, partitions={tp: held}, moved_at=time.monotonic(), was_assigned=True,
            owned=lambda: {tp}, ends=ends,
        )  # fmt: skip
        asked.clear()
        await SinkReport(Config(), metrics, cast(Worker, worker)).collect()
        assert asked == [[tp]]
        assert 'kvtrail_worker_ready{worker="sink"} 1' in metrics.render()
        assert 'kvtrail_lag_records{worker="sink",topic="kvtrail.lifecycle",partition="2"} 3' in metrics.render()

    asyncio.run(run())
