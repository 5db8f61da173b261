"""`Identity` and `PrefixKey`: every dimension that changes what the tokens mean or who may see them."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from .digests import canonical_json, is_digest
from .dimensions import COMPUTED, ENTRY_KINDS, TENSORS, Dimension, Role, Severity
from .errors import (
    LARGEST_UNKNOWN,
    LONGEST_UNKNOWN,
    BadInput,
    EmptyTenant,
    ForeignContent,
    InvalidField,
    NameInDigestPlace,
)


def _digest(value: str) -> str:
    if value and not is_digest(value):
        raise PydanticCustomError("name_in_digest_place", "holds a name or a label, not a digest of content.")
    return value


def _tenant(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("empty_tenant", "is empty.")
    return value


LONGEST_NAME, LONGEST_TENANT = 512, 256
Digest = Annotated[str, AfterValidator(_digest)]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Tenant = Annotated[str, Field(max_length=LONGEST_TENANT), AfterValidator(_tenant)]
_EXACT = frozenset({"exact"})


class Identity(BaseModel):
    """A sparse map over the dimensions, as carried by events.

    None means *unknown*, the empty string *known to be none*. Unknown is never equal to anything: what cannot be
    compared lowers coverage, it does not pass. A tenant is required, everything else depends on the source.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    tenant_id: Annotated[
        Tenant,
        Dimension(
            title="tenant",
            cause="CROSS_TENANT_REUSE",
            precedence=960,
            role=Role.SCOPE,
            form="name",
            kinds=ENTRY_KINDS,
            may_differ="Yes, when content is identical and neither a private domain nor policy forbids it.",
        ),
    ]
    isolation_domain: Annotated[
        Digest | None,
        Dimension(
            title="isolation domain",
            cause="CROSS_TENANT_REUSE",
            precedence=970,
            role=Role.SCOPE,
            kinds=ENTRY_KINDS,
            may_differ="None and declared public are the same domain; a private one differs from all but itself.",
        ),
    ] = None
    principal: Annotated[
        Name | None,
        Dimension(
            title="principal",
            cause="PRINCIPAL_SCOPE_REUSE",
            precedence=950,
            role=Role.SCOPE,
            form="name",
            kinds=ENTRY_KINDS,
            may_differ="Yes, for identical content inside one tenant; a creator without principal is tenant-wide.",
        ),
    ] = None
    weights_digest: Annotated[
        Digest | None, Dimension(title="weights", cause="WEIGHTS_MISMATCH", precedence=100, kinds=ENTRY_KINDS)
    ] = None
    resolved_model: Annotated[
        Name | None,
        Dimension(
            title="resolved model",
            cause="WEIGHTS_MISMATCH",
            precedence=110,
            form="name",
            kinds=ENTRY_KINDS,
            yields_to="weights_digest",
            may_differ="Yes, where both names resolve to the same weights.",
        ),
    ] = None
    model_id: Annotated[
        Name | None,
        Dimension(
            title="model name",
            cause="WEIGHTS_MISMATCH",
            precedence=120,
            form="name",
            kinds=ENTRY_KINDS,
            yields_to="weights_digest",
            may_differ="Yes, as an alias of the same weights.",
        ),
    ] = None
    adapter_digest: Annotated[
        Digest | None, Dimension(title="adapter digest", cause="ADAPTER_MISMATCH", precedence=200)
    ] = None
    adapter_scale: Annotated[
        Name | None, Dimension(title="adapter scale", cause="ADAPTER_MISMATCH", precedence=210, form="text")
    ] = None
    adapter_kind: Annotated[
        Name | None, Dimension(title="adapter kind", cause="ADAPTER_MISMATCH", precedence=220, form="text")
    ] = None
    adapter_switch: Annotated[
        Name | None,
        Dimension(title="adapter switch position", cause="ADAPTER_MISMATCH", precedence=230, form="text"),
    ] = None
    adapter_name: Annotated[
        Name | None,
        Dimension(
            title="adapter name",
            cause="ADAPTER_MISMATCH",
            precedence=240,
            form="name",
            yields_to="adapter_digest",
            may_differ="Yes, when the adapter was renamed and its bytes are the same.",
        ),
    ] = None
    kv_dtype: Annotated[
        Name | None,
        Dimension(title="KV dtype", cause="KV_FORMAT_MISMATCH", precedence=300, form="text", kinds=TENSORS),
    ] = None
    kv_layout: Annotated[
        Name | None,
        Dimension(title="KV layout", cause="KV_FORMAT_MISMATCH", precedence=310, form="text", kinds=TENSORS),
    ] = None
    kv_geometry: Annotated[
        Name | None,
        Dimension(title="KV geometry", cause="KV_FORMAT_MISMATCH", precedence=320, form="text", kinds=TENSORS),
    ] = None
    quant_scale_digest: Annotated[
        Digest | None,
        Dimension(title="quantization scales", cause="KV_FORMAT_MISMATCH", precedence=330, kinds=TENSORS),
    ] = None
    tokenizer_id: Annotated[
        Name | None, Dimension(title="tokenizer", cause="TOKENIZER_MISMATCH", precedence=400, form="text")
    ] = None
    template_digest: Annotated[
        Digest | None,
        Dimension(
            title="template digest",
            cause="TEMPLATE_MISMATCH",
            precedence=500,
            severity=Severity.MEDIUM,
            may_differ="No; a rollback returns to the same digest and is silent.",
        ),
    ] = None
    template_id: Annotated[
        Name | None,
        Dimension(
            title="template name",
            cause="TEMPLATE_MISMATCH",
            precedence=510,
            severity=Severity.MEDIUM,
            form="name",
            yields_to="template_digest",
            may_differ="Yes, when both names render to the same text.",
        ),
    ] = None
    tool_schema_digest: Annotated[
        Digest | None,
        Dimension(
            title="tool schemas",
            cause="TOOLS_MISMATCH",
            precedence=520,
            may_differ="Another order of the same tools has the same canonical digest.",
        ),
    ] = None
    corpus_digest: Annotated[
        Digest | None,
        Dimension(title="corpus", cause="CORPUS_MISMATCH", precedence=530, severity=Severity.MEDIUM),
    ] = None
    media_digest: Annotated[
        Digest | None, Dimension(title="media content", cause="MM_MISMATCH", precedence=600, kinds=ENTRY_KINDS)
    ] = None
    media_geometry: Annotated[
        Name | None,
        Dimension(title="media geometry", cause="MM_MISMATCH", precedence=610, form="text", kinds=ENTRY_KINDS),
    ] = None
    media_preprocessing: Annotated[
        Digest | None,
        Dimension(title="media preprocessing", cause="MM_MISMATCH", precedence=620, kinds=ENTRY_KINDS),
    ] = None
    embedding_digest: Annotated[
        Digest | None, Dimension(title="embedding input", cause="KEY_COLLISION", precedence=630)
    ] = None
    request_params_digest: Annotated[
        Digest | None,
        Dimension(
            title="request parameters",
            cause="PARAMS_MISMATCH",
            precedence=640,
            kinds=frozenset({"response"}),
            may_differ="For KV and state: parameters shape the output, not the prefix.",
        ),
    ] = None
    guardrail_digest: Annotated[
        Digest | None,
        Dimension(
            title="guardrail chain",
            cause="GUARDRAIL_MISMATCH",
            precedence=650,
            kinds=frozenset({"response"}),
            may_differ="For KV and state: guardrails run on the answer.",
        ),
    ] = None
    authz_revision: Annotated[
        Name | None,
        Dimension(
            title="authorization revision",
            cause="AUTHZ_MISMATCH",
            precedence=660,
            form="text",
            kinds=frozenset({"response"}),
            may_differ="For KV and state of identical tokens.",
        ),
    ] = None
    parent_digest: Annotated[
        Digest | None,
        Dimension(title="parent prefix", cause="KEY_COLLISION", precedence=800, kinds=COMPUTED, modes=_EXACT),
    ] = None
    block_digest: Annotated[
        Digest | None,
        Dimension(title="block tokens", cause="KEY_COLLISION", precedence=810, modes=_EXACT),
    ] = None
    prefix_digest: Annotated[
        Digest | None,
        Dimension(title="cumulative prefix", cause="KEY_COLLISION", precedence=820, modes=_EXACT),
    ] = None
    token_ids_digest: Annotated[
        Digest | None, Dimension(title="token ids", cause="KEY_COLLISION", precedence=830, modes=_EXACT)
    ] = None
    epoch: Annotated[
        Name | None,
        Dimension(
            title="epoch",
            cause="STALE_EPOCH",
            precedence=900,
            role=Role.ORDER,
            form="text",
            kinds=ENTRY_KINDS,
            may_differ="Yes: an epoch only orders; it matters across a bumped one.",
        ),
    ] = None

    def canonical(self) -> bytes:
        """Canonical JSON (sorted keys, no spaces) of the known dimensions; unknown ones are left out."""
        return canonical_json(self.to_wire())

    def to_wire(self) -> dict[str, str]:
        """The known dimensions, as an event carries them."""
        return {name: value for name in DIMENSIONS if (value := getattr(self, name)) is not None}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Self:
        """An identity from an event.

        Dimensions this build does not know are left out, so that a newer producer is understood in everything
        else. Raises `EmptyTenant`, `NameInDigestPlace`, `InvalidField`, each naming the dimension, or `ForeignContent`
        for one that is not known and has room for a prompt.
        """
        unknown = [len(name) + len(str(value)) for name, value in values.items() if name not in DIMENSIONS]
        if unknown and (max(unknown) > LONGEST_UNKNOWN or sum(unknown) > LARGEST_UNKNOWN):
            raise ForeignContent(
                "a dimension that is not known here holds content at length.",
                remedy="Send digests: prompts and tokens never enter an event.",
            )
        try:
            return cls.model_validate({k: v for k, v in values.items() if k in DIMENSIONS and v is not None})
        except ValidationError as error:
            raise identity_error(error) from None


