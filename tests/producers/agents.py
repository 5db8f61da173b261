"""An agent in a thread of the test, over any transport."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from kvtrail.producers.agent import Agent
from kvtrail.producers.spool import Spool
from kvtrail.producers.spooled import SpooledTransport
from kvtrail.producers.transport import Line
from kvtrail.schemas.config import PublisherConfig


class Running:
    """An agent that serves until `stop`, which is as abrupt for its engines as a kill."""

    def __init__(
        self,
        path: Path,
        line: Line,
        *,
        group: int | None = None,
        allowed: Callable[[int, int], bool] = lambda uid, gid: True,
    ) -> None:
        self.path = path
        self.agent = Agent(path, line, PublisherConfig(), group=group, allowed=allowed)
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self) -> None:
        async def serve() -> None:
            self._stop = asyncio.Event()
            await self.agent.run(self._stop, self._ready.set)

        self._loop.run_until_complete(serve())
        self._loop.close()

    def stop(self) -> None:
        if self._thread.is_alive():
            assert self._stop is not None
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def spooled(inner: Line, folder: Path, incarnation: str) -> SpooledTransport:
    """A line with a spool, as the command makes it."""
    return SpooledTransport(inner, Spool(folder, "agent", incarnation, max_bytes=1 << 24), patience_s=0.05)
