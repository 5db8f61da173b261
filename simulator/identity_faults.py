"""Faults of identity, isolation and policy: an entry reaches a request it does not belong to."""

from ..schemas.events import Create, Hit
from ..schemas.identity import Identity
from .fleet import Fleet
from .injection import Expected, Fault, Injected, hit_on, pick, planted
from .population import digest

RENDERED = frozenset({"template_digest", "tool_schema_digest", "corpus_digest"})


def content(cause: str, dimension: str, kind: str = "kv", value: str | None = None) -> Fault:
    """The requester differs in one content dimension, and the entry is served all the same.

    What is rendered into the prompt changes its tokens too, so those differ with it.
    """

    def fault(fleet: Fleet) -> Injected | None:
        picked = pick(fleet, kind)
        if picked is None:
            return None
        node, entry = picked
        changed = value if value is not None else digest("fault", dimension, fleet.requests)
        update = {dimension: changed}
        if dimension in RENDERED:
            tokens = digest("fault tokens", changed)
            update |= {"token_ids_digest": tokens, "prefix_digest": digest("prefix", tokens)}
        identity = entry.identity.model_copy(update=update)
        event = hit_on(fleet, node, entry, identity)
        return Injected([event], Expected("identity", cause, event.id, (dimension,)))

    return fault


def foreign_domain(fleet: Fleet) -> Injected | None:
    """A request from a private domain is served an entry of another domain."""
    picked = pick(fleet, tier="shared") or pick(fleet)
    if picked is None:
        return None
    node, entry = picked
    tenant = "tenant-intruder"
    identity = entry.identity.model_copy(
        update={"tenant_id": tenant, "principal": f"{tenant}-user", "isolation_domain": digest("domain", tenant)}
    )
    event = hit_on(fleet, node, entry, identity)
    return Injected([event], Expected("isolation", "CROSS_TENANT_REUSE", event.id, ("tenant_id", "isolation_domain")))


def asserted_key(fleet: Fleet) -> Injected | None:
    """An application's own key leaves out tenant and template: the incident."""
    node = fleet.random.choice(fleet.nodes)
    picked = pick(fleet)
    if picked is None:
        return None
    creator = picked[1].identity
    key = f"support_v{fleet.requests}:chat-8b"
    entry = planted(fleet, key, creator, tokens=512)
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


def private_policy(fleet: Fleet) -> Injected | None:
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


def fuzzy(cause: str, update: dict[str, str], dimension: str) -> Fault:
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
