"""Faults of the life cycle, of storage, freshness and the stream itself."""

from typing import Literal

from ..schemas.events import Create, Event, Expire, Invalidate, Lookups
from ..schemas.facts import Fact
from .fleet import Fleet
from .injection import Expected, Fault, Injected, hit_on, pick, planted
from .population import digest


def after_end(cause: str, body: Expire | Invalidate) -> Fault:
    """The entry ended, and is served again."""

    def fault(fleet: Fleet) -> Injected | None:
        picked = pick(fleet, tier="nvme")
        if picked is None:
            return None
        node, entry = picked
        ended = fleet.end(node, entry, body)
        fleet.now_us += 30_000_000
        hit = hit_on(fleet, node, entry, entry.identity)
        return Injected([ended, hit], Expected("life cycle", cause, hit.id))

    return fault


def never_readable(cause: str, reason: Literal["aborted", "failed"] | None) -> Fault:
    """A pending entry is served: still pending, aborted, or its write failed."""

    def fault(fleet: Fleet) -> Injected | None:
        picked = pick(fleet)
        if picked is None:
            return None
        node, like = picked
        entry = planted(
            fleet, digest("pending", fleet.requests), like.identity, tokens=like.tokens, size=like.size, committed=False
        )
        events: list[Event | Fact] = [
            fleet.emit(node, entry, Create(tokens=entry.tokens, state="pending"), entry.identity, fleet.rid())
        ]
        if reason is not None:
            events.append(fleet.emit(node, entry, Expire(reason=reason)))
        fleet.now_us += 10_000_000
        hit = hit_on(fleet, node, entry, entry.identity, payload_digest=None)
        return Injected([*events, hit], Expected("life cycle", cause, hit.id))

    return fault


def payload(fleet: Fleet) -> Injected | None:
    """The bytes read are not the bytes written."""
    picked = pick(fleet, tier="nvme")
    if picked is None:
        return None
    hit = hit_on(fleet, picked[0], picked[1], picked[1].identity, payload_digest=digest("torn", fleet.requests))
    return Injected([hit], Expected("storage", "PAYLOAD_MISMATCH", hit.id))


def short_read(fleet: Fleet) -> Injected | None:
    """Fewer bytes were loaded than the entry has."""
    picked = pick(fleet, tier="nvme")
    if picked is None:
        return None
    entry = picked[1]
    hit = hit_on(fleet, picked[0], entry, entry.identity, bytes_read=entry.size // 2, payload_digest=None)
    return Injected([hit], Expected("storage", "PAYLOAD_MISMATCH", hit.id))


def stale_handle(fleet: Fleet) -> Injected | None:
    """A reader uses a place after it was given to another entry."""
    node, key = fleet.random.choice(fleet.nodes), digest("handle", fleet.requests)
    picked = pick(fleet)
    if picked is None:
        return None
    identity, place = picked[1].identity, f"handle-{fleet.requests}"
    old = planted(fleet, key, identity, tier="gpu", place=place, generation=1)
    new = planted(fleet, digest("next", key), identity, tier="gpu", place=place, generation=2)
    events: list[Event | Fact] = [
        fleet.emit(node, old, Create(tokens=64, bytes=4096), identity, fleet.rid()),
        fleet.emit(node, old, Expire(reason="lease")),
        fleet.emit(node, new, Create(tokens=64, bytes=4096), identity, fleet.rid()),
    ]
    fleet.now_us += 30_000_000
    hit = hit_on(fleet, node, old, identity, payload_digest=None)
    return Injected([*events, hit], Expected("storage", "STALE_HANDLE", hit.id))


def too_old(fleet: Fleet) -> Injected | None:
    """An entry is served beyond its declared maximum age."""
    picked = pick(fleet)
    if picked is None:
        return None
    node, like = picked
    entry = planted(fleet, digest("old", fleet.requests), like.identity, kind="response", max_age_s=60.0)
    created = fleet.emit(
        node, entry, Create(tokens=64, bytes=4096, max_age_s=60.0, finish="stop"), entry.identity, fleet.rid()
    )
    fleet.now_us += 120_000_000
    hit = hit_on(fleet, node, entry, entry.identity, payload_digest=None)
    return Injected([created, hit], Expected("freshness", "AGE_EXCEEDED", hit.id))


def unfinished(fleet: Fleet) -> Injected | None:
    """An answer whose generation broke off is stored as finished."""
    picked = pick(fleet)
    if picked is None:
        return None
    node, like = picked
    entry = planted(fleet, digest("unfinished", fleet.requests), like.identity, kind="response")
    created = fleet.emit(node, entry, Create(tokens=64, bytes=4096, finish=""), entry.identity, fleet.rid())
    return Injected([created], Expected("freshness", "INCOMPLETE_ENTRY", created.id))


def unreported(fleet: Fleet) -> Injected | None:
    """Fewer tokens were computed than the prompt has, and no reuse was reported."""
    picked = pick(fleet)
    if picked is None:
        return None
    node, like = picked
    entry = planted(fleet, digest("unreported", fleet.requests), like.identity, tokens=900)
    body = Create(tokens=900, computed_tokens=640, reported_tokens=0, bytes=4096)
    created = fleet.emit(node, entry, body, entry.identity, fleet.rid())
    return Injected([created], Expected("accounting", "UNREPORTED_REUSE", created.id))


def refused(fleet: Fleet) -> Injected | None:
    """A reset was acknowledged upstairs and refused by the node."""
    node, operation = fleet.random.choice(fleet.nodes), f"refused-{fleet.rid()}"
    event = node.emitter.emit(
        Invalidate(scope="node", outcome="refused", cause="reset", op_id=operation), fleet.now_us,
        store="pool", tier="gpu",
    )  # fmt: skip
    return Injected([event], Expected("life cycle", "INVALIDATE_FAILED", f"operation:{operation}"))


def stale_epoch(fleet: Fleet) -> Injected | None:
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
    hit = hit_on(fleet, node, entry, identity)
    return Injected([hit], Expected("life cycle", "STALE_EPOCH", hit.id))


def unknown(fleet: Fleet) -> Injected | None:
    """A hit on something that never was, in memory: its history is complete since the node started."""
    picked = pick(fleet)
    if picked is None or picked[0].emitter.node in fleet.incomplete:
        return None
    node, like = picked
    entry = planted(fleet, digest("never created", fleet.requests), like.identity, tier="gpu")
    hit = hit_on(fleet, node, entry, entry.identity, payload_digest=None)
    return Injected([hit], Expected("stream", "HIT_UNKNOWN_ENTRY", hit.id))


def gap(fleet: Fleet) -> Injected | None:
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
