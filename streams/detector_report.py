"""How a detector is: its metrics, whether it lives, whether it is ready. Reads what the worker keeps anyway."""

import time
from collections.abc import Callable, Iterable, Set
from typing import Any

from .. import __version__
from ..judging.judge import Judge
from ..schemas.config import Config
from ..schemas.topics import LIFECYCLE
from .factfeed import FactFeed
from .metrics import Registry
from .partition import PartitionTask
from .reader import TopicReader
from .vitals import log_ends

STUCK_S = 120.0
"""A partition with work in hand that got nothing done for this long is stuck."""
_WORKER = "detector"


class DetectorReport:
    """`tasks` are the partitions this worker has worked on, `owned` those it owns now, None before the first
    assignment."""

    def __init__(
        self,
        config: Config,
        metrics: Registry,
        facts: FactFeed,
        *,
        tasks: Callable[[], Iterable[PartitionTask]],
        owned: Callable[[], Set[int] | None],
    ) -> None:
        self._metrics = metrics
        self._facts = facts
        self._tasks = tasks
        self._owned = owned
        self._ends = TopicReader(config.kafka, LIFECYCLE, f"kvtrail-{config.detector.instance}-lag")
        metrics.set(
            "kvtrail_worker_info", 1, worker=_WORKER, instance=config.detector.instance, version=__version__
        )  # fmt: skip

    async def start(self) -> None:
        """Connect for the lag. Only where somebody may ask."""
        await self._ends.start()

    async def stop(self) -> None:
        await self._ends.stop()

    async def alive(self) -> list[str]:
        """Reasons why only a restart can help."""
        now = time.monotonic()
        return [
            f"partition {task.partition} has been stuck for {now - task.moved_at:.0f} s"
            for task in self._tasks()
            if task.busy and now - task.moved_at > STUCK_S
        ]

    async def ready(self) -> list[str]:
        """Reasons why this worker does not judge everything it should."""
        reasons, _ = await self._look()
        return reasons

    async def _look(self) -> tuple[list[str], dict[int, int]]:
        owned = self._owned()
        if owned is None:
            return ["no partitions have been assigned yet"], {}
        by_partition = {task.partition: task for task in self._tasks()}
        ends, silent = await log_ends(self._ends.ends(owned) if owned else None)
        reasons = await self.alive() + silent
        for partition in sorted(owned):
            task = by_partition.get(partition)
            if task is None or not task.recovered:
                reached = task.next if task is not None else 0
                reasons.append(f"partition {partition} is still being recovered (at offset {reached})")
        return reasons, ends

    async def collect(self) -> None:
        """Bring the registry up to date. The broker is asked once, for readiness and for the lag."""
        reasons, ends = await self._look()
        metrics, owned = self._metrics, self._owned() or frozenset()
        metrics.set("kvtrail_worker_ready", not reasons, worker=_WORKER)
        metrics.set("kvtrail_detector_facts", self._facts.facts)
        metrics.set("kvtrail_detector_ticks_total", self._facts.ticks)
        for gone in (
            "kvtrail_lag_records", "kvtrail_event_age_seconds", "kvtrail_detector_snapshot_bytes",
            "kvtrail_detector_snapshot_age_seconds", "kvtrail_detector_snapshot_seconds",
            "kvtrail_detector_covered_hits",
        ):  # fmt: skip
            metrics.clear(gone)
        skipped = gaps = duplicates = compared = left_out = 0
        covered: dict[str, int] = {}
        for task in self._tasks():
            skipped, gaps = skipped + task.skipped, gaps + task.gap_records
            where: dict[str, Any] = {"worker": _WORKER, "topic": LIFECYCLE, "partition": task.partition}
            metrics.set("kvtrail_records_total", task.records, **where)
            fold = task.fold
            if fold is None:
                continue
            metrics.set("kvtrail_refused_total", fold.rejected, **where)
            judge = fold.judge
            if isinstance(judge, Judge):
                duplicates += judge.counts.get("duplicates", 0)
                left_out += judge.counts.get("parts_left_out", 0)
            if task.partition not in owned:
                continue
            if task.partition in ends:
                metrics.set("kvtrail_lag_records", max(0, ends[task.partition] - fold.next), **where)
            if fold.newest_event_us:
                metrics.set("kvtrail_event_age_seconds", time.time() - fold.newest_event_us / 1e6, **where)
            metrics.set("kvtrail_detector_snapshot_bytes", task.saving.bytes, partition=task.partition)
            metrics.set("kvtrail_detector_snapshot_seconds", task.saving.took_s, partition=task.partition)
            age_s = time.monotonic() - task.saving.saved_at
            metrics.set("kvtrail_detector_snapshot_age_seconds", age_s, partition=task.partition)
            if isinstance(judge, Judge):
                hits, known = judge.comparator.coverage()
                compared += hits
                for dimension, count in known.items():
                    covered[dimension] = covered.get(dimension, 0) + count
        metrics.set("kvtrail_detector_skipped_records_total", skipped)
        metrics.set("kvtrail_detector_gap_records_total", gaps)
        metrics.set("kvtrail_duplicates_total", duplicates, worker=_WORKER)
        metrics.set("kvtrail_detector_parts_left_out_total", left_out)
        metrics.set("kvtrail_detector_compared_hits", compared)
        for dimension, count in covered.items():
            metrics.set("kvtrail_detector_covered_hits", count, dimension=dimension)
