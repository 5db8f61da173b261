"""How a notifier is: its metrics, whether it lives, whether everybody can be told."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from .. import __version__
from ..schemas.config import Config
from ..schemas.topics import FINDINGS
from .metrics import Registry
from .notifier_courier import Courier
from .notifier_state import State

STUCK_S = 150.0
"""The loop has not come round for this long: longer than the longest request to the broker may take."""
_LAG_S = 3.0
_WORKER = "notifier"


class Worker(Protocol):
    """What is asked of the notifier itself."""

    @property
    def state(self) -> State | None: ...
    @property
    def couriers(self) -> Iterable[Courier]: ...
    @property
    def moved_at(self) -> float: ...
    @property
    def was_assigned(self) -> bool: ...
    def counts(self) -> dict[str, int]: ...
    async def ends(self) -> dict[TopicPartition, int]: ...


class NotifierReport:
    """Reads what the worker keeps anyway."""

    def __init__(self, config: Config, metrics: Registry, worker: Worker) -> None:
        self._metrics, self._worker = metrics, worker
        metrics.set("kvtrail_worker_info", 1, worker=_WORKER, instance=config.notify.instance, version=__version__)

    async def alive(self) -> list[str]:
        """Reasons why only a restart can help. A target or a broker that is away is none."""
        still_s = time.monotonic() - self._worker.moved_at
        return [f"nothing has moved for {still_s:.0f} s"] if still_s > STUCK_S else []

    async def ready(self) -> list[str]:
        """Reasons why somebody would not be told now. Standing by is being ready."""
        if not self._worker.was_assigned:
            return ["no partitions have been assigned yet"]
        reasons = await self.alive()
        return reasons + [f"target {one.target.name}: {one.problem}" for one in self._worker.couriers if one.problem]

    async def collect(self) -> None:
        """Bring the registry up to date."""
        metrics, worker, state = self._metrics, self._worker, self._worker.state
        metrics.set("kvtrail_worker_ready", not await self.ready(), worker=_WORKER)
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
        for tp, end in (await self._log_ends()).items():
            reached = state.offsets.get(tp.partition, 0)
            where: dict[str, Any] = {"worker": _WORKER, "topic": FINDINGS, "partition": tp.partition}
            metrics.set("kvtrail_lag_records", max(0, end - reached), **where)

    async def _log_ends(self) -> dict[TopicPartition, int]:
        """Nothing where the broker does not say: no sample is better than a wrong one."""
        try:
            return await asyncio.wait_for(self._worker.ends(), _LAG_S)
        except (KafkaError, TimeoutError, ValueError):
            return {}
