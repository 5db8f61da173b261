"""The engine's side of the agent: the publisher's calls, with nothing but the standard library behind them.

Calls cost what the publisher's cost: one tuple into a bounded buffer. A thread numbers them lane by lane, writes them
as JSON to the agent's Unix socket and keeps them until the agent says that they are safe, so that either side may be
restarted. The agent checks, packs, spools and sends: the engine holds no credentials and spends no time on Kafka.
Since the numbers are given here, an event that the agent must refuse keeps its number and becomes a heartbeat that
says so.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ..schemas.homes import DEFAULT_SLOTS, node_home, shared_home, shared_homes
from .agent_wire import AgentLink, Call
from .buffer import Buffer, Flush, TalliedBuffer
from .exits import close_with_worker, forget, keep
from .incarnation import new_incarnation
from .stats import PublisherStats
from .tally import TALLY, Tally, folder_name

log = logging.getLogger("kvtrail.producers")


class AgentPublisher:
    """`LifecyclePublisher` over an agent: the same calls, with the same meaning.

    `identity` may be an `Identity` or a mapping of dimensions. What the engine accepts and then loses to a kill is
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
        envelope_events: int = 512,
        linger_s: float = 0.1,
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

    def create(self, key: str, identity: Any, *, store: str, tier: str, owner: str = "", **fields: Any) -> None:
        """See `LifecyclePublisher.create`."""
        self._call("create", key, identity, store, tier, owner, fields)

    def hit(self, key: str, identity: Any, *, store: str, tier: str, owner: str = "", **fields: Any) -> None:
        """See `LifecyclePublisher.hit`."""
        self._call("hit", key, identity, store, tier, owner, fields)

    def expire(
        self, key: str, reason: str, *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.expire`."""
        fields["reason"] = reason
        self._call("expire", key, identity, store, tier, owner, fields)

    def invalidate(
        self, key: str = "", *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.invalidate`."""
        if "op_id" not in fields and fields.get("scope", "entry") != "entry":
            fields["op_id"] = secrets.token_hex(8)
        self._call("invalidate", key, identity, store, tier, owner, fields)

    def commit(self, key: str, *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any) -> None:
        """See `LifecyclePublisher.commit`."""
        self._call("commit", key, identity, store, tier, owner, fields)

    def check(self, key: str, *, store: str, tier: str, identity: Any = None, owner: str = "", **fields: Any) -> None:
        """See `LifecyclePublisher.check`."""
        self._call("check", key, identity, store, tier, owner, fields)

    def request_end(
        self, request_id: str, *, key: str = "", store: str = "", tier: str = "gpu", owner: str = "", **fields: Any
    ) -> None:
        """See `LifecyclePublisher.request_end`."""
        fields["request_id"] = request_id
        self._call("request_end", key, fields.pop("identity", None), store, tier, owner, fields)

    def node_start(self, surviving_tiers: Sequence[str] = (), *, version: str = "") -> None:
        """See `LifecyclePublisher.node_start`."""
        self._call("node_start", "", None, "", "gpu", "", {"surviving_tiers": surviving_tiers, "version": version})

    def lookups(self, counts: Sequence[Mapping[str, Any]], *, store: str = "", tier: str = "gpu") -> None:
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
        buffered, link = self._buffer.waiting(), self._link
        return PublisherStats(
            node=self.node, incarnation=self._incarnation, accepted=link.sent + buffered + sum(dropped.values()),
            buffered=buffered, sent=link.sent, records=link.records, bytes=link.bytes, failures=link.failures,
            last_error=link.last_error, dropped=dropped, refused=refused,
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
        try:
            self._buffer.put((self._clock(), name, key, identity, store, tier, owner, fields))  # type: ignore[arg-type]  # this side's items
        except Exception:
            self._buffer.refuse(f"{name}.key")

    def _open(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._drained = True
        self._tally = _make_tally(self.socket.with_name(self.socket.name + ".tallies"), self.node, incarnation)
        own = node_home(self.node)
        if self._tally is None:
            self._buffer = Buffer(self._max_events, self._homes, self._ring)
        else:
            self._buffer = TalliedBuffer(self._max_events, self._homes, self._ring, own, self._tally)
        self._link = AgentLink(
            self.node, incarnation, self.socket, self._buffer, self._tally, self._homes,
            envelope_events=self._envelope_events, linger_s=self._linger_s,
        )  # fmt: skip

    def _ring(self) -> None:
        self._link.start()
        self._link.ring()

    def _homes(self, item: Any) -> tuple[str, ...]:
        call: Call = item
        _, name, key, _, store, tier, owner, fields = call
        if tier != "shared" or name in ("node_start", "lookups"):
            return (node_home(owner or self.node),)
        if name == "invalidate" and fields.get("scope") == "store":
            return shared_homes(store, self._slots)
        return (shared_home(store, key, self._slots),)


_inherited: list[object] = []


def _make_tally(root: Path, node: str, incarnation: str) -> Tally | None:
    try:
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
