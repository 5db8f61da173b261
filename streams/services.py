"""What the partitions of one detector share, and where what they make goes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from ..schemas.config import Config
from ..schemas.dead_letters import DeadLetter
from ..schemas.findings import Finding
from .factfeed import FactFeed
from .metrics import Registry
from .observing import Observed
from .statetopic import StateTopic


class Outlet(Protocol):
    """Where findings go. Returns when all of them are acknowledged."""

    async def publish(self, findings: list[Finding]) -> None: ...


class Beside(Protocol):
    """Where observations go. Returns when all of them are acknowledged."""

    async def publish(self, partition: int, observed: Sequence[Observed]) -> None: ...


class Letters(Protocol):
    """Where dead letters go. Returns when all of them are acknowledged."""

    async def publish(self, letters: Sequence[DeadLetter]) -> object: ...


class Services(Struct, frozen=True, kw_only=True):
    """What the partitions of one worker share. `committed` is the group's offset for a partition, None for none;
    `owns` says whether the worker still owns it; `owned` how many it owns."""

    config: Config
    facts: FactFeed
    state: StateTopic
    outlet: Outlet
    observations: Beside
    letters: Letters
    saving_turn: asyncio.Lock
    committed: Callable[[int], Awaitable[int | None]]
    owns: Callable[[int], bool]
    owned: Callable[[], int]
    metrics: Registry
