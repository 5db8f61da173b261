"""Faults of every family, each with the verdict it deserves.

A fault takes a fleet that behaves and one live entry of it, and yields the events that make it misbehave once; the
fleet's own state stays true, so that one fault is one fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..schemas.events import Create, Event, Expire, Hit, Invalidate, Lookups, Tier
from ..schemas.facts import Fact
from ..schemas.identity import Identity
from .fleet import Entry, Fleet, Node
from .population import digest


@dataclass(frozen=True, slots=True)
class Expected:
    """One line of the answer key: this event deserves a finding with this cause."""

    family: str
    cause: str
    subject: str
    differing: tuple[str, ...] = ()


class Injected(NamedTuple):
    """What a fault adds to the history, and its answer."""

    events: list[Event | Fact]
    expected: Expected


Fault = Callable[[Fleet], Injected | None]
RENDERED = frozenset({"template_digest", "tool_schema_digest", "corpus_digest"})


def _pick(fleet: Fleet, kind: str = "kv", tier: Tier = "gpu") -> tuple[Node, Entry] | None:
    """A live, committed entry of the current epoch and not asked for by an alias, so that one fault has one cause;
    the oldest third is left alone, since it may be evicted on the next step."""
    node = fleet.random.choice(fleet.nodes)
    held = list(fleet.shared.values()) if tier == "shared" else list(node.tier(tier).values())
    epoch = str(fleet.registry.epoch)
    live = [
        entry
        for entry in held[len(held) // 3 :]
        if entry.committed
        and entry.kind == kind
        and entry.identity.epoch == epoch
        and entry.identity.model_id not in fleet.registry.aliases
    ]
    return (node, fleet.random.choice(live)) if live else None


def _hit(fleet: Fleet, node: Node, entry: Entry, identity: Identity, **changed: object) -> Event:
    fields: dict[str, object] = {
        "reused_tokens": entry.tokens,
        "reported_tokens": entry.tokens,
        "bytes_read": entry.size,
        "payload_digest": entry.payload,
        "age_s": (fleet.now_us - entry.created_us) / 1e6,
    }
    return fleet.emit(node, entry, Hit(**{**fields, **changed}), identity, fleet.rid())  # type: ignore[arg-type] # a hit's own fields, by name


def _content(cause: str, dimension: str, kind: str = "kv", value: str | None = None) -> Fault:
    """The requester differs in one content dimension, and the entry is served all the same.

    What is rendered into the prompt changes its tokens too, so those differ with it.
    """

    def fault(fleet: Fleet) -> Injected | None:
        picked = _pick(fleet, kind)
        if picked is None:
            return None
        node, entry = picked
        changed = value if value is not None else digest("fault", dimension, fleet.requests)
        update = {dimension: changed}
        if dimension in RENDERED:
            tokens = digest("fault tokens", changed)
            update |= {"token_ids_digest": tokens, "prefix_digest": digest("prefix", tokens)}
        identity = entry.identity.model_copy(update=update)
        event = _hit(fleet, node, entry, identity)
        return Injected([event], Expected("identity", cause, event.id, (dimension,)))

    return fault


def _foreign_domain(fleet: Fleet) -> Injected | None:
    """A request from a private domain is served an entry of another domain."""
    picked = _pick(fleet, tier="shared") or _pick(fleet)
    if picked is None:
        return None
    node, entry = picked
    tenant = "tenant-intruder"
    identity = entry.identity.model_copy(
        update={"tenant_id": tenant, "principal": f"{tenant}-user", "isolation_domain": digest("domain", tenant)}
    )
    event = _hit(fleet, node, entry, identity)
    return Injected([event], Expected("isolation", "CROSS_TENANT_REUSE", event.id, ("tenant_id", "isolation_domain")))


def _asserted_key(fleet: Fleet) -> Injected | None:
    """An application's own key leaves out tenant and template: the incident."""
    node = fleet.random.choice(fleet.nodes)
    picked = _pick(fleet)
    if picked is None:
        return None
    creator = picked[1].identity
    key = f"support_v{fleet.requests}:chat-8b"
    entry = Entry(
        key=key, identity=creator, kind="kv", tier="nvme", created_us=fleet.now_us, tokens=512, size=4096,
        payload=fleet.payload(),
    )  # fmt: skip
    tokens = digest("other tokens", fleet.requests)
    requester = creator.model_copy(
        update={
            "tenant_id": "tenant-victim", "principal": "tenant-victim-user", "isolation_domain": None,
            "template_digest": digest("other template", fleet.requests),
            "token_ids_digest": tokens, "prefix_digest": digest("prefix", tokens),
        }
    )  # fmt: skip
    created = node.emitter.emit(
        Create(tokens=512, bytes=4096, payload_digest=entry.payload), fleet.now_us, store="app", tier="nvme", key=key,
        identity=creator, key_origin="asserted", request_id=fleet.rid(),
    )  # fmt: skip
    hit = node.emitter.emit(
        Hit(reused_tokens=512, bytes_read=4096, payload_digest=entry.payload), fleet.now_us + 1000, store="app",
        tier="nvme", key=key, identity=requester, key_origin="asserted", request_id=fleet.rid(),
    )  # fmt: skip
    differing = ("tenant_id", "template_digest", "token_ids_digest", "prefix_digest")
    return Injected([created, hit], Expected("isolation", "CROSS_TENANT_REUSE", hit.id, differing))


