"""What a rule must be told to speak: which events, dimensions, fields and facts.

`rule  need need ...`: all of them; `a|b` either. `d:` a dimension, `f:` a fact, `k:` a kind of entry, anything else one
of `TELLS`. A need behind `?` is of something that not every fleet has: without it there is nothing to find.
"""

from ...schemas.identity import DIMENSIONS
from .registry import RULES

TELLS: dict[str, str] = {
    "create": "creates", "hit": "hits", "expire": "expiries", "invalidate": "invalidations", "commit": "commits",
    "node_start": "starts of nodes", "created_payload": "payload digest or size on creates or commits",
    "read_payload": "payload digest, tokens or bytes as read on hits", "created_place": "place on creates",
    "read_place": "place on hits", "reported": "reuse as told to the client",
    "max_age": "maximum age on creates", "finish": "finish reason on creates of responses",
    "pending": "pending creates with their commits", "parts": "parts of entries",
    "parts_required": "parts that a request needs", "rederived": "key as its function gives it again, on creates",
    "client_keys": "keys chosen by clients", "nodes": "creates of a second node",
    "request": "request ids on hits", "ttl": "TTLs on creates", "version": "ordinal of the weights",
    "semantic": "fuzzy matches", "canary": "canaries", "spot_check": "spot checks", "bypass_diff": "bypass diffs",
    "isolation_probe": "isolation probes",
}  # fmt: skip
"""What events can tell beside identity -> how people say it."""

_CONTENT = "d:token_ids_digest|d:prefix_digest|d:template_digest|d:weights_digest|d:adapter_digest"
_TABLE = f"""
CROSS_TENANT_REUSE    hit create {_CONTENT}|d:isolation_domain
PRINCIPAL_SCOPE_REUSE hit create ?semantic d:principal
ALIAS_MOVED           hit create d:weights_digest|d:resolved_model ?f:alias
ALLOWED_STALENESS     hit create d:weights_digest ?f:policy ?version
KEY_UNDERSPECIFIED    create {_CONTENT}
KEY_MISMATCH          create rederived
KEY_CLIENT_CONTROLLED hit ?client_keys
KEY_DRIFT             create ?nodes d:token_ids_digest|d:prefix_digest
STALE_HANDLE          hit create created_place read_place
PAYLOAD_MISMATCH      hit create created_payload read_payload
COMPONENT_MISMATCH    hit create ?parts
COMPONENT_MISSING     hit ?parts parts_required
HIT_UNCOMMITTED       hit create pending
HIT_FAILED_ENTRY      hit create expire
HIT_AFTER_INVALIDATE  hit create invalidate|f:invalidation
INVALIDATE_FAILED     invalidate
STALE_EPOCH           hit create ?f:epoch d:epoch
HIT_AFTER_EXPIRE      hit create expire|node_start
AGE_EXCEEDED          hit create ?max_age
INCOMPLETE_ENTRY      create ?k:response finish
UNREPORTED_REUSE      reported
PREFIX_PROBING        hit create request d:token_ids_digest|d:prefix_digest d:parent_digest
PLACE_CONFLICT        create created_place
CACHING_FORBIDDEN     create ?f:policy
HIT_UNKNOWN_ENTRY     hit create node_start
UNATTRIBUTED_HIT      hit
STREAM_GAP            create|hit|expire
SEQUENCE_RESET        create|hit|expire
LATE_FACT             ?f:policy|f:epoch|f:invalidation|f:alias
CANARY_MISMATCH       ?canary
SPOT_CHECK_FAILED     ?spot_check
BYPASS_DIFF_IMPLICATED ?bypass_diff
ISOLATION_NOT_ENFORCED ?isolation_probe
CHECK_INCONCLUSIVE    ?canary|spot_check|bypass_diff|isolation_probe
RETENTION_TOO_SHORT   ?ttl|max_age
"""

Need = tuple[str, ...]
"""Any of these; the first starts with `?` where it is of something that not every fleet has."""


def _of_dimensions(rule: str) -> tuple[Need, ...]:
    """What a rule about dimensions needs: one of them, and an entry of a kind for which they matter."""
    names = [name for name, declared in DIMENSIONS.items() if declared.cause == rule]
    kinds = frozenset().union(*(DIMENSIONS[name].kinds for name in names))
    only: tuple[Need, ...] = ((f"?k:{next(iter(kinds))}",),) if len(kinds) == 1 else ()
    return (("hit",), ("create",), *only, tuple(f"d:{name}" for name in names))


def _parsed() -> dict[str, tuple[Need, ...]]:
    told = {words[0]: words[1:] for words in map(str.split, _TABLE.strip().splitlines())}
    found: dict[str, tuple[Need, ...]] = {}
    for rule in RULES:
        found[rule] = tuple(tuple(need.split("|")) for need in told[rule]) if rule in told else _of_dimensions(rule)
    return found


NEEDS = _parsed()
"""Rule id -> everything it must be told."""
