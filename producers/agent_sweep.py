"""Engines that were killed: where their lanes should have ended is read from their tallies, and declared."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from pathlib import Path

from .lanes import Packed
from .spool import tails
from .tally import TALLY, read_ends, read_head, take
from .telling import log

SWEEP_S = 5.0


class Sweep:
    """Looks through the folder `tallies`, and passes to `declare` a home and the record that declares a lane's end.

    Engines that are being `served` (node, incarnation) are left alone: what of theirs is in hand is not safe yet.
    """

    def __init__(
        self, tallies: Path, served: Container[tuple[str, str]], declare: Callable[[str, Packed], Awaitable[None]]
    ) -> None:
        self._tallies = tallies
        self._served = served
        self._declare = declare
        self._unreadable: set[Path] = set()

    async def for_ever(self) -> None:
        """Again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.once()

    async def once(self) -> None:
        """Declare what can be; what cannot be read is said once in the log, and left."""
        paths: list[Path] = []
        with suppress(FileNotFoundError):  # an engine has just removed its own: at the next sweep
            paths = sorted(self._tallies.glob(f"*/*/{TALLY}"))
        for path in paths:
            try:
                await self._close(path)
            except Exception as error:  # engines write here: what one has left must not keep others from being served
                if path not in self._unreadable:
                    self._unreadable.add(path)
                    log.warning("a tally cannot be read, what was lost with it stays so (%s)", type(error).__name__)
        self._unreadable.intersection_update(paths)

    async def _close(self, path: Path) -> None:
        """Declare the ends that one tally knows, and remove it; unless its engine lives."""
        if not self._is_inside(path):
            return
        lock = take(path)
        if lock is None:
            return
        try:
            head = read_head(path)
            if head is not None and (head.node, head.incarnation) in self._served:
                return
            if head is not None and head.doubt:
                log.warning("%s: %s", head.node, head.doubt)
            if head is not None and head.same_boot:
                for tail in tails(head, (end for end in read_ends(path) if not end.is_settled)):
                    await self._declare(tail.home, Packed(tail.record, tail.first, tail.last))
            shutil.rmtree(path.parent, ignore_errors=True)
        finally:
            os.close(lock)

    def _is_inside(self, path: Path) -> bool:
        """Engines write here: a link of theirs must not lead the agent anywhere else."""
        return path.parent.resolve().parent.parent == self._tallies.resolve() and not path.is_symlink()
