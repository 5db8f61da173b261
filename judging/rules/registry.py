"""What a person needs to know about each cause: why it matters and what to do first."""

from dataclasses import dataclass
from typing import Literal

from ...schemas.dimensions import Severity
from .cases import CASES

Family = Literal[
    "identity", "isolation", "life cycle", "storage", "stream completeness", "freshness", "policy", "behaviour",
    "checks",
]  # fmt: skip
FAMILIES: dict[Family, str] = {
    "identity": "What was served is not what was asked for.",
    "isolation": "It was not made for whoever got it.",
    "life cycle": "It was served before it could be read, or after it had ended.",
    "storage": "What was read is not what was written under this key.",
    "freshness": "It was right once, and is too old or was never whole.",
    "policy": "Somebody declared what may be cached, shared or served, and it was not kept.",
    "behaviour": "One event says nothing; many of them do.",
    "checks": "Somebody tried it out: an active check of the cache failed, or came to no result.",
    "stream completeness": "What kvtrail was told is not the whole story, so its verdicts are not either.",
}
"""Family -> what its rules have in common, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Metadata of one cause. `severity` is the base: conditions only raise it.

    `positive`: cases in which it is found. `negative`: look-alikes in which it is not. A case is a file of the
    catalogue (`K26`), one event of it (`K26@n1:2`), or a test, where the scenario format cannot say it.
    """

    id: str
    family: Family
    title: str
    severity: Severity
    why: str
    first_steps: tuple[str, ...]
    references: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()


_INFO, _LOW, _MEDIUM, _HIGH, _CRITICAL = Severity
_KEY = "Add the differing dimensions to the store key; PrefixKey.fingerprint() covers all of them."
_DROP = "Invalidate the entry, and every other entry with the same cause."


def _rule(id: str, family: Family, severity: Severity, title: str, why: str, *steps: str, see: str = "") -> Rule:
    return Rule(
        id=id,
        family=family,
        title=title,
        severity=severity,
        why=why,
        first_steps=steps,
        references=tuple(f"https://github.com/{ref}" if "://" not in ref else ref for ref in see.split()),
        positive=CASES.get(id, ((), ()))[0],
        negative=CASES.get(id, ((), ()))[1],
    )


