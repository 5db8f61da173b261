"""What variables of key expressions are usually called, and which dimension they stand for.

A name that is not here is unknown, and said to be: a guess would clear a key that nobody has understood.
"""

import re
from typing import Literal

Form = Literal["digest", "content", "name", "value"]
"""`digest`: of content. `content`: the content itself, as good as its digest. `name`: stays while the content behind it
moves on. `value`: the dimension has no content behind it (a dtype, a tenant)."""

_TABLE: tuple[tuple[str, Form, str], ...] = (
    ("tenant_id", "value", "tenant tenant_id tenant_name org org_id organization organisation account account_id "
     "customer customer_id workspace workspace_id"),
    ("principal", "value", "user user_id user_name username principal principal_id subject end_user"),
    ("isolation_domain", "value", "salt cache_salt namespace cache_namespace isolation_domain isolation_key"),
    ("model_id", "name", "model model_name model_id model_alias model_path llm base_model"),
    ("resolved_model", "name", "resolved_model model_version model_revision model_snapshot served_model"),
    ("weights_digest", "digest", "weights_digest weights_sha weights_sha256 weights_hash model_digest model_hash "
     "model_sha checkpoint_digest checkpoint_hash checkpoint_sha"),
    ("weights_digest", "content", "weights weights_bytes state_dict"),
    ("adapter_digest", "digest", "adapter_digest adapter_hash adapter_sha lora_digest lora_hash lora_sha"),
    ("adapter_name", "name", "lora lora_name lora_id lora_int_id lora_path adapter adapter_name adapter_id"),
    ("adapter_scale", "value", "lora_scale lora_scaling adapter_scale"),
    ("kv_dtype", "value", "kv_dtype dtype cache_dtype kv_cache_dtype"),
    ("kv_layout", "value", "kv_layout layout block_size page_size"),
    ("kv_geometry", "value", "kv_geometry tp tp_size world_size tensor_parallel_size"),
    ("quant_scale_digest", "digest", "quant_scale_digest kv_scale_hash scale_digest"),
    ("tokenizer_id", "value", "tokenizer tokenizer_id tokenizer_name tokenizer_hash tokenizer_digest vocab_hash"),
    ("template_digest", "digest", "template_digest template_hash template_sha template_sha256 system_prompt_hash"),
    ("template_digest", "content", "rendered_template template_text rendered rendered_prompt system_prompt"),
    ("template_id", "name", "template template_name template_id template_version prompt_name prompt_id prompt_version"),
    ("tool_schema_digest", "digest", "tool_schema_digest tools_digest tools_hash tool_hash toolset_hash"),
    ("tool_schema_digest", "content", "tools tool_schemas tool_definitions functions"),
    ("tool_schema_digest", "name", "tool_names toolset toolset_name toolset_id"),
    ("corpus_digest", "digest", "corpus_digest corpus_hash index_digest index_hash"),
    ("corpus_digest", "name", "corpus corpus_name index_name collection collection_name knowledge_base"),
    ("token_ids_digest", "digest", "token_ids_digest tokens_digest tokens_hash token_hash token_ids_hash prompt_hash "
     "prompt_digest prompt_sha input_hash"),
    ("token_ids_digest", "content", "tokens token_ids input_ids prompt_token_ids prefix_tokens prompt prompt_text "
     "messages"),
    ("prefix_digest", "digest", "prefix_digest prefix_hash cumulative_hash"),
    ("parent_digest", "digest", "parent_digest parent_hash parent_block_hash"),
    ("block_digest", "digest", "block_digest block_hash chunk_hash"),
    ("media_digest", "digest", "media_digest media_hash mm_hash mm_digest image_hash image_digest"),
    ("media_digest", "content", "image images image_bytes pixels pixel_values"),
    ("media_digest", "name", "image_id image_url media_id mm_uuid"),
    ("embedding_digest", "digest", "embedding_digest embeds_hash embeddings_hash"),
    ("embedding_digest", "content", "prompt_embeds inputs_embeds"),
    ("request_params_digest", "digest", "request_params_digest params_digest params_hash sampling_hash"),
    ("request_params_digest", "content", "params request_params sampling_params"),
    ("guardrail_digest", "digest", "guardrail_digest guardrails_hash guardrail_hash"),
    ("authz_revision", "value", "authz_revision acl_version permissions_version"),
    ("epoch", "value", "epoch cache_epoch"),
)  # fmt: skip

WORDS: dict[str, tuple[str, Form]] = {
    word: (dimension, form) for dimension, form, words in _TABLE for word in words.split()
}
"""Variable, attribute or field name -> the dimension it stands for, and in which form."""

CLIENT_CHOSEN = frozenset(
    {
        "cache_key", "prompt_cache_key", "request_id", "req_id", "conversation_id", "session_id", "idempotency_key",
        "mm_uuid", "media_id", "image_id", "image_url", "uuid",
    }
)  # fmt: skip
"""Names of what a requester usually writes itself."""
CLIENT_SENT = frozenset({"headers", "body", "json", "query_params", "query", "args", "form", "cookies", "payload"})
"""Containers that hold what a requester sent."""

HELPERS: dict[str, str] = {
    "digest_template": "template_digest", "digest_tools": "tool_schema_digest", "digest_token_ids": "token_ids_digest",
    "digest_corpus": "corpus_digest", "digest_weights": "weights_digest",
}  # fmt: skip
"""Functions of `kvtrail.schemas.digests` -> the dimension whose digest they make."""

_VERB = re.compile(r"^(?:_*(?:get|compute|make|calc|calculate|build|current|my|the|req|request|self|x)_)+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def look_up(name: str) -> tuple[str, Form] | None:
    """The dimension and form that a name stands for; None when it is unknown.

    `getModelName` is `model_name`, `X-Tenant-Id` is `tenant_id`.
    """
    word = _CAMEL.sub("_", name).replace("-", "_").lower().strip("_")
    return WORDS.get(word) or WORDS.get(_VERB.sub("", word))
