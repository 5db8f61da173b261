"""The fleet: nodes that look up, compute, offload, evict, restart; a registry that rolls out and back.

Everything here is legitimate. Faults are injected from outside (`faults.py`) into a fleet that behaves.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from ..schemas.events import Commit, Create, Event, Expire, Hit, Invalidate, LookupCount, Lookups, Tier
from ..schemas.facts import (
    AdapterFact,
    AliasFact,
    CorpusFact,
    EpochFact,
    Fact,
    FactBody,
    PolicyFact,
    TemplateFact,
    WeightsFact,
)
from ..schemas.identity import Identity
from .lanes import Emitter
from .population import Ask, Identities, Registry, Tenant, digest, make_ask, make_registry, make_tenants

START_US = 1_780_000_000_000_000
STORE = "pool"
TTL_S = 900.0
LOCAL: tuple[Tier, ...] = ("gpu", "host", "nvme")
MAX_AGE_S = 3600.0


@dataclass(slots=True)
class Entry:
    """One live instance, as the node that holds it knows it."""

    key: str
    identity: Identity
    kind: str
    tier: Tier
    created_us: int
    tokens: int
    size: int
    payload: str
    place: str = ""
    generation: int | None = None
    ttl_s: float | None = None
    max_age_s: float | None = None
    committed: bool = True


@dataclass(slots=True)
class Node:
    """One node: its emitter and what its own tiers hold, oldest first."""

    emitter: Emitter
    gpu: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    host: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    nvme: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    slots: list[tuple[str, int]] = field(default_factory=list)
    next_slot: int = 0
    lookups: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)

    def tier(self, name: Tier) -> OrderedDict[str, Entry]:
        tiers: dict[Tier, OrderedDict[str, Entry]] = {"gpu": self.gpu, "host": self.host, "nvme": self.nvme}
        return tiers[name]


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """How large the fleet is. Capacities are entries per node (per fleet for the shared store); `request_ms` is the
    mean time between requests of the whole fleet, `skew_ms` how wrong a node's clock is at most."""

    tenants: int = 24
    nodes: int = 6
    gpu: int = 120
    host: int = 240
    nvme: int = 600
    shared: int = 2500
    request_ms: float = 8.0
    skew_ms: int = 1500


