"""`LifecyclePublisher`: what an engine calls when something happens to an entry.

Every call is synchronous, may come from any thread, and costs a few microseconds whatever the broker does: it appends
one tuple to a bounded buffer. It never waits, never raises, never logs. A sender thread does everything else.
"""

import atexit
import functools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, Literal, ParamSpec, Self

from ..schemas.config import KafkaConfig, PublisherConfig
from ..schemas.dimensions import EntryKind, MatchMode
from ..schemas.errors import ConfigError
from ..schemas.events import (
    Check,
    Commit,
    Create,
    Expire,
    Hit,
    Invalidate,
    KeyOrigin,
    LookupCount,
    Lookups,
    NodeStart,
    RequestEnd,
    Tier,
)
from ..schemas.identity import Identity
from .buffer import Buffer, Item
from .lanes import homes_of
from .sender import Flush, Sender
from .stats import PublisherStats
from .transport import Transport

P = ParamSpec("P")

_live: set["LifecyclePublisher"] = set()


def _never_raises(
    method: Callable[Concatenate["LifecyclePublisher", P], None],
) -> Callable[Concatenate["LifecyclePublisher", P], None]:
    """A call that cannot be carried out is counted; the engine never sees an exception of ours."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: "LifecyclePublisher", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._buffer.refuse(f"{name}.{'arguments' if isinstance(error, TypeError) else 'key'}")

    return call


def new_incarnation() -> str:
    """A name for one process start: later ones sort behind earlier ones, no two are equal."""
    return f"{time.time_ns() // 1_000_000:011x}{secrets.token_hex(4)}"


class LifecyclePublisher:
    """Publishes one node's lifecycle events.

    `node` names the engine's process for as long as it owns its tiers: two processes that run at once need two
    names. `incarnation` is new for each start and is chosen here unless given. The first event of an incarnation is
    its `node_start`: given `surviving_tiers` it is published at once, else before the first event, saying that
    nothing survived, unless that first event is a `node_start` itself.

    Arguments that all calls share: `key` is the store key, `identity` the creator's or requester's; `store` and
    `tier` say where; `owner` is the node that owns a node-local tier (default: this one), so that a hit on another
    node's place is ordered with that place's other events. Times come from `clock_ns`.

    Raises `ConfigError` when it is made with an empty node; nothing raises afterwards.
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
        self.node = node
        self.config = config or PublisherConfig()
        self._clock = clock_ns
        self._closed = False
        self._open(transport, incarnation or new_incarnation())
        _live.add(self)
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
        """A publisher to `kvtrail.lifecycle` on a broker. Raises `ConfigError` for a compression that needs a package
        which is not installed."""
        from .kafka import KafkaTransport

        transport = KafkaTransport(kafka or KafkaConfig())
        return cls(node, transport, config, surviving_tiers=surviving_tiers, version=version)

    @property
    def incarnation(self) -> str:
        """This process start; another one in a forked child."""
        return self._incarnation

    @_never_raises
    def create(
        self,
        key: str,
        identity: Identity | None,
        *,
        store: str,
        tier: Tier,
        tokens: int = 0,
        ttl_s: float | None = None,
        request_id: str = "",
        owner: str = "",
        key_origin: KeyOrigin = "derived",
        kind: EntryKind = "kv",
        rank: int = 0,
        copy: str = "",
        part: str = "",
        span: str = "",
        entry_version: str = "",
        place: str = "",
        generation: int | None = None,
        trace_id: str = "",
        computed_tokens: int | None = None,
        reported_tokens: int | None = None,
        bytes: int | None = None,
        payload_digest: str | None = None,
        rederived_key: str | None = None,
        parts: Sequence[str] = (),
        finish: str | None = None,
        max_age_s: float | None = None,
        lease_s: float | None = None,
        state: Literal["pending", "committed"] = "committed",
        weights_version: int | None = None,
    ) -> None:
        """An entry exists from now on; `state` pending: not readable before its `commit`. Fields: `events.Create`."""
        body = Create(
            tokens=tokens, computed_tokens=computed_tokens, reported_tokens=reported_tokens, bytes=bytes,
            payload_digest=payload_digest, rederived_key=rederived_key, parts=tuple(parts), finish=finish,
            ttl_s=ttl_s, max_age_s=max_age_s, lease_s=lease_s, state=state, weights_version=weights_version,
        )  # fmt: skip
        self._put(
            (
                self._clock(), body, key, identity, store, tier, owner, rank, copy, key_origin, kind, part, span,
                entry_version, place, generation, request_id, trace_id,
            )
        )  # fmt: skip

    @_never_raises
    def hit(
        self,
        key: str,
        identity: Identity | None,
        *,
        store: str,
        tier: Tier,
        reused_tokens: int = 0,
        request_id: str = "",
        owner: str = "",
        key_origin: KeyOrigin = "derived",
        kind: EntryKind = "kv",
        rank: int = 0,
        copy: str = "",
        part: str = "",
        span: str = "",
        entry_version: str = "",
        place: str = "",
        generation: int | None = None,
        trace_id: str = "",
        reported_tokens: int | None = None,
        tokens_read: int | None = None,
        bytes_read: int | None = None,
        payload_digest: str | None = None,
        age_s: float | None = None,
        match_mode: MatchMode = "exact",
        similarity: float | None = None,
        parts_required: Sequence[str] = (),
        outcome: str = "ok",
        weights_version: int | None = None,
    ) -> None:
        """An entry was served to a requester, whose identity this is. Fields: `events.Hit`."""
        body = Hit(
            reused_tokens=reused_tokens, reported_tokens=reported_tokens, tokens_read=tokens_read,
            bytes_read=bytes_read, payload_digest=payload_digest, age_s=age_s, match_mode=match_mode,
            similarity=similarity, parts_required=tuple(parts_required), outcome=outcome,
            weights_version=weights_version,
        )  # fmt: skip
        self._put(
            (
                self._clock(), body, key, identity, store, tier, owner, rank, copy, key_origin, kind, part, span,
                entry_version, place, generation, request_id, trace_id,
            )
        )  # fmt: skip

    @_never_raises
    def expire(
        self,
        key: str,
        reason: Literal["ttl", "capacity", "lease", "aborted", "failed", "demoted", "restart"],
        *,
        store: str,
        tier: Tier,
        identity: Identity | None = None,
        request_id: str = "",
        owner: str = "",
        key_origin: KeyOrigin = "derived",
        kind: EntryKind = "kv",
        rank: int = 0,
        copy: str = "",
        part: str = "",
        entry_version: str = "",
        place: str = "",
        generation: int | None = None,
        trace_id: str = "",
    ) -> None:
        """The store ended an entry by itself."""
        self._put(
            (
                self._clock(), Expire(reason=reason), key, identity, store, tier, owner, rank, copy, key_origin, kind,
                part, "", entry_version, place, generation, request_id, trace_id,
            )
        )  # fmt: skip

    @_never_raises
    def invalidate(
        self,
        key: str = "",
        *,
        store: str,
        tier: Tier,
        scope: Literal["entry", "node", "store"] = "entry",
        where: Mapping[str, str] | None = None,
        cause: str = "",
        op_id: str = "",
        outcome: Literal["done", "refused", "partial"] = "done",
        identity: Identity | None = None,
        request_id: str = "",
        owner: str = "",
        key_origin: KeyOrigin = "derived",
        kind: EntryKind = "kv",
        rank: int = 0,
        copy: str = "",
        part: str = "",
        entry_version: str = "",
        place: str = "",
        generation: int | None = None,
        trace_id: str = "",
    ) -> None:
        """Somebody ended entries: one key, or (`scope` node, store) all that agree with `where`.

        Over a whole shared store the event goes to each of its homes, with one `op_id`, and counts as one operation.
        """
        if not op_id and scope != "entry":
            op_id = secrets.token_hex(8)
        body = Invalidate(scope=scope, where=dict(where or {}), cause=cause, op_id=op_id, outcome=outcome)
        self._put(
            (
                self._clock(), body, key, identity, store, tier, owner, rank, copy, key_origin, kind, part, "",
                entry_version, place, generation, request_id, trace_id,
            )
        )  # fmt: skip

    @_never_raises
    def commit(
        self,
        key: str,
        *,
        store: str,
        tier: Tier,
        bytes: int | None = None,
        payload_digest: str | None = None,
        identity: Identity | None = None,
        request_id: str = "",
        owner: str = "",
        key_origin: KeyOrigin = "derived",
        kind: EntryKind = "kv",
        rank: int = 0,
        copy: str = "",
        part: str = "",
        entry_version: str = "",
        place: str = "",
        generation: int | None = None,
        trace_id: str = "",
    ) -> None:
        """A pending entry became readable."""
        self._put(
            (
                self._clock(), Commit(bytes=bytes, payload_digest=payload_digest), key, identity, store, tier, owner,
                rank, copy, key_origin, kind, part, "", entry_version, place, generation, request_id, trace_id,
            )
        )  # fmt: skip

    @_never_raises
    def node_start(self, surviving_tiers: Sequence[Tier] = (), *, version: str = "") -> None:
        """This node's process started and found these tiers as the last one left them. The first call to publish
        anything, or made with `surviving_tiers` instead: a later one is another restart."""
        body = NodeStart(surviving_tiers=tuple(surviving_tiers), version=version)
        self._put((self._clock(), body, "", None, "", "gpu", "", 0, "", "derived", "kv", *_NOTHING))

    @_never_raises
    def lookups(self, counts: Sequence[LookupCount], *, store: str = "", tier: Tier = "gpu") -> None:
        """Lookups since the last report, by tenant, template, model and tier."""
        body = Lookups(counts=tuple(counts))
        self._put((self._clock(), body, "", None, store, tier, "", 0, "", "derived", "kv", *_NOTHING))

    @_never_raises
    def check(
        self,
        key: str,
        *,
        check: Literal["canary", "spot_check", "bypass_diff", "isolation_probe", "heartbeat"],
        result: Literal["pass", "fail", "inconclusive"],
        store: str,
        tier: Tier,
        expected: str = "",
        observed: str = "",
        detail: str = "",
        identity: Identity | None = None,
        request_id: str = "",
        owner: str = "",
        key_origin: KeyOrigin = "derived",
        kind: EntryKind = "kv",
        rank: int = 0,
        copy: str = "",
        part: str = "",
        place: str = "",
        generation: int | None = None,
        trace_id: str = "",
    ) -> None:
        """The result of an active check on one entry or request; `expected` and `observed` are never content."""
        body = Check(check=check, result=result, expected=expected, observed=observed, detail=detail)
        self._put(
            (
                self._clock(), body, key, identity, store, tier, owner, rank, copy, key_origin, kind, part, "", "",
                place, generation, request_id, trace_id,
            )
        )  # fmt: skip

    @_never_raises
    def request_end(
        self,
        request_id: str,
        *,
        key: str = "",
        store: str = "",
        tier: Tier = "gpu",
        parts_required: Sequence[str] = (),
        identity: Identity | None = None,
        owner: str = "",
        trace_id: str = "",
    ) -> None:
        """A request is over: judgements about its parts can be closed. `key`, `store` and `tier` name the home of
        its parts where that is not this node's own."""
        body = RequestEnd(parts_required=tuple(parts_required))
        self._put(
            (
                self._clock(), body, key, identity, store, tier, owner, 0, "", "derived", "kv", "", "", "", "", None,
                request_id, trace_id,
            )
        )  # fmt: skip

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
            _live.discard(self)
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
            dropped=dropped,
            refused=refused,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open(self, transport: Transport, incarnation: str, *, start: bool = True) -> None:
        """Begin an incarnation: an empty buffer and, now or at the first event, its sender."""
        self._transport = transport
        self._incarnation = incarnation
        self._buffer = Buffer(self.config.max_events, self._homes, self._ring)
        self._put: Callable[[Item], None] = self._buffer.put
        self._drained = True
        self._sender: Sender | None = None
        self._starting = threading.Lock()
        if start:
            self._sender = Sender(self.node, incarnation, self._buffer, transport, self.config)
            _close_with_worker(self)
        else:
            self._buffer.alarm = 1

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
            if self._sender is None:
                try:
                    self._sender = Sender(self.node, self._incarnation, self._buffer, self._transport, self.config)
                except RuntimeError:  # the system gives no more threads: the next event tries again
                    self._buffer.alarm = 1
                    return False
                _close_with_worker(self)
        return True

    def _after_fork(self) -> None:
        """In the child: nothing of the parent's sender is touched, and what the parent buffered is the parent's to
        send. The old objects are kept, since finalising them would close what both processes share."""
        _inherited.append((self._sender, self._transport, self._buffer))
        self._open(self._transport.fresh(), new_incarnation(), start=False)


_NOTHING: tuple[str, str, str, str, None, str, str] = ("", "", "", "", None, "", "")
"""Part, span, entry version, place, generation, request id and trace id of an event that has none."""

_inherited: list[object] = []


def _close_all() -> None:
    for publisher in list(_live):
        publisher.close()


def _close_with_worker(publisher: LifecyclePublisher) -> None:
    """A worker of multiprocessing ends without running atexit's handlers, only its own, which it forgets when it
    begins: so they are set when a worker begins to publish, and again when one that has a publisher begins."""
    if "multiprocessing.process" in sys.modules:
        from multiprocessing.process import parent_process
        from multiprocessing.util import Finalize, register_after_fork

        if parent_process() is not None:
            Finalize(None, publisher.close, exitpriority=0)
        register_after_fork(publisher, lambda ours: Finalize(None, ours.close, exitpriority=0))


def _fork_all() -> None:
    for publisher in list(_live):
        publisher._after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_fork_all)
