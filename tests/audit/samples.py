"""The incident as events and findings, built from the schemas: two tenants, one template name, one key."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from kvtrail.audit.history import party_of
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.events import Body, Create, Event, Hit
from kvtrail.schemas.findings import Difference, Finding, cause_id, finding_id
from kvtrail.schemas.identity import DIMENSIONS, Identity, titles

KEY = "9f3c1a" + hashlib.sha256(b"support_v7:m1").hexdigest()[6:]
STORE = "nvme-cache"
DAY = "2026-11-29"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def at(clock: str, day: str = DAY) -> int:
    return int(datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC).timestamp() * 1_000_000)


def identity(tenant: str, template: str = "", **more: str) -> Identity:
    """A tenant's identity under support_v7; `template` is its wording."""
    template = template or f"{tenant}'s refund policy"
    values = {
        "model_id": "smollm2-135m-instruct",
        "weights_digest": digest("weights"),
        "kv_dtype": "float32",
        "tokenizer_id": "smollm2",
        "template_id": "support_v7",
        "template_digest": digest(template),
        "tool_schema_digest": "",
        "token_ids_digest": digest(template + " tokens"),
        **more,
    }
    return Identity(tenant_id=tenant, **values)


def event(seq: int, clock: str, body: Body, who: Identity | None, **more: Any) -> Event:
    values: dict[str, Any] = {
        "node": "n1",
        "incarnation": "i1",
        "home": "n:n1",
        "store": STORE,
        "tier": "nvme",
        "key": KEY,
        "key_origin": "asserted",
        "request_id": f"req-{seq}",
        **more,
    }
    return Event(seq=seq, time_us=at(clock), body=body, identity=who, **values)


def finding(
    create: Event, hit: Event, *, cause: str = "CROSS_TENANT_REUSE", dimension: str = "tenant_id", **more: Any
) -> Finding:
    """What the detectors say about `hit` on `create`'s entry."""
    made, asked = party_of(create), party_of(hit)
    differing = tuple(
        Difference(dimension=name, created=made.identity[name], requested=asked.identity[name])
        for name in DIMENSIONS
        if name in made.identity and name in asked.identity and made.identity[name] != asked.identity[name]
    )
    first, names = [dimension] if dimension else [], [one.dimension for one in differing]
    values: dict[str, Any] = {
        "revision": 1,
        "status": "open",
        "rule": cause.lower().replace("_", "-"),
        "severity": Severity.CRITICAL if cause == "CROSS_TENANT_REUSE" else Severity.MEDIUM,
        "title": f"key does not cover {titles(first + [name for name in names if name not in first])}",
        "reused_tokens": hit.body.reused_tokens if isinstance(hit.body, Hit) else 0,
        **more,
    }
    return Finding(
        id=finding_id(hit.id), cause=cause, dimension=dimension, deployment="test",
        cause_id=cause_id("test", hit.store, cause, dimension), subject=hit.id, event_time_us=hit.time_us,
        store=hit.store, tier=hit.tier, home=hit.home, key=hit.key, key_origin=hit.key_origin, kind=hit.kind,
        creator=made, requester=asked, differing=differing, evidence=(create.id, hit.id), **values,
    )  # fmt: skip


NORTHWIND = identity("northwind")
CONTOSO = identity("contoso")
CREATE = event(1, "12:04:01", Create(tokens=8992, ttl_s=300), NORTHWIND)
OWN_HIT = event(2, "12:04:44", Hit(reused_tokens=8992), NORTHWIND)
WRONG_HIT = event(3, "14:20:09", Hit(reused_tokens=8992), CONTOSO)
INCIDENT = [CREATE, OWN_HIT, WRONG_HIT]
FINDING = finding(CREATE, WRONG_HIT)


def renamed(original: Event, **changes: Any) -> Event:
    return msgspec.structs.replace(original, **changes)
