"""Faults of every family, by name.

A fault takes a fleet that behaves and one live entry of it, and yields the events that make it misbehave once; the
fleet's own state stays true, so that one fault is one fault.
"""

from ..schemas.events import Expire, Invalidate
from . import identity_faults as identity
from . import life_faults as life
from .injection import Fault

FAULTS: dict[str, Fault] = {
    "weights": identity.content("WEIGHTS_MISMATCH", "weights_digest"),
    "adapter": identity.content("ADAPTER_MISMATCH", "adapter_digest"),
    "adapter scale": identity.content("ADAPTER_MISMATCH", "adapter_scale", value="0.4"),
    "kv dtype": identity.content("KV_FORMAT_MISMATCH", "kv_dtype", value="fp8"),
    "kv layout": identity.content("KV_FORMAT_MISMATCH", "kv_layout", value="blocked"),
    "kv geometry": identity.content("KV_FORMAT_MISMATCH", "kv_geometry", value="tp4"),
    "kv scales": identity.content("KV_FORMAT_MISMATCH", "quant_scale_digest"),
    "tokenizer": identity.content("TOKENIZER_MISMATCH", "tokenizer_id", value="another"),
    "template": identity.content("TEMPLATE_MISMATCH", "template_digest"),
    "tools": identity.content("TOOLS_MISMATCH", "tool_schema_digest"),
    "corpus": identity.content("CORPUS_MISMATCH", "corpus_digest"),
    "media": identity.content("MM_MISMATCH", "media_digest"),
    "tokens": identity.content("KEY_COLLISION", "token_ids_digest"),
    "prefix": identity.content("KEY_COLLISION", "prefix_digest"),
    "parameters": identity.content("PARAMS_MISMATCH", "request_params_digest", kind="response"),
    "guardrail": identity.content("GUARDRAIL_MISMATCH", "guardrail_digest", kind="response"),
    "authorization": identity.content("AUTHZ_MISMATCH", "authz_revision", kind="response", value="2"),
    "foreign domain": identity.foreign_domain,
    "asserted key": identity.asserted_key,
    "private policy": identity.private_policy,
    "semantic tenant": identity.fuzzy("CROSS_TENANT_REUSE", {"tenant_id": "tenant-other"}, "tenant_id"),
    "semantic principal": identity.fuzzy("PRINCIPAL_SCOPE_REUSE", {"principal": "user-2"}, "principal"),
    "after ttl": life.after_end("HIT_AFTER_EXPIRE", Expire(reason="ttl")),
    "after eviction": life.after_end("HIT_AFTER_EXPIRE", Expire(reason="capacity")),
    "after invalidation": life.after_end("HIT_AFTER_INVALIDATE", Invalidate(scope="entry", cause="withdrawn")),
    "pending": life.never_readable("HIT_UNCOMMITTED", None),
    "aborted": life.never_readable("HIT_UNCOMMITTED", "aborted"),
    "failed write": life.never_readable("HIT_FAILED_ENTRY", "failed"),
    "payload": life.payload,
    "short read": life.short_read,
    "stale handle": life.stale_handle,
    "too old": life.too_old,
    "unfinished": life.unfinished,
    "unreported reuse": life.unreported,
    "refused reset": life.refused,
    "stale epoch": life.stale_epoch,
    "unknown entry": life.unknown,
    "lost events": life.gap,
}
