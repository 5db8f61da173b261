"""The agent: one process a host that owns the Kafka client, the spool and the secrets, for all engines of the host.

An engine's runs (`agent_wire`) are checked event by event, packed into records (`agent_engine`) and handed to a line
with a spool; the run is answered when its records are safe. The agent keeps nothing else, so it may be restarted at any
moment: engines send again what was not answered, with the same numbers.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from ..schemas.config import PublisherConfig
from .agent_engine import Engine, Identities
from .agent_listener import Listener
from .agent_sweep import Sweep
from .agent_wire import WIRE_VERSION, frame, read_frame
from .lanes import Packed
from .telling import Teller
from .transport import Line, RecordRejected

IN_HAND = 64
"""Runs of one engine that are being sent; more are not read before one is safe."""
RETRY_S = 0.2


class Counts(msgspec.Struct):
    """What the agent has done since it started."""

    engines: int = 0
    """Connected now."""
    connections: int = 0
    turned_away: int = 0
    runs: int = 0
    events: int = 0
    refused: int = 0
    records: int = 0
    rejected: int = 0
    declared: int = 0
    """Lanes of killed engines whose end was declared."""


class Agent:
    """Serves engines on a Unix socket and delivers through `line`, which it starts and stops.

    `allowed` says whether a process may publish, by its user and group id. Raises `ConfigError` where the socket
    cannot be made, or another agent serves it.
    """

    def __init__(
        self,
        path: Path,
        line: Line,
        config: PublisherConfig | None = None,
        *,
        group: int | None = None,
        allowed: Callable[[int, int], bool] = lambda uid, gid: True,
    ) -> None:
        self.path = path
        self.counts = Counts()
        self._line = line
        self._config = config or PublisherConfig()
        self._listener = Listener(path, group, allowed)
        self._homes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of homes to which something is on its way: engines may name any number of owners."""
        self._identities = Identities()
        self._serving: dict[tuple[str, str], int] = {}
        """How many connections each engine (node, incarnation) has."""
        self._sweep = Sweep(self._listener.tallies, self._serving, self._declare)
        self._engines: set[asyncio.Task[None]] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._teller = Teller()
        self._stopping = False

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is set; `ready` is called when engines can connect."""
        try:
            self._listener.claim()
            await self._line.start()
            await self._sweep.once()
            await self._listen(stop, ready)
        finally:
            await self._line.stop()
            self._listener.release()

    async def _listen(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        server = await asyncio.start_unix_server(self._engine, sock=self._listener.bind())
        sweeping = asyncio.create_task(self._sweep.for_ever())
        try:
            ready()
            await stop.wait()
        finally:
            self._stopping = True
            server.close()
            self._listener.unlink()
            # What is in hand, too: the line is about to end, and engines send again what was not answered.
            tasks = [sweeping, *self._engines, *self._carrying]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _engine(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._stopping:
            writer.close()
            return
        self._engines.add(task)
        self.counts.connections += 1
        self.counts.engines += 1
        try:
            if not self._listener.may_publish(writer):
                self.counts.turned_away += 1
                writer.write(frame({"error": "this process may not publish here"}))
                await writer.drain()
                return
            hello = await read_frame(reader)
            if hello is None or hello.get("v") != WIRE_VERSION:
                writer.write(frame({"error": "unknown version"}))
                await writer.drain()
                return
            await self._serve(str(hello["node"]), str(hello["incarnation"]), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError, KeyError, TypeError, RecursionError):
            pass  # the engine has gone, or sent what no engine sends: it may connect again
        except asyncio.CancelledError:
            if not self._stopping:  # else it ends as it should, and asyncio's streams would log a traceback
                raise
        finally:
            self._engines.discard(task)
            self.counts.engines -= 1
            writer.close()

    async def _serve(
        self, node: str, incarnation: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One engine's runs: lanes go side by side, the runs of one lane in turn."""
        who = (node, incarnation)
        self._serving[who] = self._serving.get(who, 0) + 1
        engine = Engine(node, incarnation, self._config, self._identities.of)
        slots = asyncio.Semaphore(IN_HAND)
        lanes: dict[str, asyncio.Task[None]] = {}
        try:
            while (run := await read_frame(reader)) is not None:
                await slots.acquire()
                home = str(run["home"])
                task = asyncio.create_task(self._carry(engine, run, lanes.get(home), writer, slots))
                self._carrying.add(task)
                task.add_done_callback(self._carrying.discard)
                lanes[home] = task
                task.add_done_callback(partial(_no_longer, lanes, home))
        finally:
            # What is in hand goes on when the engine has gone, and its end is not declared before that is safe.
            try:
                if lanes:
                    await asyncio.wait(lanes.values())
            finally:
                self._serving[who] -= 1
                if not self._serving[who]:
                    del self._serving[who]
            if not self._stopping:
                await self._sweep.once()

    async def _carry(
        self,
        engine: Engine,
        run: dict[str, Any],
        before: asyncio.Task[None] | None,
        writer: asyncio.StreamWriter,
        slots: asyncio.Semaphore,
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            home = str(run["home"])
            async with self._homes.setdefault(home, asyncio.Lock()):
                records, refused = engine.pack(home, run)
                for packed in records:
                    await self._deliver(home, packed)
            self.counts.runs += 1
            self.counts.events += len(run["times"])
            self.counts.refused += sum(refused.values())
            for field in refused:
                self._teller.refused(field)
            answer = {"ok": run["n"], "refused": refused} if refused else {"ok": run["n"]}
            if not writer.is_closing():
                writer.write(frame(answer))
        except Exception:  # no engine sends this
            writer.close()
        finally:
            slots.release()

    async def _deliver(self, home: str, packed: Packed) -> None:
        while True:
            try:
                await self._line.send(home, packed.record, packed.first, packed.last)
            except RecordRejected as error:
                self.counts.rejected += packed.events
                self._teller.rejected(error)
                return
            except Exception as error:
                self._teller.down(error)
                await asyncio.sleep(RETRY_S)
            else:
                self.counts.records += 1
                self._teller.up(0)
                return

    async def _declare(self, home: str, packed: Packed) -> None:
        async with self._homes.setdefault(home, asyncio.Lock()):
            await self._deliver(home, packed)
        self.counts.declared += 1


def _no_longer(lanes: dict[str, asyncio.Task[None]], home: str, task: asyncio.Task[None]) -> None:
    if lanes.get(home) is task:
        del lanes[home]
