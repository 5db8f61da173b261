"""`LifecyclePublisher`: what an engine calls when something happens to an entry.

Every call is synchronous, may come from any thread, and costs a few microseconds whatever the broker does: it appends
one tuple to a bounded buffer. It never waits, never raises, never logs. A sender thread does everything else.
"""

import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from ..schemas.config import KafkaConfig, PublisherConfig
from ..schemas.errors import ConfigError
from ..schemas.events import Tier
from ..schemas.homes import node_home
from ..schemas.reserved import HEARTBEAT_NODE, PREFIX, is_reserved
from .buffer import Buffer, Flush, Item, TalliedBuffer
from .calls import LifecycleCalls
from .exits import close_with_worker, forget, keep
from .incarnation import new_incarnation
from .lanes import homes_of
from .sender import Sender
from .spool import Spool
from .spooled import SpooledTransport
from .stats import PublisherStats
from .telling import log
from .transport import Line, Transport


class LifecyclePublisher(LifecycleCalls):
    """Publishes one node's lifecycle events.

    `node` names the engine's process for as long as it owns its tiers: two processes that run at once need two
    names. `incarnation` is new for each start and is chosen here unless given. The first event of an incarnation is
    its `node_start`: given `surviving_tiers` it is published at once, else before the first event, saying that
    nothing survived, unless that first event is a `node_start` itself.

    The calls themselves are `LifecycleCalls`'. Times come from `clock_ns`.

    With `config.spool_directory`, what cannot be sent waits on disk, and what a kill takes is declared by the next
    publisher of the node that has the same folder.

    Raises `ConfigError` when it is made with an empty node or an impossible spool; nothing raises afterwards.
    """

    def __init__(
        self,
        node: str,
        transport: Transport,
        config: PublisherConfig | None = None,
        incarnation: str | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        *,
        surviving_tiers: Sequence[Tier] | None = None,
        version: str = "",
    ) -> None:
        if not node:
            raise ConfigError("is empty.", field="node", remedy="Name the engine's process.")
        if is_reserved(node) and node != HEARTBEAT_NODE:
            raise ConfigError(f"must not begin with {PREFIX!r}.", field="node", remedy="Choose another name.")
        self.node = node
        self.config = config or PublisherConfig()
        self._clock = clock_ns
        self._closed = False
        self._open(transport, incarnation or new_incarnation())
        keep(self)
        if surviving_tiers is not None:
            self.node_start(surviving_tiers, version=version)

    @classmethod
    def to_kafka(
        cls,
        node: str,
        kafka: KafkaConfig | None = None,
        config: PublisherConfig | None = None,
        *,
        surviving_tiers: Sequence[Tier] | None = None,
        version: str = "",
    ) -> Self:
        """A publisher to `kvtrail.lifecycle` on a broker, which offers events that know only a request id to
        `kvtrail.context`. Raises `ConfigError` for a compression that needs a package which is not installed."""
        from .offering import to_kafka

        return cls(node, to_kafka(kafka or KafkaConfig()), config, surviving_tiers=surviving_tiers, version=version)

    @property
    def incarnation(self) -> str:
        """This process start; another one in a forked child."""
        return self._incarnation

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until what was published before this call is acknowledged; False when the time is over first.

        It blocks: from a coroutine use `await asyncio.to_thread(publisher.flush)`.
        """
        if self._closed:
            return self.stats().buffered == 0
        flush = Flush()
        self._buffer.mark(flush)
        return flush.done.wait(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Drain for at most `timeout_s` (default: `config.close_s`), then stop; what is left is dropped, reason
        `closed`. True when everything was acknowledged. Called at interpreter exit for whoever forgets it."""
        if not self._closed:
            self._closed = True
            forget(self)
            self._buffer.close()
            if self._sender is None and self._buffer.queue:
                self._ring()
            if self._sender is not None:
                self._drained = self._sender.close(self.config.close_s if timeout_s is None else timeout_s)
        return self._drained

    def stats(self) -> PublisherStats:
        """What was accepted, sent, buffered, dropped and refused, up to now."""
        dropped, refused = self._buffer.books()
        sender = self._sender
        buffered = self._buffer.waiting()
        sent = sender.sent if sender is not None else 0
        return PublisherStats(
            node=self.node,
            incarnation=self._incarnation,
            accepted=sent + buffered + sum(dropped.values()),
            buffered=buffered,
            sent=sent,
            records=sender.records if sender is not None else 0,
            bytes=sender.bytes if sender is not None else 0,
            failures=sender.failures if sender is not None else 0,
            last_error=sender.last_error if sender is not None else "",
            lag_s=self._lag_s(),
            dropped=dropped,
            refused=refused,
            spooled=self._spool.records if self._spool is not None else 0,
            spool_trouble=self._spool.trouble if self._spool is not None else "",
            spooled_bytes=self._spool.bytes if self._spool is not None else 0,
        )

    def _lag_s(self) -> float:
        on_disk = self._line.lag_s() if isinstance(self._line, SpooledTransport) else 0.0
        return max(on_disk, self._sender.lag_s() if self._sender is not None else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open(self, transport: Transport, incarnation: str, *, start: bool = True) -> None:
        """Begin an incarnation: an empty buffer and, now or at the first event, its sender."""
        self._transport = transport
        self._incarnation = incarnation
        self._spool = self._make_spool(incarnation, may_raise=start)
        self._line: Line = transport
        own = node_home(self.node)
        self._buffer = Buffer(self.config.max_events, self._homes, self._ring, own)
        if self._spool is not None:
            self._line = SpooledTransport(transport, self._spool, patience_s=self.config.spool_after_s)
            self._buffer = TalliedBuffer(self.config.max_events, self._homes, self._ring, own, self._spool.tally)
        self._put: Callable[[Item], None] = self._buffer.put
        self._drained = True
        self._sender: Sender | None = None
        # Re-entrant, since a signal handler may publish while the sender is being started.
        self._starting = threading.RLock()
        self._is_starting = False
        if start:
            self._sender = Sender(self.node, incarnation, self._buffer, self._line, self.config)
            close_with_worker(self)
        else:
            self._buffer.alarm = 1

    def _make_spool(self, incarnation: str, *, may_raise: bool) -> Spool | None:
        if self.config.spool_directory is None:
            return None
        try:
            return Spool(self.config.spool_directory, self.node, incarnation, max_bytes=self.config.spool_bytes)
        except ConfigError as error:
            full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
            if may_raise and not full:
                raise
            log.warning("publishing without a spool: %s", error)
            return None

    def _homes(self, item: Item) -> tuple[str, ...]:
        return homes_of(item, self.node, self.config.slots)

    def _ring(self) -> None:
        if self._sender is None and not self._start():
            return
        assert self._sender is not None
        self._sender.ring()

    def _start(self) -> bool:
        """The sender of a forked child, at its first event."""
        with self._starting:
            if self._is_starting:
                return False
            if self._sender is None:
                self._is_starting = True
                try:
                    self._sender = Sender(self.node, self._incarnation, self._buffer, self._line, self.config)
                except RuntimeError:  # the system gives no more threads: the next event tries again
                    self._buffer.alarm = 1
                    return False
                finally:
                    self._is_starting = False
                close_with_worker(self)
        return True

    def after_fork(self) -> None:
        """In the child: nothing of the parent's sender is touched, and what the parent buffered is the parent's to
        send. The old objects are kept, since finalising them would close what both processes share."""
        _inherited.append((self._sender, self._transport, self._buffer, self._line))
        if self._spool is not None:
            self._spool.abandon()
        self._open(self._transport.fresh(), new_incarnation(), start=False)


_inherited: list[object] = []
