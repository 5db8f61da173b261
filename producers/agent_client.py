"""The engine's side of the agent: the publisher's calls, with nothing but the standard library behind them.

Calls cost what the publisher's cost: one tuple into a bounded buffer. A thread numbers them lane by lane, writes them
as JSON to the agent's Unix socket and keeps them until the agent says that they are safe, so that either side may be
restarted. The agent checks, packs, spools and sends: the engine holds no credentials and spends no time on Kafka.
Since the numbers are given here, an event that the agent must refuse keeps its number and becomes a heartbeat that
says so.
"""

import errno
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

from ..schemas.homes import DEFAULT_SLOTS, node_home
from .agent_link import AgentLink
from .agent_wire import Call
from .buffer import Buffer, Flush, TalliedBuffer
from .exits import close_with_worker, forget, keep
from .incarnation import new_incarnation
from .placing import homes_at, turn_down
from .stats import PublisherStats
from .tally import TALLY, Tally, folder_name

log = logging.getLogger("kvtrail.producers")


P = ParamSpec("P")
_MISSING = object()


def _never_raises(
    method: Callable[Concatenate["AgentPublisher", P], None],
) -> Callable[Concatenate["AgentPublisher", P], None]:
    """A call that cannot be carried out is counted; the engine never sees an exception of ours."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: "AgentPublisher", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            turn_down(self._buffer, name, error)

    return call


class AgentPublisher:
    """`LifecyclePublisher` over an agent: the same calls, with the same meaning.

    `identity` may be an `Identity` or a mapping of dimensions, which is read when it is sent: do not change one that
    was passed, pass another. What the engine accepts and then loses to a kill is
    declared by the agent, where the folder `<socket>.tallies` can be written. Raises `ValueError` for an empty node;
    nothing raises afterwards.
    """

    _buffer: Buffer
    _link: AgentLink
    _tally: Tally | None

    def __init__(
        self,
        node: str,
        socket: Path | str,
        *,
        incarnation: str | None = None,
        surviving_tiers: Sequence[str] | None = None,
        version: str = "",
        max_events: int = 100_000,
        envelope_events: int = 2048,
        linger_s: float = 0.2,
        close_s: float = 5.0,
        slots: int = DEFAULT_SLOTS,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        if not node:
            raise ValueError("node is empty. Name the engine's process.")
        self.node = node
        self.socket = Path(socket)
        self._max_events = max_events
        self._envelope_events = envelope_events
        self._linger_s = linger_s
        self._close_s = close_s
        self._slots = slots
        self._clock = clock_ns
        self._closed = False
        self._open(incarnation or new_incarnation())
        self._link.start()
        close_with_worker(self)
        keep(self)
        if surviving_tiers is not None:
            self.node_start(surviving_tiers, version=version)

    @property
    def incarnation(self) -> str:
        """This process start; another one in a forked child."""
        return self._incarnation

    # The two calls that engines make all the time go the shortest way, as in `short_calls`; an argument that is missing
    # is counted, too.
    if TYPE_CHECKING:

        def create(
            self, key: str, identity: Any, *, store: str, tier: str, tokens: int = 0, owner: str = "",
            request_id: str = "", **fields: Any,
        ) -> None: ...  # fmt: skip

        def hit(
            self, key: str, identity: Any, *, store: str, tier: str, reused_tokens: int = 0, owner: str = "",
            request_id: str = "", **fields: Any,
        ) -> None: ...  # fmt: skip
    else:

        def create(
            self, key=_MISSING, identity=_MISSING, /, *more,
            store=None, tier=None, tokens=0, owner="", request_id="", **fields,
        ):  # fmt: skip
            """See `LifecyclePublisher.create`."""
            try:
                if more or identity is _MISSING:
                    key, identity = _named((*_given(key, identity), *more), fields)
                if store is None or tier is None:
                    raise TypeError
                item = (
                    self._clock(), "create", key, identity, store, tier, owner, request_id, tokens, fields or None,
                )  # fmt: skip
                buffer = self._buffer
                if buffer.slots is not None:
                    slot = buffer.slots.get(get_ident())
                    if slot is None or tier == "shared" or owner:
                        self._put(item)
                        return
                    buffer.view[slot] += 1
                queue = buffer.queue
                if len(queue) + buffer.staged >= buffer.limit:
                    buffer.overflow(item)
                    return
                queue.append(item)
                if len(queue) >= buffer.alarm:
                    buffer.wake()
            except Exception as error:
                turn_down(self._buffer, "create", error)

        def hit(
            self, key=_MISSING, identity=_MISSING, /, *more,
            store=None, tier=None, reused_tokens=0, owner="", request_id="", **fields,
        ):  # fmt: skip
            """See `LifecyclePublisher.hit`."""
            try:
                if more or identity is _MISSING:
                    key, identity = _named((*_given(key, identity), *more), fields)
                if store is None or tier is None:
                    raise TypeError
                item = (
                    self._clock(), "hit", key, identity, store, tier, owner, request_id, reused_tokens, fields or None,
                )  # fmt: skip
                buffer = self._buffer
                if buffer.slots is not None:
                    slot = buffer.slots.get(get_ident())
                    if slot is None or tier == "shared" or owner:
                        self._put(item)
                        return
                    buffer.view[slot] += 1
                queue = buffer.queue
                if len(queue) + buffer.staged >= buffer.limit:
                    buffer.overflow(item)
                    return
                queue.append(item)
                if len(queue) >= buffer.alarm:
                    buffer.wake()
            except Exception as error:
                turn_down(self._buffer, "hit", error)

    @_never_raises
    def expire(
        self, /, key: str, reason: str, *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.expire`."""
        fields["reason"] = reason
        self._call("expire", key, identity, store, tier, owner, fields)

    @_never_raises
    def invalidate(
        self, /, key: str = "", *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.invalidate`."""
        if "op_id" not in fields and fields.get("scope", "entry") != "entry":
            fields["op_id"] = secrets.token_hex(8)
        self._call("invalidate", key, identity, store, tier, owner, fields)

    @_never_raises
    def commit(
        self, /, key: str, *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.commit`."""
        self._call("commit", key, identity, store, tier, owner, fields)

    @_never_raises
    def check(
        self, /, key: str, *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.check`."""
        self._call("check", key, identity, store, tier, owner, fields)

    @_never_raises
    def request_end(
        self, /, request_id: str, *, key: str = "", store: str = "", tier: str = "gpu", owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.request_end`."""
        fields["request_id"] = request_id
        self._call("request_end", key, fields.pop("identity", None), store, tier, owner, fields)

    @_never_raises
    def node_start(self, /, surviving_tiers: Sequence[str] = (), *, version: str = "") -> None:
        """See `LifecyclePublisher.node_start`."""
        self._call("node_start", "", None, "", "gpu", "", {"surviving_tiers": surviving_tiers, "version": version})

    @_never_raises
    def lookups(self, /, counts: Sequence[Mapping[str, Any]], *, store: str = "", tier: str = "gpu") -> None:
        """See `LifecyclePublisher.lookups`; each count a mapping with the fields of `LookupCount`."""
        self._call("lookups", "", None, store, tier, "", {"counts": counts})

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until what was published before this call is safe with the agent; False when the time is over first."""
        if self._closed:
            return self.stats().buffered == 0
        flush = Flush()
        self._buffer.mark(flush)
        return flush.done.wait(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Drain for at most `timeout_s` (default: `close_s`), then stop. True when everything is safe."""
        if not self._closed:
            self._closed = True
            forget(self)
            self._buffer.close()
            if self._buffer.queue or self._link.is_started:
                self._link.start()
                self._drained = self._link.close(self._close_s if timeout_s is None else timeout_s)
            if self._tally is not None:
                _finish(self._tally)
        return self._drained

    def stats(self) -> PublisherStats:
        """As `LifecyclePublisher.stats`; `sent`: safe with the agent."""
        dropped, refused = self._buffer.books()
        buffered, runs, connection = self._buffer.waiting(), self._link.runs, self._link.connection
        return PublisherStats(
            node=self.node, incarnation=self._incarnation, accepted=runs.sent + buffered + sum(dropped.values()),
            buffered=buffered, sent=runs.sent, records=runs.records, bytes=runs.bytes, failures=connection.failures,
            last_error=connection.last_error, lag_s=runs.lag_s(), dropped=dropped, refused=refused,
        )  # fmt: skip

    def after_fork(self) -> None:
        """In a forked child: an incarnation of its own, which begins with its first event."""
        _inherited.append((self._link, self._buffer, self._tally))
        self._link.abandon()
        if self._tally is not None:
            self._tally.close()
        self._open(new_incarnation())
        self._buffer.alarm = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _call(
        self, name: str, key: str, identity: Any, store: str, tier: str, owner: str, fields: dict[str, Any]
    ) -> None:
        request_id = fields.pop("request_id", "")
        self._put((self._clock(), name, key, identity, store, tier, owner, request_id, 0, fields or None))

    def _open(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._drained = True
        self._tally = _make_tally(self.socket.with_name(self.socket.name + ".tallies"), self.node, incarnation)
        own = node_home(self.node)
        if self._tally is None:
            self._buffer = Buffer(self._max_events, self._homes, self._ring, own)
        else:
            self._buffer = TalliedBuffer(self._max_events, self._homes, self._ring, own, self._tally)
        self._put: Callable[[Any], None] = self._buffer.put
        self._link = AgentLink(
            self.node, incarnation, self.socket, self._buffer, self._tally, self._homes,
            envelope_events=self._envelope_events, linger_s=self._linger_s,
        )  # fmt: skip

    def _ring(self) -> None:
        self._link.start()
        self._link.ring()

    def _homes(self, item: Any) -> tuple[str, ...]:
        call: Call = item
        _, name, key, _, store, tier, owner, _, _, fields = call
        shared = tier == "shared" and name not in ("node_start", "lookups")
        whole = name == "invalidate" and (fields or {}).get("scope") == "store"
        return homes_at(shared, whole, key, store, owner, self.node, self._slots)


def _given(key: Any, identity: Any) -> tuple[Any, ...]:
    return tuple(each for each in (key, identity) if each is not _MISSING)


def _named(args: tuple[Any, ...], fields: dict[str, Any]) -> tuple[Any, Any]:
    """Key and identity of a call that names them. Raises `TypeError`, `KeyError`."""
    if len(args) > 2 or (args and "key" in fields):
        raise TypeError
    try:
        return (args[0] if args else fields.pop("key")), fields.pop("identity")
    except KeyError:
        raise TypeError from None


_inherited: list[object] = []


def _make_tally(root: Path, node: str, incarnation: str) -> Tally | None:
    try:
        there = next(each for each in (root, *root.absolute().parents) if each.exists())
        if there != root and there.stat().st_uid != os.geteuid():
            # The agent's to make, who could not use one that is this user's, nor start beside it.
            raise FileNotFoundError(errno.ENOENT, "start the agent before its engines")
        folder = root / folder_name(node) / incarnation
        folder.mkdir(parents=True)
        for each in (folder.parent, folder):
            each.chmod(0o2770)
        return Tally(folder / TALLY, node, incarnation, mode=0o660)
    except OSError as error:
        log.warning("what a kill takes will not be declared: no tally in %s (%s)", root, error.strerror)
        return None


def _finish(tally: Tally) -> None:
    """Remove a tally that has nothing to say; the agent reads the others."""
    with suppress(OSError):
        if tally.is_settled():
            tally.path.unlink()
            tally.path.parent.rmdir()
    tally.close()