_ALL = (
    _rule(
        "CROSS_TENANT_REUSE", "isolation", _HIGH, "An entry crossed a tenant or isolation boundary",
        "A tenant was served computation made for another one: its words, its policies, its data. Critical where the "
        "content differs or the match was fuzzy; high where identical content crossed a declared barrier.",
        "List everyone touched: `kvtrail investigate --key KEY`.", _DROP, _KEY,
        "For a fuzzy cache, partition by tenant: distance is no barrier.",
        see="vllm-project/semantic-router/issues/2134 sgl-project/sglang/issues/37160",
    ),
    _rule(
        "PRINCIPAL_SCOPE_REUSE", "isolation", _HIGH, "A private answer was served to another principal",
        "Inside one tenant, an answer made for one user was given to another by a fuzzy match.",
        "Partition the cache by principal, or store the answer without one if it is meant for the whole tenant.",
        see="wso2/api-platform/issues/733",
    ),
    _rule(
        "WEIGHTS_MISMATCH", "identity", _HIGH, "The entry was computed by other weights",
        "KV of one model is noise to another; an answer of one model is not the other's.",
        _DROP, "Tie the cache's epoch to the weights digest, and bump it with every weights update.",
        see="InternLM/lmdeploy/issues/4917",
    ),
    _rule(
        "ALIAS_MOVED", "identity", _HIGH, "The model alias moved and the entry stayed",
        "The key holds the name the client sent, not what it resolved to.",
        "Resolve the alias before the key is made and put the weights digest into the key.", _DROP,
        see="dtzp555-max/ocp/pull/194",
    ),
    _rule(
        "ALLOWED_STALENESS", "policy", _INFO, "Older weights, within the declared lag",
        "The tenant's policy accepts entries this many weights versions old.", "Nothing, while the lag is intended.",
        see="PrimeIntellect-ai/prime-rl/pull/2266",
    ),
    _rule(
        "ADAPTER_MISMATCH", "identity", _HIGH, "The entry was computed under another adapter",
        "Adapter weights change every KV value after the position where they apply.",
        "Key on the adapter's digest and scale, not its name.", _DROP,
        see="vllm-project/vllm/issues/42125 vllm-project/vllm/issues/44250",
    ),
    _rule(
        "KV_FORMAT_MISMATCH", "identity", _HIGH, "The stored tensors have another format",
        "Bytes of one dtype, layout, geometry or scale are read as another.",
        "Put KV dtype, layout, geometry and scales into the storage key.", _DROP,
        see="sgl-project/sglang/issues/33268",
    ),
    _rule(
        "TOKENIZER_MISMATCH", "identity", _HIGH, "The entry was made with another tokenizer",
        "The same token ids mean other words.", "Put the tokenizer's digest into the key.", _DROP,
    ),
    _rule(
        "TEMPLATE_MISMATCH", "identity", _MEDIUM, "The entry was made from another rendering of the template",
        "The template changed behind its name, and what was computed from the old wording is still found.",
        "Key on the digest of the rendered template.", "Bump the epoch now to make the old entries unreachable.",
        see="dathere/qsv/issues/4538",
    ),
    _rule(
        "TOOLS_MISMATCH", "identity", _HIGH, "The entry was made with other tools",
        "A stored answer may call a tool that this requester never offered.",
        "Key on the canonical digest of the tool list.", _DROP, see="BetterDB-inc/monitor/pull/233",
    ),
    _rule(
        "CORPUS_MISMATCH", "freshness", _MEDIUM, "The answer comes from another state of the corpus",
        "The index changed; high where content that was removed is still answered.",
        "Key on the corpus digest, or invalidate when the index changes.", see="HKUDS/LightRAG/issues/755",
    ),
    _rule(
        "MM_MISMATCH", "identity", _HIGH, "The entry describes other media",
        "Placeholder tokens are equal for every picture: only the media digest tells them apart.",
        "Key on the full digest of the decoded media with geometry and preprocessing.", _DROP,
        see="LMCache/LMCache/issues/3301 vllm-project/vllm/issues/55547",
    ),
    _rule(
        "PARAMS_MISMATCH", "identity", _HIGH, "The answer was generated with other request parameters",
        "Length limits, response formats and sampling parameters shape the answer.",
        "Key responses on the digest of every output-shaping parameter.",
    ),
    _rule(
        "GUARDRAIL_MISMATCH", "policy", _HIGH, "The answer passed another guardrail chain",
        "It was checked by rules that are not the requester's, or not the current ones.",
        "Key responses on the guardrail chain's digest, or check again when serving.",
    ),
    _rule(
        "AUTHZ_MISMATCH", "policy", _HIGH, "The answer was made under another authorization revision",
        "It may hold what the requester may no longer see.",
        "Key responses on the authorization revision, or invalidate when rights change.",
    ),
    _rule(
        "KEY_COLLISION", "identity", _HIGH, "One key stands for different input",
        "The key is weaker than the content behind it: a short hash, a missing parent, an input channel left out.",
        _KEY, "Compare tokens after a hash match, or use SHA-256 over the whole prefix.", _DROP,
        see="vllm-project/vllm/pull/12621 vllm-project/aibrix/issues/2329 vllm-project/vllm/issues/56655",
    ),
    _rule(
        "KEY_UNDERSPECIFIED", "identity", _INFO, "Different entries live under one key",
        "No harm yet: the next hit may get the wrong one.", _KEY,
    ),
    _rule(
        "KEY_MISMATCH", "identity", _MEDIUM, "An entry was filed under a key that its identity does not give",
        "Whoever looks that key up will be served something else.", "Find out who wrote it; invalidate it.",
    ),
    _rule(
        "KEY_CLIENT_CONTROLLED", "identity", _MEDIUM, "Clients choose the keys of this namespace",
        "A key that the requester writes proves nothing about content: two clients can choose the same one.",
        "Derive the key from content, or prefix it with the tenant.", see="vllm-project/vllm/issues/55547",
    ),
    _rule(
        "KEY_DRIFT", "behaviour", _LOW, "Two nodes give the same content different keys",
        "Writes continue and nothing is ever found: a random hash seed, or two key functions.",
        "Fix the hash seed on every node; compare the nodes' versions.", see="LMCache/LMCache/issues/1139",
    ),
    _rule(
        "STALE_HANDLE", "storage", _HIGH, "Read through a handle whose place has a new owner",
        "The bytes that were read belong to whatever lives there now.",
        "Check the generation before and after the read.", "Make the lease longer than the longest hold.",
        see="vllm-project/vllm/issues/52234",
    ),
    _rule(
        "PAYLOAD_MISMATCH", "storage", _HIGH, "What was read is not what was stored",
        "A torn file, a short load or another entry's bytes: every dimension of the key is right.",
        "Verify size and digest when reading; publish files atomically.", "Take the node's tier out of service.",
        see="https://openai.com/blog/march-20-chatgpt-outage raullenchai/Rapid-MLX/pull/187",
    ),
    _rule(
        "COMPONENT_MISMATCH", "storage", _HIGH, "One part of a multi-part entry is foreign",
        "Attention KV and recurrent state come from different requests, or cover different tokens.",
        "Key and check every part; give up the reuse when one does not match.",
        see="vllm-project/tpu-inference/pull/3412",
    ),
    _rule(
        "COMPONENT_MISSING", "storage", _HIGH, "One part of a multi-part entry was missing",
        "One part was reused while another that it needs was not there.",
        "Treat a hit as the smallest span that every part covers.", see="vllm-project/vllm/issues/43090",
    ),
    _rule(
        "HIT_UNCOMMITTED", "life cycle", _HIGH, "Served before it was written",
        "An entry was visible before its bytes existed, or after its write was aborted.",
        "Register keys after the write; retract them on abort.", see="vllm-project/vllm/pull/43569",
    ),
    _rule(
        "HIT_FAILED_ENTRY", "life cycle", _HIGH, "Served although its write had failed",
        "The key stayed in the index when the store failed.", "Remove the key when a store or load fails.",
        see="LMCache/LMCache/issues/4991",
    ),
    _rule(
        "HIT_AFTER_INVALIDATE", "life cycle", _HIGH, "Served after it had been invalidated",
        "The invalidation was acknowledged and not done, or did not reach this tier.",
        "Repeat the invalidation and check with `kvtrail investigate --key KEY`.", "Bump the epoch.",
        see="vllm-project/vllm-omni/issues/6739",
    ),
    _rule(
        "INVALIDATE_FAILED", "life cycle", _MEDIUM, "An invalidation was refused or incomplete",
        "Entries that somebody wanted gone are still served.", "Repeat it when the entries are not in use.",
        see="vllm-project/vllm/pull/12284",
    ),
    _rule(
        "STALE_EPOCH", "life cycle", _HIGH, "Served across a bumped epoch",
        "The epoch was bumped to make older entries unreachable, and one was reached.",
        "Put the epoch at the front of the prefix or into the key.",
    ),
    _rule(
        "HIT_AFTER_EXPIRE", "life cycle", _HIGH, "Served after it had ended",
        "It had expired, been evicted or released, or its node had restarted. Medium where only its TTL had passed.",
        "Check how the reader learns of evictions; fail the late read instead of logging it.",
        see="ai-dynamo/dynamo/pull/11190 vllm-project/vllm/issues/52234",
    ),
    _rule(
        "AGE_EXCEEDED", "freshness", _MEDIUM, "Older than its declared maximum",
        "A lifetime that each hit renews never ends.", "Enforce the absolute age, not only the sliding TTL.",
        see="redis/redis-vl-python/issues/603",
    ),
    _rule(
        "INCOMPLETE_ENTRY", "freshness", _LOW, "An unfinished response was stored",
        "Every hit repeats the fragment as if it were the answer.", "Store only after an accepted finish reason.",
        see="gonka-ai/gonka/issues/1722",
    ),
    _rule(
        "UNREPORTED_REUSE", "behaviour", _HIGH, "More was reused than was reported",
        "State that nobody accounts for reached this request.", "Find the restore that emits no hit.",
        see="ggml-org/llama.cpp/issues/27148",
    ),
    _rule(
        "PREFIX_PROBING", "behaviour", _MEDIUM, "One principal walks along another tenant's prefixes",
        "Each request reaches a little further into entries it did not create: a guessing attack on their content.",
        "Give the victim a private isolation domain.", "Look at the principal's requests.",
    ),
    _rule(
        "PLACE_CONFLICT", "storage", _MEDIUM, "Two live entries in one place",
        "One of them has been overwritten, and its key still leads there.",
        "Check that the place is released before it is given away.",
    ),
    _rule(
        "CACHING_FORBIDDEN", "policy", _MEDIUM, "Cached for a tenant that must not be cached",
        "The tenant's policy switches caching off.", "Invalidate the entry; make the engine honour the policy.",
    ),
    _rule(
        "HIT_UNKNOWN_ENTRY", "stream completeness", _HIGH, "Served an entry that nobody created",
        "The history is complete and holds no create for it: a ghost, or a write path that reports nothing.",
        "Look at the node's other hits; check that every write path publishes.",
    ),
    _rule(
        "UNATTRIBUTED_HIT", "stream completeness", _LOW, "Nobody knows yet who created this entry",
        "Events are missing, or the store was filled before kvtrail watched it. Judged again when they arrive.",
        "Close the gap: `kvtrail findings --cause STREAM_GAP`.", see="llm-d/llm-d-router/issues/1737",
    ),
    _rule(
        "STREAM_GAP", "stream completeness", _MEDIUM, "Events are missing",
        "Numbers of a lane were skipped: verdicts of this home are incomplete until they arrive.",
        "Look at the node's publisher: buffer, spool, crash.", see="ai-dynamo/dynamo/pull/14167",
    ),
    _rule(
        "SEQUENCE_RESET", "stream completeness", _MEDIUM,
        "A producer counts from the start again without a new incarnation",
        "Its events cannot be told from redelivered ones and are dropped.",
        "Give every process start an incarnation of its own.",
    ),
    _rule(
        "LATE_FACT", "stream completeness", _INFO, "A fact arrived after events that it governs",
        "Verdicts in between rest on what was known then.", "Judge the named range again.",
    ),
    _rule(
        "CANARY_MISMATCH", "checks", _CRITICAL, "An answer shows a canary that is not the requester's",
        "The marker sits inside the cached prefix, so whoever's marker is shown, their prefix was read. Markers are "
        "made under a secret: nobody shows another's by chance.",
        "See which entry it was: `kvtrail investigate REQUEST`.", _DROP,
        "If the entry's history looks right, the markers or their secret are mixed up: check the assembler.",
    ),
    _rule(
        "SPOT_CHECK_FAILED", "checks", _HIGH, "The entry is not what these tokens and weights give",
        "A few positions were computed again from the requester's own tokens, and the stored tensors are others. "
        "Critical where another tenant or isolation domain had made the entry.",
        _DROP,
        "Compare identities: `kvtrail investigate --key KEY`. Where they are equal, the bytes are at fault: take the "
        "tier out of service.",
    ),
    _rule(
        "BYPASS_DIFF_IMPLICATED", "checks", _HIGH, "The answer depends on whether the cache is used",
        "With reuse the same request is answered materially differently than without, and control runs without "
        "reuse agree with each other. Critical where another tenant or isolation domain had made the entry.",
        "See what was served: `kvtrail investigate REQUEST`.", _DROP,
    ),
    _rule(
        "ISOLATION_NOT_ENFORCED", "checks", _MEDIUM, "A probe reused what another tenant had made",
        "An identical prefix was found across a boundary where nothing should have been. High where the boundary is "
        "declared, critical where the content differs too.",
        "Check that salt, namespace or tenant is part of the key on every way into the engine.",
        "Repeat the probe afterwards: it is small and safe.",
    ),
    _rule(
        "CHECK_INCONCLUSIVE", "checks", _LOW, "A check comes to no result, time after time",
        "Nothing is proved, neither way: what the check should watch goes unwatched.",
        "Read the checks' details: `kvtrail events tail` or `kvtrail investigate REQUEST`.",
    ),
    _rule(
        "RETENTION_TOO_SHORT", "policy", _MEDIUM, "Entries may outlive what is kept about them",
        "A create's TTL or maximum age is longer than retention outlasts: a late hit on it could not be explained. "
        "Raised by the sink, from what producers send.",
        "Raise retention.events_days and retention.evidence_days, or lower the TTL; `kvtrail config check` shows both.",
    ),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.id: rule for rule in _ALL}
"""Every cause a finding can name."""
