"""What every worker of a group is asked: whether it lives, whether it is ready, and how far the broker's log goes."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, TypeVar

from aiokafka.errors import KafkaError

from .. import __version__
from .metrics import Registry

_ANSWER_S = 2.0
_Tp = TypeVar("_Tp")


class Member(Protocol):
    """What a worker keeps anyway."""

    @property
    def moved_at(self) -> float: ...
    @property
    def was_assigned(self) -> bool: ...


class Vitals:
    """The reasons that all workers share. `stuck_s`: when nothing has moved for so long, only a restart can help."""

    def __init__(self, metrics: Registry, member: Member, *, name: str, instance: str, stuck_s: float) -> None:
        self._metrics, self._member, self._name, self._stuck_s = metrics, member, name, stuck_s
        metrics.set("kvtrail_worker_info", 1, worker=name, instance=instance, version=__version__)

    def moved_at(self) -> float:
        """When something moved last."""
        return self._member.moved_at

    async def alive(self) -> list[str]:
        """Reasons why only a restart can help. A broker, store or target that is away is none."""
        still_s = time.monotonic() - self.moved_at()
        return [f"nothing has moved for {still_s:.0f} s"] if still_s > self._stuck_s else []

    async def ready(self) -> list[str]:
        """Reasons why this worker does not do everything it should. Standing by is being ready."""
        reasons, _ = await self._look()
        return reasons

    async def _look(self) -> tuple[list[str], dict[Any, int]]:
        if not self._member.was_assigned:
            return ["no partitions have been assigned yet"], {}
        ends, silent = await log_ends(self.asked())
        return await self.alive() + silent + await self.problems(), ends

    def asked(self) -> Awaitable[dict[Any, int]] | None:
        """How far the log goes that this worker reads; None for a worker that has nothing to ask."""
        return None

    async def problems(self) -> list[str]:
        """Reasons of its own why this worker, which has partitions, is not ready."""
        return []

    async def collect(self) -> None:
        """Bring the registry up to date. The broker is asked once, for both."""
        reasons, ends = await self._look()
        self._metrics.set("kvtrail_worker_ready", not reasons, worker=self._name)
        self.tell(ends)

    def tell(self, ends: Mapping[Any, int]) -> None:
        """Note what there is to say; `ends` is how far the log goes, as far as the broker says."""


async def log_ends(asked: Awaitable[dict[_Tp, int]] | None) -> tuple[dict[_Tp, int], list[str]]:
    """What the broker says, and a reason where it does not answer: nothing is taken from it then, however well
    everything else is. Nothing where it does not say: no sample is better than a wrong one."""
    if asked is None:
        return {}, []
    try:
        return await asyncio.wait_for(asked, _ANSWER_S), []
    except (KafkaError, TimeoutError):
        return {}, ["the broker does not answer"]
    except ValueError:
        return {}, []  # of partitions that are just being moved