def _private_policy(fleet: Fleet) -> Injected | None:
    """Identical content of a tenant whose policy forbids sharing is served to another tenant."""
    private = [tenant for tenant in fleet.tenants if tenant.private and tenant.domain is None]
    if not private:
        return None
    node, owner = fleet.random.choice(fleet.nodes), fleet.random.choice(private)
    key = digest("policy fault", fleet.requests)
    tokens = digest("tokens", key)
    creator = Identity(
        tenant_id=owner.name, weights_digest=digest("weights", 0), template_digest=digest("template", 0),
        token_ids_digest=tokens,
    )  # fmt: skip
    requester = creator.model_copy(update={"tenant_id": "tenant-neighbour"})
    created = node.emitter.emit(
        Create(tokens=128), fleet.now_us, store="pool", tier="nvme", key=key, identity=creator, request_id=fleet.rid()
    )
    hit = node.emitter.emit(
        Hit(reused_tokens=128), fleet.now_us + 1000, store="pool", tier="nvme", key=key, identity=requester,
        request_id=fleet.rid(),
    )  # fmt: skip
    return Injected([created, hit], Expected("policy", "CROSS_TENANT_REUSE", hit.id, ("tenant_id",)))


def _fuzzy(cause: str, update: dict[str, str], dimension: str) -> Fault:
    """A semantic match crosses a scope."""

    def fault(fleet: Fleet) -> Injected | None:
        node = fleet.random.choice(fleet.nodes)
        key = digest("semantic", fleet.requests)
        creator = Identity(
            tenant_id="tenant-semantic", principal="user-1", weights_digest=digest("weights", 0),
            token_ids_digest=digest("question", key),
        )  # fmt: skip
        requester = creator.model_copy(update={"token_ids_digest": digest("another", key), **update})
        created = node.emitter.emit(
            Create(tokens=64, finish="stop"), fleet.now_us, store="answers", tier="nvme", key=key, identity=creator,
            kind="response", request_id=fleet.rid(),
        )  # fmt: skip
        hit = node.emitter.emit(
            Hit(reused_tokens=64, match_mode="semantic", similarity=0.93), fleet.now_us + 1000, store="answers",
            tier="nvme", key=key, identity=requester, kind="response", request_id=fleet.rid(),
        )  # fmt: skip
        return Injected([created, hit], Expected("isolation", cause, hit.id, (dimension,)))

    return fault


def _after_end(cause: str, body: Expire | Invalidate) -> Fault:
    """The entry ended, and is served again."""

    def fault(fleet: Fleet) -> Injected | None:
        picked = _pick(fleet, tier="nvme")
        if picked is None:
            return None
        node, entry = picked
        ended = fleet.end(node, entry, body)
        fleet.now_us += 30_000_000
        hit = _hit(fleet, node, entry, entry.identity)
        return Injected([ended, hit], Expected("life cycle", cause, hit.id))

    return fault


def _never_readable(cause: str, reason: str | None) -> Fault:
    """A pending entry is served: still pending, aborted, or its write failed."""

    def fault(fleet: Fleet) -> Injected | None:
        picked = _pick(fleet)
        if picked is None:
            return None
        node, like = picked
        entry = Entry(
            key=digest("pending", fleet.requests), identity=like.identity, kind="kv", tier="nvme",
            created_us=fleet.now_us, tokens=like.tokens, size=like.size, payload=fleet.payload(), committed=False,
        )  # fmt: skip
        events: list[Event | Fact] = [
            fleet.emit(node, entry, Create(tokens=entry.tokens, state="pending"), entry.identity, fleet.rid())
        ]
        if reason is not None:
            events.append(fleet.emit(node, entry, Expire(reason="failed" if reason == "failed" else "aborted")))
        fleet.now_us += 10_000_000
        hit = _hit(fleet, node, entry, entry.identity, payload_digest=None)
        return Injected([*events, hit], Expected("life cycle", cause, hit.id))

    return fault


def _payload(fleet: Fleet) -> Injected | None:
    """The bytes read are not the bytes written."""
    picked = _pick(fleet, tier="nvme")
    if picked is None:
        return None
    hit = _hit(fleet, picked[0], picked[1], picked[1].identity, payload_digest=digest("torn", fleet.requests))
    return Injected([hit], Expected("storage", "PAYLOAD_MISMATCH", hit.id))


