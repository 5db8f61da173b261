"""What a process knows once it has resolved its names: everything that a `PrefixKey` needs, by content.

started = Started.serving(resolve_alias("support", resolver), kv_dtype="bfloat16", tokenizer_id="...")
publish_facts(kafka, started.facts(templates=[template], corpora=[corpus], source="gateway"))
key = started.prefix_key(tenant_id="contoso", template=template, corpus=corpus, token_ids=ids)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..schemas.errors import NameInDigestPlace
from ..schemas.facts import AliasFact, CorpusFact, Fact
from ..schemas.identity import PrefixKey
from .corpora import Corpus
from .facts import make_fact, template_published
from .identity import Deployment
from .served import Served
from .templates import RenderedTemplate


@dataclass(frozen=True, slots=True)
class Started:
    """A deployment whose model is resolved."""

    served: Served
    deployment: Deployment

    @classmethod
    def serving(
        cls, served: Served, *, kv_dtype: str, tokenizer_id: str, secret: bytes | None = None, secret_id: str = ""
    ) -> "Started":
        """From what an alias resolved to."""
        return cls(
            served,
            Deployment(
                model_id=served.alias, weights_digest=served.weights_digest, kv_dtype=kv_dtype,
                tokenizer_id=tokenizer_id, secret=secret, secret_id=secret_id,
            ),
        )  # fmt: skip

    def prefix_key(
        self, *, tenant_id: str, template: RenderedTemplate, token_ids: Iterable[int], corpus: Corpus | None = None,
        tools: Sequence[Mapping[str, Any]] = (), **others: Any,
    ) -> PrefixKey:  # fmt: skip
        """The key of one prefix; `others` as `Deployment.prefix_key` takes them.

        Raises `NameInDigestPlace` for a template or a corpus that is only named, and what `Deployment.prefix_key`
        does.
        """
        if not isinstance(template, RenderedTemplate):
            raise _only_named("template_digest", "templates.resolve_template")
        if corpus is not None and not isinstance(corpus, Corpus):
            raise _only_named("corpus_digest", "corpora.resolve_corpus")
        return self.deployment.prefix_key(
            tenant_id=tenant_id, template_id=template.template_id, rendered_template=template.text,
            token_ids=token_ids, tools=tools, corpus=None if corpus is None else corpus.documents,
            resolved_model=self.served.resolved_model, **others,
        )  # fmt: skip

    def facts(
        self, *, templates: Iterable[RenderedTemplate] = (), corpora: Iterable[Corpus] = (), source: str = "",
        effective_at_us: int | None = None,
    ) -> list[Fact]:  # fmt: skip
        """What the judges should know of it: where the alias points, each template's text and each corpus' documents.
        Publish them before the first request (`producers.facts.publish_facts`)."""
        alias = AliasFact(
            alias=self.served.alias, weights_digest=self.served.weights_digest,
            resolved_model=self.served.resolved_model,
        )  # fmt: skip
        found = [make_fact(alias, effective_at_us=effective_at_us, source=source)]
        found += [
            template_published(one.template_id, one.digest, effective_at_us=effective_at_us, source=source)
            for one in templates
        ]
        found += [
            make_fact(
                CorpusFact(corpus_id=one.corpus_id, corpus_digest=one.digest), effective_at_us=effective_at_us,
                source=source,
            )
            for one in corpora
        ]  # fmt: skip
        return found


def _only_named(field: str, helper: str) -> NameInDigestPlace:
    return NameInDigestPlace(
        "is only named: a name stays what it is while the content changes.", field=field,
        remedy=f"Resolve it once at the start with kvtrail.producers.{helper}.",
    )  # fmt: skip
