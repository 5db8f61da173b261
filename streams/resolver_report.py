"""How a resolver is: its metrics, whether it lives, whether it is ready. Reads what the worker keeps anyway."""

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

from aiokafka import TopicPartition

from ..schemas.config import Config
from .metrics import Registry
from .vitals import Member, Vitals

STUCK_S = 120.0
"""Its loop has not come round for this long. A broker that is away is no reason: what it refuses is sent again."""
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


class Worker(Member, Protocol):
    """What is asked of the resolver itself."""

    @property
    def places(self) -> Mapping[TopicPartition, Place]: ...
    def owned(self) -> Iterable[TopicPartition]: ...
    def counts(self) -> dict[str, int]: ...
    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]: ...


class ResolverReport(Vitals):
    """Reads what the worker keeps anyway."""

    def __init__(self, config: Config, metrics: Registry, worker: Worker) -> None:
        super().__init__(metrics, worker, name=_WORKER, instance=config.resolver.instance, stuck_s=STUCK_S)
        self._worker = worker

    def asked(self) -> Awaitable[dict[TopicPartition, int]] | None:
        """How far its partitions go."""
        return self._worker.ends([*self._worker.places]) if self._worker.places else None

    async def problems(self) -> list[str]:
        """Partitions that it owns and does not resolve yet."""
        return [
            f"{tp.topic}/{tp.partition} is still being taken over"
            for tp in sorted(self._worker.owned())
            if tp not in self._worker.places
        ]

    def tell(self, ends: Mapping[TopicPartition, int]) -> None:
        metrics, counts = self._metrics, self._worker.counts()
        metrics.set("kvtrail_resolver_joined_total", counts["joined"])
        metrics.set("kvtrail_resolver_expired_total", counts["expired"])
        metrics.set("kvtrail_resolver_contradictions_total", counts["torn"])
        metrics.clear("kvtrail_lag_records")
        metrics.clear("kvtrail_resolver_waiting")
        places = self._worker.places
        for tp, place in places.items():
            metrics.set("kvtrail_records_total", place.records, **_where(tp))
            metrics.set("kvtrail_refused_total", place.refused, **_where(tp))
            metrics.set("kvtrail_resolver_waiting", place.window.kept, partition=tp.partition)
        for tp, end in ends.items():
            if tp in places:
                metrics.set("kvtrail_lag_records", max(0, end - places[tp].position), **_where(tp))


def _where(tp: TopicPartition) -> dict[str, Any]:
    return {"worker": _WORKER, "topic": tp.topic, "partition": tp.partition}