def _short_read(fleet: Fleet) -> Injected | None:
    """Fewer bytes were loaded than the entry has."""
    picked = _pick(fleet, tier="nvme")
    if picked is None:
        return None
    entry = picked[1]
    hit = _hit(fleet, picked[0], entry, entry.identity, bytes_read=entry.size // 2, payload_digest=None)
    return Injected([hit], Expected("storage", "PAYLOAD_MISMATCH", hit.id))


def _stale_handle(fleet: Fleet) -> Injected | None:
    """A reader uses a place after it was given to another entry."""
    node, key = fleet.random.choice(fleet.nodes), digest("handle", fleet.requests)
    picked = _pick(fleet)
    if picked is None:
        return None
    identity, place = picked[1].identity, f"handle-{fleet.requests}"
    old = Entry(
        key=key, identity=identity, kind="kv", tier="gpu", created_us=fleet.now_us, tokens=64, size=4096,
        payload=fleet.payload(), place=place, generation=1,
    )  # fmt: skip
    new = Entry(
        key=digest("next", key), identity=identity, kind="kv", tier="gpu", created_us=fleet.now_us, tokens=64,
        size=4096, payload=fleet.payload(), place=place, generation=2,
    )  # fmt: skip
    events: list[Event | Fact] = [
        fleet.emit(node, old, Create(tokens=64, bytes=4096), identity, fleet.rid()),
        fleet.emit(node, old, Expire(reason="lease")),
        fleet.emit(node, new, Create(tokens=64, bytes=4096), identity, fleet.rid()),
    ]
    fleet.now_us += 30_000_000
    hit = _hit(fleet, node, old, identity, payload_digest=None)
    return Injected([*events, hit], Expected("storage", "STALE_HANDLE", hit.id))


def _too_old(fleet: Fleet) -> Injected | None:
    """An entry is served beyond its declared maximum age."""
    picked = _pick(fleet)
    if picked is None:
        return None
    node, like = picked
    entry = Entry(
        key=digest("old", fleet.requests), identity=like.identity, kind="response", tier="nvme",
        created_us=fleet.now_us, tokens=64, size=4096, payload=fleet.payload(), max_age_s=60.0,
    )  # fmt: skip
    created = fleet.emit(
        node, entry, Create(tokens=64, bytes=4096, max_age_s=60.0, finish="stop"), entry.identity, fleet.rid()
    )
    fleet.now_us += 120_000_000
    hit = _hit(fleet, node, entry, entry.identity, payload_digest=None)
    return Injected([created, hit], Expected("freshness", "AGE_EXCEEDED", hit.id))


def _unfinished(fleet: Fleet) -> Injected | None:
    """An answer whose generation broke off is stored as finished."""
    picked = _pick(fleet)
    if picked is None:
        return None
    node, like = picked
    entry = Entry(
        key=digest("unfinished", fleet.requests), identity=like.identity, kind="response", tier="nvme",
        created_us=fleet.now_us, tokens=64, size=4096, payload=fleet.payload(),
    )  # fmt: skip
    created = fleet.emit(node, entry, Create(tokens=64, bytes=4096, finish=""), entry.identity, fleet.rid())
    return Injected([created], Expected("freshness", "INCOMPLETE_ENTRY", created.id))


def _unreported(fleet: Fleet) -> Injected | None:
    """Fewer tokens were computed than the prompt has, and no reuse was reported."""
    picked = _pick(fleet)
    if picked is None:
        return None
    node, like = picked
    entry = Entry(
        key=digest("unreported", fleet.requests), identity=like.identity, kind="kv", tier="nvme",
        created_us=fleet.now_us, tokens=900, size=4096, payload=fleet.payload(),
    )  # fmt: skip
    body = Create(tokens=900, computed_tokens=640, reported_tokens=0, bytes=4096)
    created = fleet.emit(node, entry, body, entry.identity, fleet.rid())
    return Injected([created], Expected("accounting", "UNREPORTED_REUSE", created.id))


def _refused(fleet: Fleet) -> Injected | None:
    """A reset was acknowledged upstairs and refused by the node."""
    node, operation = fleet.random.choice(fleet.nodes), f"refused-{fleet.rid()}"
    event = node.emitter.emit(
        Invalidate(scope="node", outcome="refused", cause="reset", op_id=operation), fleet.now_us,
        store="pool", tier="gpu",
    )  # fmt: skip
    return Injected([event], Expected("life cycle", "INVALIDATE_FAILED", f"operation:{operation}"))


def _stale_epoch(fleet: Fleet) -> Injected | None:
    """After a bump, an entry of an earlier epoch is still served."""
    if fleet.registry.epoch < 2:
        return None
    node = fleet.random.choice(fleet.nodes)
    old = [
        entry
        for entry in node.nvme.values()
        if entry.kind == "kv" and entry.identity.epoch and int(entry.identity.epoch) < fleet.registry.epoch
    ]
    if not old:
        return None
    entry = fleet.random.choice(old)
    identity = entry.identity.model_copy(update={"epoch": str(fleet.registry.epoch)})
    hit = _hit(fleet, node, entry, identity)
    return Injected([hit], Expected("life cycle", "STALE_EPOCH", hit.id))


def _unknown(fleet: Fleet) -> Injected | None:
    """A hit on something that never was, in memory: its history is complete since the node started."""
    picked = _pick(fleet)
    if picked is None or picked[0].emitter.node in fleet.incomplete:
        return None
    node, like = picked
    entry = Entry(
        key=digest("never created", fleet.requests), identity=like.identity, kind="kv", tier="gpu",
        created_us=fleet.now_us, tokens=64, size=4096, payload=fleet.payload(),
    )  # fmt: skip
    hit = _hit(fleet, node, entry, entry.identity, payload_digest=None)
    return Injected([hit], Expected("stream", "HIT_UNKNOWN_ENTRY", hit.id))


def _gap(fleet: Fleet) -> Injected | None:
    """A lane skips numbers: events were lost before they reached the log."""
    node = fleet.random.choice(fleet.nodes)
    home = f"n:{node.emitter.node}"
    if not node.emitter.sequences.get(home):
        return None
    fleet.incomplete.add(node.emitter.node)
    node.emitter.sequences[home] += fleet.random.randint(1, 5)
    event = node.emitter.emit(Lookups(), fleet.now_us, store="pool", tier="gpu")
    lane = f"lane:{node.emitter.node}/{node.emitter.incarnation}/{home}"
    return Injected([event], Expected("stream", "STREAM_GAP", lane))


FAULTS: dict[str, Fault] = {
    "weights": _content("WEIGHTS_MISMATCH", "weights_digest"),
    "adapter": _content("ADAPTER_MISMATCH", "adapter_digest"),
    "adapter scale": _content("ADAPTER_MISMATCH", "adapter_scale", value="0.4"),
    "kv dtype": _content("KV_FORMAT_MISMATCH", "kv_dtype", value="fp8"),
    "kv layout": _content("KV_FORMAT_MISMATCH", "kv_layout", value="blocked"),
    "kv geometry": _content("KV_FORMAT_MISMATCH", "kv_geometry", value="tp4"),
    "kv scales": _content("KV_FORMAT_MISMATCH", "quant_scale_digest"),
    "tokenizer": _content("TOKENIZER_MISMATCH", "tokenizer_id", value="another"),
    "template": _content("TEMPLATE_MISMATCH", "template_digest"),
    "tools": _content("TOOLS_MISMATCH", "tool_schema_digest"),
    "corpus": _content("CORPUS_MISMATCH", "corpus_digest"),
    "media": _content("MM_MISMATCH", "media_digest"),
    "tokens": _content("KEY_COLLISION", "token_ids_digest"),
    "prefix": _content("KEY_COLLISION", "prefix_digest"),
    "parameters": _content("PARAMS_MISMATCH", "request_params_digest", kind="response"),
    "guardrail": _content("GUARDRAIL_MISMATCH", "guardrail_digest", kind="response"),
    "authorization": _content("AUTHZ_MISMATCH", "authz_revision", kind="response", value="2"),
    "foreign domain": _foreign_domain,
    "asserted key": _asserted_key,
    "private policy": _private_policy,
    "semantic tenant": _fuzzy("CROSS_TENANT_REUSE", {"tenant_id": "tenant-other"}, "tenant_id"),
    "semantic principal": _fuzzy("PRINCIPAL_SCOPE_REUSE", {"principal": "user-2"}, "principal"),
    "after ttl": _after_end("HIT_AFTER_EXPIRE", Expire(reason="ttl")),
    "after eviction": _after_end("HIT_AFTER_EXPIRE", Expire(reason="capacity")),
    "after invalidation": _after_end("HIT_AFTER_INVALIDATE", Invalidate(scope="entry", cause="withdrawn")),
    "pending": _never_readable("HIT_UNCOMMITTED", None),
    "aborted": _never_readable("HIT_UNCOMMITTED", "aborted"),
    "failed write": _never_readable("HIT_FAILED_ENTRY", "failed"),
    "payload": _payload,
    "short read": _short_read,
    "stale handle": _stale_handle,
    "too old": _too_old,
    "unfinished": _unfinished,
    "unreported reuse": _unreported,
    "refused reset": _refused,
    "stale epoch": _stale_epoch,
    "unknown entry": _unknown,
    "lost events": _gap,
}
"""Every fault by name. A fault returns None where the fleet has nothing it could befall just then."""
