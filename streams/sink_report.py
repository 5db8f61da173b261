"""How a sink is: its metrics, whether it lives, whether it is ready."""

import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

from aiokafka import TopicPartition
from msgspec import Struct

from ..schemas.config import Config
from .batches import Batch, Cut
from .metrics import Registry
from .vitals import Member, Vitals
from .writer import Writer

STUCK_S = 150.0
"""Neither a loop nor an attempt at the store has ended for this long: longer than the longest request may take."""
_WORKER = "sink"


class Place(Struct):
    """What was stored of one partition since the start."""

    records: int = 0
    refused: int = 0
    newest_event_us: int = 0

    def note(self, batch: Batch) -> None:
        """A batch was stored and committed."""
        self.records += len(batch.items)
        for item in batch.items:
            self.refused += len(item.letters)
            if item.batch is not None and item.batch.events:
                self.newest_event_us = max(self.newest_event_us, item.batch.events[-1].time_us)


class Holds(Protocol):
    """A partition that the sink stores."""

    @property
    def cut(self) -> Cut: ...


class Worker(Member, Protocol):
    """What is asked of the sink itself."""

    @property
    def writer(self) -> Writer: ...
    @property
    def places(self) -> dict[TopicPartition, Place]: ...
    @property
    def partitions(self) -> Mapping[TopicPartition, "Holds"]: ...
    def owned(self) -> Iterable[TopicPartition]: ...
    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]: ...


class SinkReport(Vitals):
    """Reads what the worker keeps anyway."""

    def __init__(self, config: Config, metrics: Registry, worker: Worker) -> None:
        super().__init__(metrics, worker, name=_WORKER, instance=config.sink.instance, stuck_s=STUCK_S)
        self._worker = worker

    def moved_at(self) -> float:
        """A store that is away is tried again for ever: each try counts."""
        return max(self._worker.moved_at, self._worker.writer.tried_at)

    def asked(self) -> Awaitable[dict[TopicPartition, int]] | None:
        """How far its partitions go."""
        return self._worker.ends([*self._worker.partitions]) if self._worker.partitions else None

    async def problems(self) -> list[str]:
        """Partitions that it owns and does not store yet, and what the store says."""
        late = [
            f"{tp.topic}/{tp.partition} is still being taken over"
            for tp in sorted(self._worker.owned())
            if tp not in self._worker.partitions
        ]
        problem = await self._worker.writer.problem()
        return [*late, problem] if problem else late

    def tell(self, ends: Mapping[TopicPartition, int]) -> None:
        metrics, worker = self._metrics, self._worker
        counts = worker.writer.counts()
        metrics.set("kvtrail_sink_rows_total", counts["rows"])
        metrics.set("kvtrail_sink_batches_total", counts["batches"])
        metrics.set("kvtrail_sink_dead_letters_total", counts["dead_letters"])
        metrics.set("kvtrail_sink_retries_total", counts["retries"])
        metrics.set("kvtrail_sink_store_away_seconds", worker.writer.away_s)
        metrics.set("kvtrail_duplicates_total", counts["dropped"], worker=_WORKER)
        metrics.clear("kvtrail_lag_records")
        metrics.clear("kvtrail_event_age_seconds")
        for tp, place in worker.places.items():
            metrics.set("kvtrail_records_total", place.records, **_where(tp))
            metrics.set("kvtrail_refused_total", place.refused, **_where(tp))
            if place.newest_event_us and tp in worker.partitions:
                age_s = time.time() - place.newest_event_us / 1e6
                metrics.set("kvtrail_event_age_seconds", age_s, **_where(tp))
        for tp, end in ends.items():
            held = worker.partitions.get(tp)
            if held is not None:
                metrics.set("kvtrail_lag_records", max(0, end - held.cut.position), **_where(tp))


def _where(tp: TopicPartition) -> dict[str, Any]:
    return {"worker": _WORKER, "topic": tp.topic, "partition": tp.partition}
