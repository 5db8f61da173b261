"""How a fleet worker is: its metrics, whether it lives, whether it finds what there is."""

import time
from typing import Protocol

from .. import __version__
from ..schemas.config import Config
from .fleet_state import FleetState
from .metrics import Registry

STUCK_S = 150.0
"""The loop has not come round for this long: longer than the longest request to the broker may take."""
_WORKER = "fleet"


class Worker(Protocol):
    """What is asked of the worker itself."""

    @property
    def state(self) -> FleetState | None: ...
    @property
    def moved_at(self) -> float: ...
    @property
    def was_assigned(self) -> bool: ...


class FleetReport:
    """Reads what the worker keeps anyway."""

    def __init__(self, config: Config, metrics: Registry, worker: Worker) -> None:
        self._metrics, self._worker = metrics, worker
        metrics.set("kvtrail_worker_info", 1, worker=_WORKER, instance=config.fleet.instance, version=__version__)

    async def alive(self) -> list[str]:
        """Reasons why only a restart can help."""
        still_s = time.monotonic() - self._worker.moved_at
        return [f"nothing has moved for {still_s:.0f} s"] if still_s > STUCK_S else []

    async def ready(self) -> list[str]:
        """Reasons why nothing would be found now. Standing by is being ready."""
        if not self._worker.was_assigned:
            return ["no partitions have been assigned yet"]
        return await self.alive()

    async def collect(self) -> None:
        """Bring the registry up to date."""
        metrics, state = self._metrics, self._worker.state
        metrics.set("kvtrail_worker_ready", not await self.ready(), worker=_WORKER)
        for gone in ("kvtrail_fleet_waiting", "kvtrail_fleet_observations_total", "kvtrail_fleet_late_records_total"):
            metrics.clear(gone)
        if state is not None:
            metrics.set("kvtrail_fleet_waiting", state.merge.waiting)
            metrics.set("kvtrail_fleet_observations_total", state.observations)
            metrics.set("kvtrail_fleet_late_records_total", state.merge.late)
