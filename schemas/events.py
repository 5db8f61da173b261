"""Events: what happened to an entry, as one header (`Event`) and one body per type.

Times are microseconds since the Unix epoch on the producer's clock. Order comes from `seq` inside a lane, never
from time.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from .digests import DIGEST_PATTERN
from .dimensions import EntryKind, MatchMode
from .identity import Identity

Tier = Literal["gpu", "host", "nvme", "shared"]
KeyOrigin = Literal["derived", "asserted", "client"]
NODE_TIERS: frozenset[str] = frozenset({"gpu", "host", "nvme"})
MEMORY_TIERS: frozenset[str] = frozenset({"gpu", "host"})

# Every number fits 64 bits: what does not is refused where it is decoded, with its field, not where it is stored.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Micros = Annotated[int, Meta(ge=-(2**61), le=2**61)]
Seconds = Annotated[float, Meta(ge=0)]
# No field has room for a prompt or a list of tokens.
LONGEST_TEXT = 1024
LONGEST_LIST = 1024
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Part = Annotated[str, Meta(max_length=128)]
Parts = Annotated[tuple[Part, ...], Meta(max_length=LONGEST_LIST)]
DigestText = Annotated[str, Meta(pattern=DIGEST_PATTERN)]


class _Body(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A field that is not known here sends a record the slow way (`imperfect`), where one of a newer producer is passed
    over and one with room for a prompt is refused."""


class Create(_Body, tag="create", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """An entry exists from now on.

    `tokens`: tokens the entry covers. `computed_tokens`: tokens computed for it; `reported_tokens`: reuse as
    reported to the client. `rederived_key`: the key the store's own key function gives for this identity, where it
    is known. `state` pending: not readable before its `commit`. `weights_version`: ordinal of the weights.
    """

    tokens: Count = 0
    computed_tokens: Count | None = None
    reported_tokens: Count | None = None
    bytes: Count | None = None
    payload_digest: DigestText | None = None
    rederived_key: Text | None = None
    parts: Parts = ()
    finish: Text | None = None
    ttl_s: Seconds | None = None
    max_age_s: Seconds | None = None
    lease_s: Seconds | None = None
    state: Literal["pending", "committed"] = "committed"
    weights_version: Number | None = None


class Hit(_Body, tag="hit", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """An entry was served to a requester, whose identity the event carries.

    `reused_tokens`: tokens taken from the entry; `reported_tokens`: reuse as reported to the client; `tokens_read`,
    `bytes_read`, `payload_digest`: as read from the store. `age_s`: the entry's age by the reader's clock.
    """

    reused_tokens: Count = 0
    reported_tokens: Count | None = None
    tokens_read: Count | None = None
    bytes_read: Count | None = None
    payload_digest: DigestText | None = None
    age_s: Seconds | None = None
    match_mode: MatchMode = "exact"
    similarity: float | None = None
    parts_required: Parts = ()
    outcome: Text = "ok"
    weights_version: Number | None = None


class Expire(_Body, tag="expire", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The store ended an entry by itself. `aborted`, `failed`: it never became readable, or its write failed."""

    reason: Literal["ttl", "capacity", "lease", "aborted", "failed", "demoted", "restart"]


class Invalidate(_Body, tag="invalidate", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Somebody ended entries. Scope `entry` names one key; `node` and `store` cover every entry there that agrees
    with `where` (dimension -> value; empty: all). One operation over several homes carries one `op_id`."""

    scope: Literal["entry", "node", "store"] = "entry"
    where: Annotated[dict[Text, Text], Meta(max_length=64)] = {}
    cause: Text = ""
    op_id: Text = ""
    outcome: Literal["done", "refused", "partial"] = "done"


class Commit(_Body, tag="commit", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """A pending entry became readable."""

    bytes: Count | None = None
    payload_digest: DigestText | None = None


class NodeStart(_Body, tag="node_start", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """A node's process started. `surviving_tiers`: what outlived the last one; memory tiers never do."""

    surviving_tiers: Annotated[tuple[Part, ...], Meta(max_length=16)] = ()
    version: Text = ""


class LookupCount(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """Lookups since the last report, for one tenant, template, model and tier."""

    tenant_id: Text
    template_id: Text = ""
    model_id: Text = ""
    tier: Text = ""
    hit: Count = 0
    partial: Count = 0
    miss: Count = 0
    bypassed: Count = 0


class Lookups(_Body, tag="lookups", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What a hit rate needs: misses too, counted, since one event each would drown the log."""

    counts: Annotated[tuple[LookupCount, ...], Meta(max_length=4096)] = ()


class Check(_Body, tag="check", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The result of an active check on one entry or request. `expected` and `observed` are tenants for a canary
    (whose marker should be there, whose is), digests or numbers as text otherwise; never content. `reused_tokens`:
    tokens that the cache gave; `first_divergence`: index of the first token that differs."""

    check: Literal["canary", "spot_check", "bypass_diff", "isolation_probe", "heartbeat"]
    result: Literal["pass", "fail", "inconclusive"]
    expected: Text = ""
    observed: Text = ""
    detail: Text = ""
    reused_tokens: Count | None = None
    first_divergence: Count | None = None


class Resolve(_Body, tag="resolve", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The identity (in the header) of an earlier event that carried only a request id."""

    event_id: Text


class RequestEnd(_Body, tag="request_end", frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """A request is over: judgements about its parts can be closed."""

    parts_required: Parts = ()


Body = Create | Hit | Expire | Invalidate | Commit | NodeStart | Lookups | Check | Resolve | RequestEnd
BODIES: tuple[type[Struct], ...] = (
    Create,
    Hit,
    Expire,
    Invalidate,
    Commit,
    NodeStart,
    Lookups,
    Check,
    Resolve,
    RequestEnd,
)
EVENT_TYPES: tuple[str, ...] = tuple(str(body.__struct_config__.tag) for body in BODIES)


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """One event, its envelope's tables resolved.

    `store`, `tier`, `rank`, `copy`, `key` and, for node-local tiers, the owner in `home` are the *address*;
    `place` with `generation` is the optional physical slot behind it. `identity` is None where the source knows
    only a request id.
    """

    node: str
    incarnation: str
    home: str
    seq: int
    time_us: int
    body: Body
    store: str = ""
    tier: Tier = "gpu"
    rank: int = 0
    copy: str = ""
    key: str = ""
    key_origin: KeyOrigin = "derived"
    kind: EntryKind = "kv"
    part: str = ""
    span: str = ""
    entry_version: str = ""
    place: str = ""
    generation: int | None = None
    request_id: str = ""
    trace_id: str = ""
    identity: Identity | None = None

    @property
    def type(self) -> str:
        """The event's type, as on the wire: `create`, `hit`, ..."""
        return str(self.body.__struct_config__.tag)

    @property
    def id(self) -> str:
        """`node/incarnation/home/seq`: delivering it twice changes nothing."""
        return f"{self.node}/{self.incarnation}/{self.home}/{self.seq}"

    @property
    def owner(self) -> str:
        """The node that owns a node-local address, empty for shared tiers."""
        return self.home[2:] if self.home.startswith("n:") else ""