class PrefixKey(Identity):
    """A complete key for a prefix: the nine core dimensions are required, the others may be added.

    The key *is* its identity, so it cannot leave a dimension out by accident, and it changes with every one of
    them. `tool_schema_digest` may be empty: known to have no tools.
    """

    model_id: Annotated[Name, Field(min_length=1)]
    weights_digest: Annotated[Digest, Field(min_length=1)]
    kv_dtype: Annotated[Name, Field(min_length=1)]
    tokenizer_id: Annotated[Name, Field(min_length=1)]
    template_id: Annotated[Name, Field(min_length=1)]
    template_digest: Annotated[Digest, Field(min_length=1)]
    tool_schema_digest: Digest
    token_ids_digest: Annotated[Digest, Field(min_length=1)]

    def fingerprint(self) -> str:
        """SHA-256 over the canonical form, 64 hex digits: the store key. People are shown the first 16."""
        return _fingerprint(self)


@lru_cache(maxsize=1024)
def _fingerprint(key: PrefixKey) -> str:
    """Of equal keys once: an engine asks for it at every lookup."""
    return hashlib.sha256(key.canonical()).hexdigest()


def identity_error(error: ValidationError) -> BadInput:
    """The first problem pydantic found in an identity, as an error of ours that names the dimension."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    kind, message = first["type"], str(first["msg"])
    if kind == "name_in_digest_place":
        return NameInDigestPlace(
            message,
            field=field,
            remedy="Send lower-case hex of at least 64 bits; kvtrail.schemas.digests computes it from the content.",
        )
    if field == "tenant_id" and kind in ("empty_tenant", "missing", "none_required"):
        return EmptyTenant("is empty or missing.", field=field, remedy="Send the tenant that asked.")
    return InvalidField(f"{message}.", field=field, remedy="See docs/reference/dimensions.md.")


def _declared() -> dict[str, Dimension]:
    found: dict[str, Dimension] = {}
    for name, info in Identity.model_fields.items():
        found[name] = next(mark for mark in info.metadata if isinstance(mark, Dimension))
    return dict(sorted(found.items(), key=lambda item: item[1].precedence))


DIMENSIONS: Mapping[str, Dimension] = MappingProxyType(_declared())
"""The dimension table, in order of precedence."""

CORE: tuple[str, ...] = (
    "model_id",
    "weights_digest",
    "kv_dtype",
    "tokenizer_id",
    "template_id",
    "template_digest",
    "tool_schema_digest",
    "tenant_id",
    "token_ids_digest",
)
"""The dimensions a `PrefixKey` cannot do without."""


def titles(names: Iterable[str]) -> str:
    """Dimension names as people say them, in the given order: `tenant, template digest, token ids`."""
    return ", ".join(DIMENSIONS[name].title if name in DIMENSIONS else name for name in names)
