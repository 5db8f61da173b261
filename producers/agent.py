"""The agent: one process a host that owns the Kafka client, the spool and the secrets, for all engines of the host.

An engine's runs (`agent_wire`) are checked event by event, packed into records and handed to a line with a spool; the
run is answered when its records are safe. The agent keeps nothing else, so it may be restarted at any moment: engines
send again what was not answered, with the same numbers.
"""

import asyncio
import fcntl
import json
import os
import shutil
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from ..schemas.config import PublisherConfig
from ..schemas.errors import BadInput, ConfigError
from ..schemas.events import Check
from ..schemas.identity import Identity
from .agent_wire import WIRE_VERSION, frame
from .buffer import Item
from .calls import LifecycleCalls
from .lanes import Lane, Packed, Packer, heartbeat, homes_of
from .placing import CACHE_CALLS, Homeless
from .spool import tails
from .tally import TALLY, read_ends, read_head, take
from .telling import Teller, log
from .transport import Line, RecordRejected

MAX_FRAME = 16 * 1024 * 1024
IN_HAND = 64
"""Runs of one engine that are being sent; more are not read before one is safe."""
RETRY_S = 0.2
SWEEP_S = 5.0
_CALLS = frozenset({"create", "hit", "expire", "invalidate", "commit", "node_start", "lookups", "check", "request_end"})
_COUNTED = {"create": "tokens", "hit": "reused_tokens"}
_COLUMNS = 9


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


