"""The fields of a history line as an identity."""

import hashlib
from collections.abc import Mapping

from ..schemas.identity import Identity

BASELINE = {
    "model": "m1", "weights": "W1", "fmt": "bf16/L1/tp1", "tok": "T1", "tmpl": "chat@d1", "tools": "none",
    "corpus": "none", "epoch": "7", "adapter": "none", "mm": "none", "in": "I1", "tier": "gpu",
}  # fmt: skip
DIGESTS = {
    "weights": "weights_digest", "tools": "tool_schema_digest", "corpus": "corpus_digest", "mm": "media_digest",
    "mm_proc": "media_preprocessing", "emb": "embedding_digest", "params": "request_params_digest",
    "guard": "guardrail_digest", "scale": "quant_scale_digest", "parent": "parent_digest", "blk": "block_digest",
    "in": "token_ids_digest",
}  # fmt: skip
TEXTS = {
    "model": "model_id", "tok": "tokenizer_id", "epoch": "epoch", "who": "principal", "authz": "authz_revision",
    "mm_geom": "media_geometry", "akind": "adapter_kind", "from": "adapter_switch",
}  # fmt: skip
_GROUPS = {
    "tenant": ("tenant_id",),
    "iso": ("isolation_domain",),
    "tmpl": ("template_digest", "template_id"),
    "fmt": ("kv_dtype", "kv_layout", "kv_geometry"),
    "adapter": ("adapter_digest", "adapter_scale", "adapter_kind", "adapter_switch", "adapter_name"),
    "model": ("model_id", "resolved_model"),
    **{name: (dimension,) for name, dimension in (DIGESTS | TEXTS).items() if name != "model"},
}


def symbol(text: str) -> str:
    """The digest that a short symbol stands for; `none` is known to be none."""
    return "" if text == "none" else hashlib.sha256(text.encode()).hexdigest()


def dimensions_of(name: str) -> tuple[str, ...]:
    """The dimensions that a field of a scenario stands for."""
    return _GROUPS.get(name, (name,))


def identity_of(tenant: str, given: Mapping[str, str]) -> Identity:
    """The identity that a line's fields (baseline included) describe."""
    values: dict[str, str | None] = {"tenant_id": tenant, "isolation_domain": domain_of(given)}
    for name, dimension in DIGESTS.items():
        if name in given:
            values[dimension] = symbol(given[name])
    for name, dimension in TEXTS.items():
        if name in given:
            values[dimension] = "" if given[name] == "none" else given[name]
    template, at, digest = given["tmpl"].partition("@")
    values["template_id"] = "" if template == "none" else template
    values["template_digest"] = symbol(digest) if at else "" if template == "none" else None
    for dimension, value in zip(("kv_dtype", "kv_layout", "kv_geometry"), given["fmt"].split("/"), strict=False):
        values[dimension] = value
    adapter, at, rest = given["adapter"].partition("@")
    digest, star, scale = rest.partition("*")
    if adapter == "none":
        values.update(adapter_name="", adapter_digest="", adapter_scale="")
    else:
        values["adapter_name"] = adapter
        if at:
            values["adapter_digest"] = symbol(digest)
        if star:
            values["adapter_scale"] = scale
    return Identity(**values)  # type: ignore[arg-type]  # one dict for thirty fields


def domain_of(given: Mapping[str, str]) -> str | None:
    """No barrier asked for: None; declared shareable: empty."""
    if "iso" not in given:
        return None
    return "" if given["iso"] in ("pub", "none") else symbol(given["iso"])
