"""What goes wrong when a key leaves a dimension out, or holds only its name: one sentence each, for people."""

from ...schemas.identity import DIMENSIONS
from ..rules import RULES

MISSING: dict[str, str] = {
    "tenant_id": "Two tenants with otherwise equal keys are served each other's entries.",
    "model_id": "Entries of two models meet.",
    "weights_digest": "Entries computed by other weights are found: after a hot update, or when an alias moved.",
    "kv_dtype": "Tensors of one dtype are read as another.",
    "tokenizer_id": "The same token ids of another tokenizer mean other words.",
    "template_id": "Entries of two templates meet.",
    "template_digest": "What was computed from another wording is found.",
    "tool_schema_digest": "An entry made with other tools is found; a stored answer may call a tool nobody offered.",
    "token_ids_digest": "Any two prompts that agree in the rest of the key share one entry.",
    "adapter_digest": "Entries computed under another adapter are found.",
    "corpus_digest": "Answers from an older state of the corpus are found.",
    "media_digest": "Two pictures behind equal placeholder tokens share one entry.",
    "isolation_domain": "A request that asked for a barrier gets none from this key.",
}
"""Dimension -> what its absence invites."""
BY_NAME: dict[str, str] = {
    "weights_digest": "When the weights behind the name are updated, or the alias moves, what the old ones computed is "
    "still found.",
    "template_digest": "When the wording behind the name is edited without a new name, what the old wording made is "
    "still found.",
    "tool_schema_digest": "When a tool's schema changes under its name, what was made with the old one is still found.",
    "adapter_digest": "When the adapter is reloaded under its name, what the old one computed is still found.",
    "corpus_digest": "When the corpus behind the name is reindexed, old answers are still found.",
    "media_digest": "When other media come under the same name, the entry of the first is found.",
}
"""Digest dimension -> what happens when only its name is in the key and the content behind it moves on."""


def rule_of(dimension: str, by_name: bool = False) -> str:
    """The rule that names the failure."""
    if dimension == "weights_digest" and by_name:
        return "ALIAS_MOVED"
    return DIMENSIONS[dimension].cause


def case_of(rule: str) -> str:
    """The catalogue's first case of a rule."""
    known = RULES.get(rule)
    return known.positive[0] if known is not None and known.positive else ""
