"""Who is in the fleet: tenants, what they ask with, and the identities that follow."""

import hashlib
from dataclasses import dataclass, field
from random import Random

from ..schemas.identity import Identity


def digest(*parts: object) -> str:
    """A digest for a made-up content: equal parts, equal digest."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `domain` None: asks for no barrier; `private`: its policy forbids sharing."""

    name: str
    domain: str | None
    principals: tuple[str, ...]
    templates: tuple[str, ...]
    tools: tuple[str, ...]
    corpora: tuple[str, ...]
    private: bool = False


@dataclass(slots=True)
class Registry:
    """What names currently stand for."""

    templates: dict[str, str]
    weights: dict[str, str]
    aliases: dict[str, str]
    adapters: dict[str, str]
    corpora: dict[str, str]
    versions: dict[str, list[str]] = field(default_factory=dict)
    epoch: int = 1


PUBLIC_TEMPLATE = "public_help"
"""A product prompt every tenant sends byte for byte: identical content, legitimately shared."""


def make_tenants(random: Random, count: int) -> list[Tenant]:
    """`count` tenants: some private by domain, some by policy, most plain."""
    tenants = []
    for index in range(count):
        name = f"tenant-{index:03d}"
        tenants.append(
            Tenant(
                name=name,
                domain=digest("domain", name) if random.random() < 0.25 else None,
                principals=tuple(f"{name}-user-{n}" for n in range(random.randint(1, 5))),
                templates=(PUBLIC_TEMPLATE, *(f"{name}-template-{n}" for n in range(random.randint(1, 3)))),
                tools=("", *(digest("tools", name, n) for n in range(random.randint(0, 2)))),
                corpora=("", *(f"{name}-corpus-{n}" for n in range(random.randint(0, 2)))),
                private=random.random() < 0.15,
            )
        )
    return tenants


def make_registry(tenants: list[Tenant]) -> Registry:
    """The registry on the first day."""
    models = ("chat-8b", "chat-70b")
    templates = sorted({template for tenant in tenants for template in tenant.templates})
    corpora = sorted({corpus for tenant in tenants for corpus in tenant.corpora if corpus})
    return Registry(
        templates={template: digest("template", template, 1) for template in templates},
        weights={model: digest("weights", model, 1) for model in models},
        aliases={"best": "chat-70b", "fast": "chat-8b"},
        adapters={f"adapter-{n}": digest("adapter", n, 1) for n in range(4)},
        corpora={corpus: digest("corpus", corpus, 1) for corpus in corpora},
    )


@dataclass(frozen=True, slots=True)
class Ask:
    """One request's choices, before names are resolved."""

    tenant: Tenant
    principal: str
    model: str
    template: str
    tools: str
    corpus: str
    adapter: str
    conversation: int
    kind: str
    media: str


def make_ask(random: Random, tenants: list[Tenant]) -> Ask:
    """A request: popular tenants ask most, popular conversations repeat."""
    tenant = tenants[min(int(random.expovariate(5 / len(tenants))), len(tenants) - 1)]
    template = PUBLIC_TEMPLATE if random.random() < 0.2 else random.choice(tenant.templates)
    shared = template == PUBLIC_TEMPLATE
    kind = "response" if random.random() < 0.1 else "kv"
    return Ask(
        tenant=tenant,
        principal=random.choice(tenant.principals),
        model=random.choice(("chat-8b", "chat-8b", "best", "fast")),
        template=template,
        tools="" if shared else random.choice(tenant.tools),
        corpus="" if shared else random.choice(tenant.corpora),
        adapter="" if random.random() < 0.8 else f"adapter-{random.randrange(4)}",
        # A product prompt has a handful of variants; conversations are the tenant's own.
        conversation=random.randrange(4) if shared else min(int(random.expovariate(1 / 2)), 60),
        kind=kind,
        media=digest("media", random.randint(0, 40)) if kind == "kv" and random.random() < 0.05 else "",
    )


class Identities:
    """Resolves requests to identities, each made once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: dict[tuple[object, ...], tuple[Identity, str]] = {}

    def of(self, ask: Ask) -> tuple[Identity, str]:
        """The identity of a request now, and the correct store key for it: a digest of all content dimensions and
        the isolation domain, so that identical content of tenants without a barrier is shared."""
        registry = self._registry
        model = registry.aliases.get(ask.model, ask.model)
        resolved = (
            ask.tenant.name, ask.principal, ask.model, registry.weights[model], registry.templates[ask.template],
            ask.tools, registry.corpora.get(ask.corpus, ""), registry.adapters.get(ask.adapter, ""), ask.conversation,
            ask.kind, ask.media, registry.epoch,
        )  # fmt: skip
        made = self._made.get(resolved)
        if made is None:
            if len(self._made) > 200_000:
                self._made.clear()
            made = self._made[resolved] = self._make(ask, model)
        return made

    def _make(self, ask: Ask, model: str) -> tuple[Identity, str]:
        registry, response = self._registry, ask.kind == "response"
        template, corpus = registry.templates[ask.template], registry.corpora.get(ask.corpus, "")
        adapter = registry.adapters.get(ask.adapter, "")
        owner = "" if ask.template == PUBLIC_TEMPLATE else ask.tenant.name
        # The epoch marker stands at the front of the prefix, so a bump changes every token digest and every key.
        tokens = digest("tokens", registry.epoch, owner, template, ask.tools, corpus, ask.conversation)
        domain = ask.tenant.domain
        if domain is None and (ask.tenant.private or response):
            # A store that respects policy partitions by tenant without being asked by the request.
            domain = digest("policy", ask.tenant.name)
        identity = Identity(
            tenant_id=ask.tenant.name,
            isolation_domain=domain,
            principal=None if response else ask.principal,
            model_id=ask.model,
            weights_digest=registry.weights[model],
            kv_dtype="bf16",
            kv_layout="paged",
            kv_geometry="tp1",
            quant_scale_digest="",
            tokenizer_id=f"tokenizer-{model}",
            template_id=ask.template,
            template_digest=template,
            tool_schema_digest=ask.tools,
            corpus_digest=corpus,
            adapter_name=ask.adapter,
            adapter_digest=adapter,
            adapter_scale="1" if adapter else "",
            media_digest=ask.media,
            epoch=str(registry.epoch),
            request_params_digest=digest("params", "default") if response else None,
            guardrail_digest=digest("guard", 1) if response else None,
            authz_revision="1" if response else None,
            prefix_digest=digest("prefix", tokens),
            token_ids_digest=tokens,
        )
        key = digest(
            domain, registry.weights[model], template, ask.tools, corpus, adapter, tokens, ask.media, ask.kind,
        )  # fmt: skip
        return identity, key
