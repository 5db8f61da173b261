"""The notifier's snapshots: read when it takes over, written when the next one is due.

A state that has folded no finding and told nothing since the last one is worth none. And what a lost one costs is only
time, so they are written no more often than writing them is cheap.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from ..judging.errors import SnapshotError
from .notifier_state import State, encode
from .saving import Shelf, interval_s
from .snapshots import Snapshot, SnapshotUnusable

_log = logging.getLogger("kvtrail.streams.notifier")


class NotifierShelf(Shelf, Protocol):
    """Where they are kept."""

    async def restore(self, partition: int) -> Snapshot | None: ...


class NotifierSaving:
    """`every_s`: never more often. `took_s`: what the last one took."""

    def __init__(self, shelf: NotifierShelf, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.took_s = 0.0
        self._shelf, self._every_s, self._clock = shelf, every_s, clock
        self._begun_at = clock()
        self._reached: tuple[dict[int, int], int] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the next one is."""
        return self._clock() - self._begun_at >= interval_s(self._every_s, self.took_s)

    async def restore(self, fresh: Callable[[], State]) -> State:
        """What was saved; a fresh state where nothing was, or where it cannot be used."""
        self._begun_at, self._reached = self._clock(), None
        state = fresh()
        try:
            snapshot = await self._shelf.restore(0)
            if snapshot is not None:
                state.load(snapshot.state)
        except (SnapshotUnusable, SnapshotError) as error:
            _log.error("the saved state cannot be used and is built anew: %s", error)
            return fresh()
        return state

    async def save(self, state: State) -> bool:
        """Whether there was anything new, which is saved now. Raises `KafkaError` where it could not be."""
        self._begun_at = self._clock()
        reached = dict(state.offsets), state.journal
        if reached == self._reached:
            return False
        dumped = state.dump()
        await self._shelf.write(0, await asyncio.to_thread(encode, dumped), reached[1], 0)
        self._reached, self.took_s = reached, self._clock() - self._begun_at
        return True
