"""Who in a fleet usually knows what: the gateway the request, the engine the model, the store its bytes."""

_GATEWAY = frozenset(
    {
        "d:template_digest", "d:template_id", "d:tool_schema_digest", "d:corpus_digest", "d:principal",
        "d:isolation_domain", "d:guardrail_digest", "d:authz_revision", "d:request_params_digest", "d:tenant_id",
        "request", "d:epoch", "finish", "reported", "parts_required", "canary", "bypass_diff", "isolation_probe",
    }
)  # fmt: skip
_STORE = frozenset(
    {"created_payload", "read_payload", "created_place", "read_place", "pending", "rederived", "max_age", "spot_check"}
)


def who_knows(need: str) -> str:
    """Who would send it: `Your gateway`, `Your cache`, `Your engine`, `Your registry`."""
    if need in _GATEWAY:
        return "Your gateway"
    if need.startswith("f:"):
        return "Your registry"
    if need in _STORE:
        return "Your cache"
    return "Your engine"
