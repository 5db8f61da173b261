"""Facts: what the fleet knows outside the cache, joined as of `effective_at_us` against an event's own time."""

from typing import Literal, get_args

import msgspec
from msgspec import Struct

from .errors import InvalidField, UndecodableRecord, UnknownSchemaVersion
from .events import Micros
from .wording import choices, reworded

FACT_VERSION = 1


class TemplateFact(Struct, tag="template", frozen=True, omit_defaults=True, kw_only=True):
    """A template was published (or rolled back to) under its id."""

    template_id: str
    template_digest: str


class AliasFact(Struct, tag="alias", frozen=True, omit_defaults=True, kw_only=True):
    """A model alias now resolves to these weights."""

    alias: str
    weights_digest: str
    resolved_model: str = ""


class WeightsFact(Struct, tag="weights", frozen=True, omit_defaults=True, kw_only=True):
    """A model's weights were replaced."""

    model_id: str
    weights_digest: str
    epoch: str = ""
    version: int | None = None


class AdapterFact(Struct, tag="adapter", frozen=True, omit_defaults=True, kw_only=True):
    """An adapter was loaded or reloaded under its name."""

    adapter_name: str
    adapter_digest: str


class CorpusFact(Struct, tag="corpus", frozen=True, omit_defaults=True, kw_only=True):
    """A corpus was reindexed; `change` says whether content was removed."""

    corpus_id: str
    corpus_digest: str
    change: Literal["add", "delete", "change"] = "change"


class EpochFact(Struct, tag="epoch", frozen=True, omit_defaults=True, kw_only=True):
    """Entries that agree with `where` (empty: all) and carry an earlier epoch must not be served any more. Beside
    dimensions, `where` may name a corpus by its `corpus_id`, whatever revision of it. See `schemas.epochs`."""

    epoch: str
    where: dict[str, str] = {}
    why: str = ""


class InvalidationFact(Struct, tag="invalidation", frozen=True, omit_defaults=True, kw_only=True):
    """A fleet-wide invalidation was ordered; nodes answer with `invalidate` events of the same `op_id`."""

    op_id: str
    where: dict[str, str] = {}
    cause: str = ""


class PolicyFact(Struct, tag="policy", frozen=True, omit_defaults=True, kw_only=True):
    """A tenant's policy. `sharing` none: its entries are its own; group: shared inside `group`; fleet: identical
    content may be shared. `max_lag_versions`: how many weights versions old an entry may be."""

    tenant_id: str
    sharing: Literal["none", "group", "fleet"] = "fleet"
    group: str = ""
    caching: bool = True
    max_lag_versions: int | None = None


class StoreFact(Struct, tag="store", frozen=True, omit_defaults=True, kw_only=True):
    """A declaration about a store. `partitioned`: the isolation domain is part of the address."""

    store: str
    partitioned: bool = False


class Tick(Struct, tag="tick", frozen=True, omit_defaults=True, kw_only=True):
    """Written by a worker that waits: proves that every fact appended before it has been read."""


FactBody = (
    TemplateFact
    | AliasFact
    | WeightsFact
    | AdapterFact
    | CorpusFact
    | EpochFact
    | InvalidationFact
    | PolicyFact
    | StoreFact
    | Tick
)


class Fact(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One fact. `id` is chosen by its source and makes publishing it twice harmless."""

    id: str
    effective_at_us: Micros
    body: FactBody
    source: str = ""
    v: int = FACT_VERSION


_decoder = msgspec.json.Decoder(Fact)
_CHOICES = choices(*get_args(FactBody), Fact)


def encode_fact(fact: Fact) -> bytes:
    """The fact as JSON, as it stands on `kvtrail.facts`."""
    return msgspec.json.encode(fact)


def decode_fact(raw: bytes) -> Fact:
    """A fact from its JSON. Raises `UndecodableRecord`, `InvalidField` or `UnknownSchemaVersion`."""
    try:
        fact = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        message, field = reworded(error, _CHOICES, Fact)
        raise InvalidField(
            message, field=f"fact.{field}".rstrip("."), remedy="See docs/reference/facts.schema.json."
        ) from None
    except msgspec.DecodeError:
        raise UndecodableRecord("is not JSON.", field="fact", remedy="Send one JSON object a record.") from None
    if fact.v != FACT_VERSION:
        raise UnknownSchemaVersion("is not known here.", field="v", remedy=f"Send version {FACT_VERSION}.")
    return fact
