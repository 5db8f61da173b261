"""How a resolver is: its metrics, whether it lives, whether it is ready. Reads what the worker keeps anyway."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from .. import __version__
from ..schemas.config import Config
from .metrics import Registry

STUCK_S = 120.0
"""Its loop has not come round for this long. A broker that is away is no reason: what it refuses is sent again."""
_LAG_S = 3.0
_WORKER = "resolver"


class Window(Protocol):
    """What is asked of a partition's window."""

    @property
    def kept(self) -> int: ...


class Place(Protocol):
    """What is asked of a partition."""

    @property
    def window(self) -> Window: ...
    @property
    def position(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def refused(self) -> int: ...


class Worker(Protocol):
    """What is asked of the resolver itself."""

    @property
    def places(self) -> Mapping[TopicPartition, Place]: ...
    @property
    def moved_at(self) -> float: ...
    @property
    def was_assigned(self) -> bool: ...
    def owned(self) -> Iterable[TopicPartition]: ...
    def counts(self) -> dict[str, int]: ...
    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]: ...


class ResolverReport:
    """Reads what the worker keeps anyway."""

    def __init__(self, config: Config, metrics: Registry, worker: Worker) -> None:
        self._metrics = metrics
        self._worker = worker
        metrics.set("kvtrail_worker_info", 1, worker=_WORKER, instance=config.resolver.instance, version=__version__)

    async def alive(self) -> list[str]:
        """Reasons why only a restart can help."""
        still_s = time.monotonic() - self._worker.moved_at
        return [f"nothing has moved for {still_s:.0f} s"] if still_s > STUCK_S else []

    async def ready(self) -> list[str]:
        """Reasons why this worker does not resolve everything it should."""
        if not self._worker.was_assigned:
            return ["no partitions have been assigned yet"]
        reasons = await self.alive()
        return reasons + [
            f"{tp.topic}/{tp.partition} is still being taken over"
            for tp in sorted(self._worker.owned())
            if tp not in self._worker.places
        ]

    async def collect(self) -> None:
        """Bring the registry up to date."""
        metrics, counts = self._metrics, self._worker.counts()
        metrics.set("kvtrail_worker_ready", not await self.ready(), worker=_WORKER)
        metrics.set("kvtrail_resolver_joined_total", counts["joined"])
        metrics.set("kvtrail_resolver_expired_total", counts["expired"])
        metrics.set("kvtrail_resolver_contradictions_total", counts["torn"])
        metrics.clear("kvtrail_lag_records")
        metrics.clear("kvtrail_resolver_waiting")
        places = dict(self._worker.places)
        for tp, place in places.items():
            metrics.set("kvtrail_records_total", place.records, **_where(tp))
            metrics.set("kvtrail_refused_total", place.refused, **_where(tp))
            metrics.set("kvtrail_resolver_waiting", place.window.kept, partition=tp.partition)
        for tp, end in (await self._log_ends([*places])).items():
            metrics.set("kvtrail_lag_records", max(0, end - places[tp].position), **_where(tp))

    async def _log_ends(self, held: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Nothing where the broker does not say: no sample is better than a wrong one."""
        if not held:
            return {}
        try:
            return await asyncio.wait_for(self._worker.ends(held), _LAG_S)
        except (KafkaError, TimeoutError, ValueError):
            return {}


def _where(tp: TopicPartition) -> dict[str, Any]:
    return {"worker": _WORKER, "topic": tp.topic, "partition": tp.partition}