class Translator(LifecycleCalls):
    """Makes items of an engine's calls. `field` is what the last call was refused for, or empty."""

    def __init__(self) -> None:
        self.item: Item | None = None
        self.field = ""
        self._time_ns = 0
        self._buffer = self  # type: ignore[assignment]  # where calls that cannot be made are counted: here
        self._put = self._keep
        self._clock = lambda: self._time_ns

    def refuse(self, field: str) -> None:
        """The call has arguments that no event can hold."""
        self.field = field

    lose = refuse

    def translate(self, call: tuple[Any, ...], t0_us: int, identities: list[Identity | str]) -> Item | str:
        """One call as it came over the wire, as an item, or the field for which it is refused."""
        try:
            dt, name, key, who, store, tier, owner, request_id, tokens, others = call
            fields = dict(others or {})
            if request_id != "":
                fields["request_id"] = request_id
            if name in _COUNTED:
                fields[_COUNTED[name]] = tokens
            self._time_ns, self.item, self.field = (t0_us + dt) * 1000, None, ""
            identity = None if who < 0 else identities[who]
            if name not in _CALLS:
                return "call"
            if isinstance(identity, str):
                return f"{name}.{identity}"
            self._make(name, key, identity, store, tier, owner, fields)
        except Exception:  # whatever came over the wire
            return "call"
        if self.item is None or self.field:
            return self.field or "call"
        return self.item

    def _make(
        self, name: str, key: str, identity: Identity | None, store: str, tier: Any, owner: str, fields: dict[str, Any]
    ) -> None:
        where: dict[str, Any] = {"store": store, "tier": tier, "owner": owner}
        if name == "node_start":
            self.node_start(**fields)
        elif name == "lookups":
            from ..schemas.events import LookupCount

            counts = msgspec.convert(fields["counts"], list[LookupCount])
            self.lookups(counts, store=store, tier=tier)
        else:
            getattr(self, name)(key=key, identity=identity, **where, **fields)

    def _keep(self, item: Item) -> None:
        self.item = item


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
        self.tallies = path.with_name(path.name + ".tallies")
        self.counts = Counts()
        self._line = line
        self._config = config or PublisherConfig()
        self._group = group
        self._allowed = allowed
        self._homes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of homes to which something is on its way: engines may name any number of owners."""
        self._identities: dict[bytes, Identity | str] = {}
        self._serving: dict[tuple[str, str], int] = {}
        self._engines: set[asyncio.Task[None]] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._unreadable: set[Path] = set()
        self._lock = -1
        self._teller = Teller()
        self._stopping = False

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is set; `ready` is called when engines can connect."""
        try:
            self._open()
            await self._line.start()
            await self._sweep()
            await self._listen(stop, ready)
        finally:
            await self._line.stop()
            if self._lock >= 0:
                os.close(self._lock)

    async def _listen(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        server = await asyncio.start_unix_server(self._engine, sock=self._bound())
        sweeping = asyncio.create_task(self._sweep_for_ever())
        try:
            ready()
            await stop.wait()
        finally:
            self._stopping = True
            server.close()
            with suppress(OSError):
                self.path.unlink()
            # What is in hand, too: the line is about to end, and engines send again what was not answered.
            tasks = [sweeping, *self._engines, *self._carrying]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.tallies.mkdir(exist_ok=True)
            self._lock = self._locked()
            self.tallies.chmod(0o2770)
            if self._group is not None:
                os.chown(self.tallies, -1, self._group)
        except OSError as error:
            raise self._impossible(error) from error

    def _locked(self) -> int:
        """Two agents that start at once find no other that listens: which one serves is decided before."""
        lock = os.open(self.tallies, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError("is served by another agent.", field="agent.socket", remedy="Stop that one.") from None
        return lock

    @staticmethod
    def _impossible(error: OSError) -> ConfigError:
        return ConfigError(
            f"cannot be made ({error.strerror or error}).",
            field="agent.socket",
            remedy="Name a short path in a folder of this user's that can be written.",
        )

    def _bound(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if os.path.lexists(self.path):
                if not stat.S_ISSOCK(self.path.lstat().st_mode):
                    raise ConfigError(
                        "is there, and is no socket.", field="agent.socket", remedy="Name a path for a socket."
                    )
                self.path.unlink()
            before = os.umask(0o117)  # from the first moment: 0660
            try:
                listener.bind(str(self.path))
            finally:
                os.umask(before)
            if self._group is not None:
                os.chown(self.path, -1, self._group)
        except OSError as error:
            listener.close()
            raise self._impossible(error) from error
        except ConfigError:
            listener.close()
            raise
        return listener

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
            if not self._may(writer):
                self.counts.turned_away += 1
                writer.write(frame({"error": "this process may not publish here"}))
                await writer.drain()
                return
            hello = await _read(reader)
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

    def _may(self, writer: asyncio.StreamWriter) -> bool:
        link = writer.get_extra_info("socket")
        raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, gid = struct.unpack("3i", raw)
        return self._allowed(uid, gid)

    async def _serve(
        self, node: str, incarnation: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One engine's runs: lanes go side by side, the runs of one lane in turn."""
        who = (node, incarnation)
        self._serving[who] = self._serving.get(who, 0) + 1
        engine = _Engine(node, incarnation, self._config)
        slots = asyncio.Semaphore(IN_HAND)
        lanes: dict[str, asyncio.Task[None]] = {}
        try:
            while (run := await _read(reader)) is not None:
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
                await self._sweep()

    async def _carry(
        self,
        engine: "_Engine",
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
                records, refused = engine.pack(home, run, self._identity)
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

    def _identity(self, dimensions: Any) -> Identity | str:
        """The identity, one object for equal ones, or the field for which it is refused."""
        packed = json.dumps(dimensions, sort_keys=True).encode()
        found = self._identities.get(packed)
        if found is None:
            try:
                found = Identity.from_wire(dimensions)
            except BadInput as error:
                found = f"identity.{error.field}" if error.field else "identity"
            except Exception:
                found = "identity"
            if len(self._identities) >= 8192:
                self._identities.clear()
            self._identities[packed] = found
        return found

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self._sweep()

    async def _sweep(self) -> None:
        """Declare where the lanes of killed engines should have ended."""
        paths: list[Path] = []
        with suppress(FileNotFoundError):  # an engine has just removed its own: at the next sweep
            paths = sorted(self.tallies.glob(f"*/*/{TALLY}"))
        for path in paths:
            try:
                await self._declare(path)
            except Exception as error:  # engines write here: what one has left must not keep others from being served
                if path not in self._unreadable:
                    self._unreadable.add(path)
                    log.warning("a tally cannot be read, what was lost with it stays so (%s)", type(error).__name__)
        self._unreadable.intersection_update(paths)

    def _is_inside(self, path: Path) -> bool:
        """Engines write here: a link of theirs must not lead the agent anywhere else."""
        return path.parent.resolve().parent.parent == self.tallies.resolve() and not path.is_symlink()

    async def _declare(self, path: Path) -> None:
        if not self._is_inside(path):
            return
        lock = take(path)
        if lock is None:
            return
        try:
            head = read_head(path)
            if head is not None and (head.node, head.incarnation) in self._serving:
                return
            if head is not None and head.same_boot:
                for tail in tails(head, (end for end in read_ends(path) if not end.is_settled)):
                    async with self._homes.setdefault(tail.home, asyncio.Lock()):
                        await self._deliver(tail.home, Packed(tail.record, tail.first, tail.last))
                    self.counts.declared += 1
            elif head is not None:
                log.warning("the host went down under %s: what it had not sent is unknown", head.node)
            shutil.rmtree(path.parent, ignore_errors=True)
        finally:
            os.close(lock)


class _Engine:
    """Packs the runs of one engine. What happened to an entry and is refused leaves its number out, a gap; any other
    event that is refused keeps its number, as a heartbeat that says so."""

    def __init__(self, node: str, incarnation: str, config: PublisherConfig) -> None:
        self._node = node
        self._slots = config.slots
        self._translator = Translator()
        self._packer = Packer(node, incarnation, config, self._refuse, self._stand_in)
        self._refused: dict[str, int] = {}
        self._home = ""
        self._field = ""

    def pack(
        self, home: str, run: dict[str, Any], identity: Callable[[Any], Identity | str]
    ) -> tuple[list[Packed], dict[str, int]]:
        """The records of a run, whose first number it names, and the fields for which some of it is refused, and how
        often. Raises what a run that is none makes it raise."""
        if not home.startswith(("n:", "s:")):
            raise ValueError
        self._home, self._refused = home, {}
        identities = [identity(dimensions) for dimensions in run["ids"]]
        lane = Lane(home)
        lane.given, t0 = int(run["first"]) - 1, int(run["t0"])
        for call in _rows(run["times"], run["columns"]):
            found = self._translator.translate(call, t0, identities)
            if isinstance(found, str) or not self._is_at_home(found):
                self._refuse(found if isinstance(found, str) else f"{call[1]}.home", "")
                is_other = isinstance(call[1], str) and call[1] in _CALLS - CACHE_CALLS
                lane.pending.append(self._stand_in_at(t0 * 1000) if is_other else 1)
            else:
                lane.pending.append(found)
        records = []
        while (packed := self._packer.pack(lane)) is not None:
            records.append(packed)
        return records, self._refused

    def _is_at_home(self, item: Item) -> bool:
        if isinstance(item[1], Check) and item[1].check == "heartbeat":
            return True  # of any lane
        try:
            return self._home in homes_of(item, self._node, self._slots)
        except Homeless:
            return False

    def _refuse(self, field: str, message: str) -> None:
        self._refused[field] = self._refused.get(field, 0) + 1
        self._field = field

    def _stand_in(self, item: Item) -> Item:
        return self._stand_in_at(item[0])

    def _stand_in_at(self, time_ns: int) -> Item:
        return heartbeat(time_ns, self._home, f"refused: {self._field}")


def _rows(times: list[int], columns: list[Any]) -> Iterator[tuple[Any, ...]]:
    """The calls of a run. Raises `ValueError`, `TypeError` for columns that are none."""
    if len(columns) != _COLUMNS:
        raise ValueError
    size = len(times)
    return zip(times, *(each if isinstance(each, list) else repeat(each, size) for each in columns), strict=True)


def _no_longer(lanes: dict[str, asyncio.Task[None]], home: str, task: asyncio.Task[None]) -> None:
    if lanes.get(home) is task:
        del lanes[home]


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """One frame; None at the end of the stream. Raises `ValueError` for what is no frame."""
    try:
        size = int.from_bytes(await reader.readexactly(4))
    except asyncio.IncompleteReadError:
        return None
    if size > MAX_FRAME:
        raise ValueError("too large")
    value = json.loads(await reader.readexactly(size))
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value
