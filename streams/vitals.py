"""What every worker of a group is asked: whether it lives, whether it is ready, and how far the broker's log goes."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from aiokafka.errors import KafkaError

from .. import __version__
from .metrics import Registry

_LAG_S = 3.0
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
        if not self._member.was_assigned:
            return ["no partitions have been assigned yet"]
        return await self.alive() + await unanswered(self.asked()) + await self.problems()

    def asked(self) -> Awaitable[object] | None:
        """A question to the broker that one who works could answer; None for a worker that has nothing to ask."""
        return None

    async def problems(self) -> list[str]:
        """Reasons of its own why this worker, which has partitions, is not ready."""
        return []

    async def collect(self) -> None:
        """Bring the registry up to date."""
        self._metrics.set("kvtrail_worker_ready", not await self.ready(), worker=self._name)


async def unanswered(asked: Awaitable[object] | None) -> list[str]:
    """A reason where a broker does not answer: nothing is taken from it then, however well everything else is."""
    if asked is None:
        return []
    try:
        await asyncio.wait_for(asked, _ANSWER_S)
    except (KafkaError, TimeoutError):
        return ["the broker does not answer"]
    except ValueError:
        return []  # of partitions that are just being moved
    return []


async def log_ends(asked: Awaitable[dict[_Tp, int]]) -> dict[_Tp, int]:
    """Nothing where the broker does not say: no sample is better than a wrong one."""
    try:
        return await asyncio.wait_for(asked, _LAG_S)
    except (KafkaError, TimeoutError, ValueError):
        return {}
