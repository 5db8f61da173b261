"""One partition's snapshots: when the next one is due, and writing it while the partition goes on judging.

A snapshot is worth its cost only through the restart it shortens. So the interval grows with what writing takes, and
ends early where a restart would have much to judge again.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from aiokafka.errors import KafkaError

from .fold import Fold, Frozen
from .snapshots import Manifest

SHARE = 0.025
"""Of the time, at most, a worker's snapshots are being written, unless `REPLAY_S` asks for more."""
MOST_S = 120.0
"""Between two snapshots, unless `every_s` is longer: writing slowly for a while must not mean none for an hour."""
REPLAY_S = 20.0
"""Seconds of judging after which a snapshot is due whatever it costs: a restart does them again."""
ITS_TURN_S = 0.25
"""How soon a partition asks again while another one's snapshot is being written."""

_log = logging.getLogger("kvtrail.streams.detector")


def interval_s(every_s: float, took_s: float, again_s: float = 0.0, partitions: int = 1) -> float:
    """Seconds between two snapshots of one of so many partitions where one takes `took_s`, and `again_s` of work would
    have to be done again."""
    return max(every_s, 0.0 if again_s >= REPLAY_S else min(partitions * took_s / SHARE, MOST_S))


class Shelf(Protocol):
    """Where snapshots are kept."""

    async def write(
        self, partition: int, state: bytes, next_offset: int, last_append_us: int, unjudged: tuple[int, ...] = ()
    ) -> Manifest: ...


class Saving:
    """At most one snapshot is being written at a time, of all that share `turn`, of so many `partitions`: encoders side
    by side would take the interpreter from the loop. `every_s`: never more often. `reached`: the offset up to which the
    state is known to be saved; `saved_at`: when it was last saved or found to be, by the monotonic clock."""

    def __init__(
        self,
        partition: int,
        shelf: Shelf,
        owns: Callable[[int], bool],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        turn: asyncio.Lock | None = None,
        partitions: Callable[[], int] = lambda: 1,
    ) -> None:
        self.reached = 0
        self.bytes = 0
        self.took_s = 0.0
        self.saved_at = self._begun_at = clock()
        self._partition = partition
        self._shelf = shelf
        self._owns = owns
        self._every_s = every_s
        self._clock = clock
        self._turn = turn if turn is not None else asyncio.Lock()
        self._partitions = partitions
        self._judged_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def judged(self, seconds: float) -> None:
        """So much was judged, and would be again after a restart."""
        self._judged_s += seconds

    def wait_s(self) -> float:
        """Seconds until a snapshot is due; 0 or less: now. Never while one is being written."""
        wait_s = self._begun_at + self._interval_s() - self._clock()
        if self._task is not None and not self._task.done():
            return max(wait_s, 1.0)
        return max(wait_s, ITS_TURN_S) if self._turn.locked() else wait_s

    def _interval_s(self) -> float:
        return interval_s(self._every_s, self.took_s, self._judged_s, self._partitions())

    async def begin(self, fold: Fold) -> None:
        """Copy the state now and write it from another task, if there is something new, the partition is ours and
        nobody else's is being written. Call only when every finding is acknowledged. Raises what the last writing
        failed with."""
        if self._task is not None:
            if not self._task.done():
                return
            self._task.result()
        if not self._turn.locked():
            await self._start(fold)

    async def now(self, fold: Fold) -> None:
        """As `begin`, and returns when what there is now is written; waits for whatever is being written first."""
        await self.settled()
        await self._start(fold)
        await self.settled()

    async def _start(self, fold: Fold) -> None:
        await self._turn.acquire()
        self._begun_at = self._clock()
        if not fold.usable or fold.next == self.reached or not self._owns(self._partition):
            self.saved_at = self._begun_at
            self._turn.release()
            return
        self._judged_s = 0.0
        # The copy takes a moment, in the loop; encoding goes on in a thread, and writing in a task of its own.
        self._task = asyncio.create_task(
            self._write(fold.judge.freeze(), fold.next, fold.last_append_us, (*fold.unjudged,), self._begun_at)
        )
        self._task.add_done_callback(lambda _: self._turn.release())

    async def settled(self) -> None:
        """Return when nothing is being written. Raises what that failed with."""
        if self._task is not None:
            await self._task

    async def _write(
        self, frozen: Frozen, reached: int, last_append_us: int, unjudged: tuple[int, ...], began: float
    ) -> None:
        try:
            state = await asyncio.to_thread(frozen.encode)
            del frozen
            manifest = await self._shelf.write(self._partition, state, reached, last_append_us, unjudged=unjudged)
        except KafkaError as error:
            # The state is safe in memory and the log; only the next restart takes longer.
            _log.warning("no snapshot was written: %s", error, extra={"partition": self._partition})
            return
        self.reached, self.saved_at, self.bytes = reached, began, manifest.bytes
        self.took_s = self._clock() - began
        _log.info(
            "saved",
            extra={
                "partition": self._partition, "next": reached, "bytes": manifest.bytes,
                "seconds": round(self.took_s, 3),
            },
        )  # fmt: skip
