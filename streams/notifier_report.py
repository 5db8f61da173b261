"""How a notifier is: its metrics, whether it lives, whether everybody can be told."""

import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

from aiokafka import TopicPartition

from ..schemas.config import Config
from ..schemas.topics import FINDINGS
from .metrics import Registry
from .notifier_courier import Courier
from .notifier_state import State
from .vitals import Member, Vitals

STUCK_S = 150.0
"""The loop has not come round for this long: longer than the longest request to the broker may take."""
_WORKER = "notifier"


class Worker(Member, Protocol):
    """What is asked of the notifier itself."""

    @property
    def state(self) -> State | None: ...
    @property
    def couriers(self) -> Iterable[Courier]: ...
    def counts(self) -> dict[str, int]: ...
    async def ends(self) -> dict[TopicPartition, int]: ...


class NotifierReport(Vitals):
    """Reads what the worker keeps anyway."""

    def __init__(self, config: Config, metrics: Registry, worker: Worker) -> None:
        super().__init__(metrics, worker, name=_WORKER, instance=config.notify.instance, stuck_s=STUCK_S)
        self._worker = worker

    def asked(self) -> Awaitable[dict[TopicPartition, int]] | None:
        """How far the findings go, of one who does not stand by."""
        return self._worker.ends() if self._worker.state is not None else None

    async def problems(self) -> list[str]:
        """Who cannot be told now."""
        return [f"target {one.target.name}: {one.problem}" for one in self._worker.couriers if one.problem]

    def tell(self, ends: Mapping[TopicPartition, int]) -> None:
        metrics, worker, state = self._metrics, self._worker, self._worker.state
        for gone in (
            "kvtrail_lag_records", "kvtrail_notify_waiting", "kvtrail_heartbeat_age_seconds",
            "kvtrail_notify_oldest_waiting_seconds", "kvtrail_notify_open_incidents",
        ):  # fmt: skip
            metrics.clear(gone)
        if state is None:
            return
        now_us = time.time_ns() // 1000
        metrics.set("kvtrail_notify_open_incidents", len(state.standing()))
        metrics.set("kvtrail_notify_historical_total", state.pager.historical)
        for one in worker.couriers:
            waiting = one.queue.waiting
            oldest_us = min((each.notification.at_us for each in waiting), default=now_us)
            metrics.set("kvtrail_notify_waiting", len(waiting), target=one.target.name)
            metrics.set(
                "kvtrail_notify_oldest_waiting_seconds", max(now_us - oldest_us, 0) / 1e6, target=one.target.name
            )  # fmt: skip
        for partition, seen_us in state.watch.last.items():
            metrics.set("kvtrail_heartbeat_age_seconds", max(now_us - seen_us, 0) / 1e6, partition=partition)
        for tp, end in ends.items():
            reached = state.offsets.get(tp.partition, 0)
            where: dict[str, Any] = {"worker": _WORKER, "topic": FINDINGS, "partition": tp.partition}
            metrics.set("kvtrail_lag_records", max(0, end - reached), **where)