class Fleet:
    """Runs request by request; `step` yields the events and facts of one request, in the order they happen."""

    def __init__(self, seed: int, spec: FleetSpec | None = None) -> None:
        self.spec = spec or FleetSpec()
        self.random = Random(seed)
        self.now_us = START_US
        self.tenants: list[Tenant] = make_tenants(self.random, self.spec.tenants)
        self.registry: Registry = make_registry(self.tenants)
        self.identities = Identities(self.registry)
        self.shared: OrderedDict[str, Entry] = OrderedDict()
        self.nodes = [
            Node(
                Emitter(
                    f"node-{n:02d}", skew_us=self.random.randint(-1000 * self.spec.skew_ms, 1000 * self.spec.skew_ms)
                )
            )
            for n in range(self.spec.nodes)
        ]
        self.requests = 0
        self.incomplete: set[str] = set()
        """Nodes that lost events: what is known of them has holes."""
        self._facts = 0
        self._payloads = 0
        self._operations = 0

    def begin(self) -> Iterator[Event | Fact]:
        """Policies, and every node's start."""
        for tenant in self.tenants:
            if tenant.private:
                yield self.fact(PolicyFact(tenant_id=tenant.name, sharing="none"), since_s=86_400.0)
        for node in self.nodes:
            yield node.emitter.start(self.now_us, STORE)

    def step(self) -> Iterator[Event | Fact]:
        """One request, and now and then something else that happens in a fleet."""
        self.now_us += int(self.random.expovariate(1 / (self.spec.request_ms * 1000))) + 1
        self.requests += 1
        chance = self.random.random()
        if chance < 0.0004:
            yield from self._registry_change()
        elif chance < 0.0005:
            yield from self._restart()
        elif chance < 0.0008:
            yield from self._invalidate()
        elif chance < 0.002:
            yield from self._report_lookups()
        yield from self._request(make_ask(self.random, self.tenants))

    def fact(self, body: FactBody, since_s: float = 0.0) -> Fact:
        """A fact that holds from now on, or has done so for a while."""
        self._facts += 1
        effective_us = self.now_us - round(since_s * 1e6)
        return Fact(id=f"fact-{self._facts}", effective_at_us=effective_us, body=body, source="simulator")

    def rid(self) -> str:
        """A fresh request id."""
        self.requests += 1
        return f"req-{self.requests:08d}"

    def payload(self) -> str:
        self._payloads += 1
        return digest("payload", self._payloads)

    # One request

    def _request(self, ask: Ask) -> Iterator[Event | Fact]:
        identity, key = self.identities.of(ask)
        node = self.nodes[
            int(key[:8], 16) % len(self.nodes) if self.random.random() < 0.7 else self.random.randrange(len(self.nodes))
        ]
        request = f"req-{self.requests:08d}"
        counts = node.lookups.setdefault((ask.tenant.name, ask.template, ask.model), [0, 0])
        for tier in LOCAL:
            entry = node.tier(tier).get(key)
            if entry is None:
                continue
            if self._is_over(entry):
                yield self.end(node, entry, Expire(reason="ttl"))
                continue
            if not entry.committed:
                continue
            counts[0] += 1
            node.tier(tier).move_to_end(key)
            yield self.hit(node, entry, identity, request)
            if tier != "gpu" and self.random.random() < 0.5:
                yield from self._place(node, "gpu", entry, identity, request)
            return
        entry = self.shared.get(key)
        if entry is not None and self._is_over(entry):
            yield self.end(node, entry, Expire(reason="ttl"))
        elif entry is not None:
            counts[0] += 1
            yield self.hit(node, entry, identity, request)
            yield from self._place(node, "gpu", entry, identity, request)
            return
        counts[1] += 1
        if any(key in node.tier(tier) for tier in LOCAL):
            return  # somebody's computation of it is under way
        yield from self._compute(node, ask, key, identity, request)

    def _compute(self, node: Node, ask: Ask, key: str, identity: Identity, request: str) -> Iterator[Event | Fact]:
        tokens = 64 * self.random.randint(1, 140)
        entry = Entry(
            key=key, identity=identity, kind=ask.kind, tier="gpu", created_us=self.now_us, tokens=tokens,
            size=tokens * 4096, payload=self.payload(), ttl_s=TTL_S if self.random.random() < 0.3 else None,
            max_age_s=MAX_AGE_S if ask.kind == "response" else None,
        )  # fmt: skip
        pending = ask.kind == "kv" and self.random.random() < 0.1
        yield from self._place(node, "gpu", entry, identity, request, pending=pending)
        if pending:
            placed = node.gpu[key]
            if self.random.random() < 0.1:
                yield self.end(node, placed, Expire(reason=self.random.choice(("aborted", "failed"))))
                return
            placed.committed = True
            yield self.emit(node, placed, Commit(bytes=placed.size, payload_digest=placed.payload))
        if self.random.random() < 0.3:
            yield from self._place(node, "nvme", entry, identity, request)
        if self.random.random() < 0.25:
            yield from self._share(node, entry, identity, request)

    def emit(
        self, node: Node, entry: Entry, body: Create | Hit | Expire | Invalidate | Commit,
        identity: Identity | None = None, request: str = "", owner: str = "",
    ) -> Event:  # fmt: skip
        """An event about an entry, from a node."""
        return node.emitter.emit(
            body, self.now_us, store=STORE, tier=entry.tier, key=entry.key, identity=identity, kind=entry.kind,
            place=entry.place, generation=entry.generation, request_id=request, owner=owner,
        )  # fmt: skip

    def hit(self, node: Node, entry: Entry, identity: Identity, request: str) -> Event:
        """A truthful hit: bytes, payload and age as they are."""
        return self.emit(
            node, entry,
            Hit(
                reused_tokens=entry.tokens, reported_tokens=entry.tokens, bytes_read=entry.size,
                payload_digest=entry.payload, age_s=(self.now_us - entry.created_us) / 1e6,
            ),
            identity, request,
        )  # fmt: skip

    def end(self, node: Node, entry: Entry, body: Expire | Invalidate) -> Event:
        """The end of an entry: out of the tier, and said so."""
        tier = self.shared if entry.tier == "shared" else node.tier(entry.tier)
        tier.pop(entry.key, None)
        if entry.place:
            node.slots.append((entry.place, (entry.generation or 0) + 1))
        return self.emit(node, entry, body)

    def _place(
        self, node: Node, tier: Tier, source: Entry, identity: Identity, request: str, *, pending: bool = False
    ) -> Iterator[Event]:
        if source.key in node.tier(tier):
            return
        place, generation = self._slot(node) if tier == "gpu" else ("", None)
        entry = Entry(
            key=source.key, identity=identity, kind=source.kind, tier=tier, created_us=self.now_us,
            tokens=source.tokens, size=source.size, payload=source.payload, place=place, generation=generation,
            ttl_s=source.ttl_s, max_age_s=source.max_age_s, committed=not pending,
        )  # fmt: skip
        node.tier(tier)[entry.key] = entry
        yield self.emit(node, entry, self._create(entry, pending), identity, request)
        yield from self._make_room(node, tier)

    @staticmethod
    def _create(entry: Entry, pending: bool = False) -> Create:
        return Create(
            tokens=entry.tokens, bytes=entry.size, payload_digest=None if pending else entry.payload,
            ttl_s=entry.ttl_s, max_age_s=entry.max_age_s, state="pending" if pending else "committed",
            finish="stop" if entry.kind == "response" else None,
        )  # fmt: skip

    def _share(self, node: Node, source: Entry, identity: Identity, request: str) -> Iterator[Event]:
        if source.key in self.shared:
            return
        entry = Entry(
            key=source.key, identity=identity, kind=source.kind, tier="shared", created_us=self.now_us,
            tokens=source.tokens, size=source.size, payload=source.payload, ttl_s=source.ttl_s,
            max_age_s=source.max_age_s,
        )  # fmt: skip
        self.shared[entry.key] = entry
        yield self.emit(node, entry, self._create(entry), identity, request)
        while len(self.shared) > self.spec.shared:
            yield self.end(node, next(iter(self.shared.values())), Expire(reason="capacity"))

    def _make_room(self, node: Node, tier: Tier) -> Iterator[Event]:
        limit = {"gpu": self.spec.gpu, "host": self.spec.host, "nvme": self.spec.nvme}[tier]
        held = node.tier(tier)
        while len(held) > limit:
            oldest = next(iter(held.values()))
            demote = tier == "gpu" and oldest.committed and self.random.random() < 0.5
            yield self.end(node, oldest, Expire(reason="demoted" if demote else "capacity"))
            if demote:
                yield from self._place(node, "host", oldest, oldest.identity, "")

    def _slot(self, node: Node) -> tuple[str, int]:
        if node.slots and self.random.random() < 0.8:
            return node.slots.pop(0)
        node.next_slot += 1
        return f"{node.emitter.incarnation}-block-{node.next_slot}", 1

    def _is_over(self, entry: Entry) -> bool:
        age_s = (self.now_us - entry.created_us) / 1e6
        limits = [limit for limit in (entry.ttl_s, entry.max_age_s) if limit is not None]
        return any(age_s >= limit for limit in limits)

    # What else happens

    def _registry_change(self) -> Iterator[Event | Fact]:
        registry, random = self.registry, self.random
        kind = random.choice(("template", "template", "adapter", "alias", "corpus", "weights", "epoch"))
        if kind == "template":
            name = random.choice(sorted(registry.templates))
            versions = registry.versions.setdefault(name, [registry.templates[name]])
            if len(versions) > 1 and random.random() < 0.4:
                registry.templates[name] = random.choice(versions)  # a rollback is legitimate
            else:
                registry.templates[name] = digest("template", name, len(versions) + 1)
                versions.append(registry.templates[name])
            yield self.fact(TemplateFact(template_id=name, template_digest=registry.templates[name]))
        elif kind == "adapter":
            name = random.choice(sorted(registry.adapters))
            registry.adapters[name] = digest("adapter", name, self.requests)
            yield self.fact(AdapterFact(adapter_name=name, adapter_digest=registry.adapters[name]))
        elif kind == "alias":
            registry.aliases["best"] = "chat-8b" if registry.aliases["best"] == "chat-70b" else "chat-70b"
            model = registry.aliases["best"]
            yield self.fact(AliasFact(alias="best", weights_digest=registry.weights[model], resolved_model=model))
        elif kind == "corpus" and registry.corpora:
            name = random.choice(sorted(registry.corpora))
            registry.corpora[name] = digest("corpus", name, self.requests)
            yield self.fact(
                CorpusFact(
                    corpus_id=name,
                    corpus_digest=registry.corpora[name],
                    change="add" if random.random() < 0.5 else "delete",
                )
            )
        elif kind == "weights":
            name = random.choice(sorted(registry.weights))
            registry.weights[name] = digest("weights", name, self.requests)
            yield self.fact(WeightsFact(model_id=name, weights_digest=registry.weights[name]))
        elif kind == "epoch":
            registry.epoch += 1
            yield self.fact(EpochFact(epoch=str(registry.epoch), why="a drill"))

    def _restart(self) -> Iterator[Event]:
        node = self.random.choice(self.nodes)
        node.gpu.clear()
        node.host.clear()
        node.slots.clear()
        node.next_slot = 0
        node.emitter.restart()
        yield node.emitter.start(self.now_us, STORE)

    def _invalidate(self) -> Iterator[Event]:
        node = self.random.choice(self.nodes)
        tenant = self.random.choice(self.tenants)
        template = self.random.choice(tenant.templates[1:])
        where = {"template_id": template}
        self._operations += 1
        for tier in LOCAL:
            held = node.tier(tier)
            for key in [key for key, entry in held.items() if entry.identity.template_id == template]:
                entry = held.pop(key)
                if entry.place:
                    node.slots.append((entry.place, (entry.generation or 0) + 1))
        yield node.emitter.emit(
            Invalidate(scope="node", where=where, cause="wording withdrawn", op_id=f"op-{self._operations}"),
            self.now_us, store=STORE, tier="gpu",
        )  # fmt: skip

    def _report_lookups(self) -> Iterator[Event]:
        node = self.random.choice(self.nodes)
        counts = tuple(
            LookupCount(tenant_id=tenant, template_id=template, model_id=model, hit=hit, miss=miss)
            for (tenant, template, model), (hit, miss) in sorted(node.lookups.items())
        )
        node.lookups.clear()
        yield node.emitter.emit(Lookups(counts=counts), self.now_us, store=STORE, tier="gpu")
