"""The calls: one for each thing that can happen to an entry.

Each builds one small struct and one tuple and hands them to the buffer; fields that few events carry have defaults, so
that a call names only what it knows.
"""

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar

from ..schemas.dimensions import EntryKind, MatchMode
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
from .buffer import NOTHING, PLAIN, Buffer, Item
from .placing import refuse_bytes, turn_down
from .short_calls import short_create, short_hit

if TYPE_CHECKING:
    from .buffer import How, More

P = ParamSpec("P")
T = TypeVar("T", "How", "More")


def _never_raises(
    method: Callable[Concatenate["LifecycleCalls", P], None],
) -> Callable[Concatenate["LifecycleCalls", P], None]:
    """A call that cannot be carried out is counted; the engine never sees an exception of ours."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: "LifecycleCalls", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            refuse_bytes(kwargs)
            method(self, *args, **kwargs)
        except Exception as error:
            turn_down(self._buffer, name, error)

    return call


def _usual(values: T, usual: T) -> T:
    """These values, as the object that most calls share where they are the same."""
    return usual if values == usual else values


class LifecycleCalls:
    """What `LifecyclePublisher` can be told. None of it waits, raises or logs.

    Arguments that calls share: `key` is the store key, `identity` the creator's or requester's; `store` and `tier`
    say where; `owner` is the node that owns a node-local tier (default: this one), so that a hit on another node's
    place is ordered with that place's other events.
    """

    _buffer: Buffer
    _put: Callable[[Item], None]
    _clock: Callable[[], int]

    @short_create
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
                self._clock(), body, key, identity, store, tier, owner, request_id,
                _usual((rank, copy, key_origin, kind, part), PLAIN),
                _usual((span, entry_version, place, generation, trace_id), NOTHING),
            )
        )  # fmt: skip

    @short_hit
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
                self._clock(), body, key, identity, store, tier, owner, request_id,
                _usual((rank, copy, key_origin, kind, part), PLAIN),
                _usual((span, entry_version, place, generation, trace_id), NOTHING),
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
                self._clock(), Expire(reason=reason), key, identity, store, tier, owner, request_id,
                _usual((rank, copy, key_origin, kind, part), PLAIN),
                _usual(("", entry_version, place, generation, trace_id), NOTHING),
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
                self._clock(), body, key, identity, store, tier, owner, request_id,
                _usual((rank, copy, key_origin, kind, part), PLAIN),
                _usual(("", entry_version, place, generation, trace_id), NOTHING),
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
                request_id,
                _usual((rank, copy, key_origin, kind, part), PLAIN),
                _usual(("", entry_version, place, generation, trace_id), NOTHING),
            )
        )  # fmt: skip

    @_never_raises
    def node_start(self, surviving_tiers: Sequence[Tier] = (), *, version: str = "") -> None:
        """This node's process started and found these tiers as the last one left them. The first call to publish
        anything, or made with `surviving_tiers` instead: a later one is another restart."""
        body = NodeStart(surviving_tiers=tuple(surviving_tiers), version=version)
        self._put((self._clock(), body, "", None, "", "gpu", "", "", PLAIN, NOTHING))

    @_never_raises
    def lookups(self, counts: Sequence[LookupCount], *, store: str = "", tier: Tier = "gpu") -> None:
        """Lookups since the last report, by tenant, template, model and tier."""
        body = Lookups(counts=tuple(counts))
        self._put((self._clock(), body, "", None, store, tier, "", "", PLAIN, NOTHING))

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
        reused_tokens: int | None = None,
        first_divergence: int | None = None,
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
        body = Check(
            check=check, result=result, expected=expected, observed=observed, detail=detail,
            reused_tokens=reused_tokens, first_divergence=first_divergence,
        )  # fmt: skip
        self._put(
            (
                self._clock(), body, key, identity, store, tier, owner, request_id,
                _usual((rank, copy, key_origin, kind, part), PLAIN),
                _usual(("", "", place, generation, trace_id), NOTHING),
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
                self._clock(), body, key, identity, store, tier, owner, request_id,
                PLAIN, _usual(("", "", "", None, trace_id), NOTHING),
            )
        )  # fmt: skip
