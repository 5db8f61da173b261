"""How a fleet worker is: its metrics, whether it lives, whether it finds what there is."""

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from ..schemas.config import Config
from .fleet_state import FleetState
from .metrics import Registry
from .vitals import Member, Vitals

STUCK_S = 150.0
"""The loop has not come round for this long: longer than the longest request to the broker may take."""


class Worker(Member, Protocol):
    """What is asked of the worker itself."""

    @property
    def state(self) -> FleetState | None: ...
    async def ends(self) -> dict[Any, int]: ...


class FleetReport(Vitals):
    """Reads what the worker keeps anyway."""

    def __init__(self, config: Config, metrics: Registry, worker: Worker) -> None:
        super().__init__(metrics, worker, name="fleet", instance=config.fleet.instance, stuck_s=STUCK_S)
        self._worker = worker

    def asked(self) -> Awaitable[dict[Any, int]] | None:
        """How far the observations go, of one who does not stand by."""
        return self._worker.ends() if self._worker.state is not None else None

    def tell(self, ends: Mapping[Any, int]) -> None:
        metrics, state = self._metrics, self._worker.state
        for gone in ("kvtrail_fleet_waiting", "kvtrail_fleet_observations_total", "kvtrail_fleet_late_records_total"):
            metrics.clear(gone)
        if state is not None:
            metrics.set("kvtrail_fleet_waiting", state.merge.waiting)
            metrics.set("kvtrail_fleet_observations_total", state.observations)
            metrics.set("kvtrail_fleet_late_records_total", state.merge.late)
