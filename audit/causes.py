"""What each cause is called, what it means for the people involved, and what to do now: one to three steps.

Sentences here are templates over `{requester}`, `{creator}`, `{key}`, `{store}`, `{dimensions}`, `{node}`,
`{cause}`. Causes without steps of their own get the rule's, behind the one that contains the damage.
"""

from msgspec import Struct

from ..judging.rules import RULES
from ..schemas.findings import Finding
from ..schemas.identity import DIMENSIONS

IDENTITY_CAUSES = frozenset({declared.cause for declared in DIMENSIONS.values()} | {"ALIAS_MOVED"})
"""Causes that say that a key does not cover a dimension."""
GAP_CAUSES = frozenset({"STREAM_GAP", "SEQUENCE_RESET"})
"""Causes that say that events are missing: a history beside one is incomplete."""
HARMLESS = GAP_CAUSES | {
    "UNATTRIBUTED_HIT", "UNREPORTED_REUSE", "ALLOWED_STALENESS", "KEY_CLIENT_CONTROLLED", "KEY_DRIFT",
    "KEY_UNDERSPECIFIED", "KEY_MISMATCH", "PLACE_CONFLICT", "CACHING_FORBIDDEN", "PREFIX_PROBING",
    "INVALIDATE_FAILED", "LATE_FACT", "RETENTION_TOO_SHORT", "ISOLATION_NOT_ENFORCED", "CHECK_INCONCLUSIVE",
}  # fmt: skip
"""Causes that do not say by themselves that a request was answered from a wrong entry."""

_NAMES = {
    "CROSS_TENANT_REUSE": "cross-tenant reuse",
    "PRINCIPAL_SCOPE_REUSE": "reuse across principals",
    "TEMPLATE_MISMATCH": "stale template",
    "MM_MISMATCH": "media mismatch",
    "KV_FORMAT_MISMATCH": "KV format mismatch",
    "AUTHZ_MISMATCH": "authorization mismatch",
    "PARAMS_MISMATCH": "request parameters mismatch",
    "HIT_AFTER_EXPIRE": "hit after expiry",
    "HIT_AFTER_INVALIDATE": "hit after invalidation",
    "HIT_UNCOMMITTED": "hit on an uncommitted entry",
    "HIT_FAILED_ENTRY": "hit on a failed entry",
    "HIT_UNKNOWN_ENTRY": "hit on an unknown entry",
    "KEY_UNDERSPECIFIED": "underspecified key",
    "KEY_CLIENT_CONTROLLED": "client-controlled key",
    "SPOT_CHECK_FAILED": "failed spot check",
    "BYPASS_DIFF_IMPLICATED": "answer that depends on the cache",
    "ISOLATION_NOT_ENFORCED": "isolation not enforced",
    "CHECK_INCONCLUSIVE": "checks without a result",
}


class Advice(Struct, frozen=True, kw_only=True):
    """`happened`: one sentence. `steps`: in the order in which to do them."""

    happened: str
    steps: tuple[str, ...] = ()


_UNREACH = (
    "Put the wrong entries out of reach now, no restart needed: bump the epoch marker at the front of the prompt, "
    "or invalidate key {key} in store {store}."
)
_REKEY = (
    "Stop the cause: build the store key from every dimension, as PrefixKey(...).fingerprint() does; "
    "this key leaves out {dimensions}."
)
_AFFECTED = "Go through the answers that were given: `kvtrail findings --cause {cause} --json` lists the requests."
_SEE_KEY = "See whether the key or the bytes are at fault, and whom else it reached: `kvtrail investigate --key KEY`."
_INVALIDATE = "Invalidate key {key} in store {store}, and check that the outcome is done, not refused or partial."
_MOST_STEPS = 3

_IDENTITY = Advice(
    happened="{requester} was served an entry that was computed for something else: {dimensions} differ.",
    steps=(_UNREACH, _REKEY, _AFFECTED),
)
_LATENT = Advice(
    happened="Different live entries share key {key}: {dimensions} differ. No request is known to have been served "
    "the wrong one yet.",
    steps=(_REKEY, _UNREACH),
)
_ADVICE: dict[str, Advice] = {
    "CROSS_TENANT_REUSE": Advice(
        happened="{requester} was served an entry that belongs to {creator}.",
        steps=(
            _UNREACH,
            _REKEY,
            "Tell the owners of {requester} and {creator} what crossed between them: "
            "`kvtrail findings --cause {cause} --json` lists every request.",
        ),
    ),
    "PRINCIPAL_SCOPE_REUSE": Advice(
        happened="{requester} was served an entry that belongs to another principal.",
        steps=(_UNREACH, "Make the principal part of the key, or store such entries as tenant-wide.", _AFFECTED),
    ),
    "TEMPLATE_MISMATCH": Advice(
        happened="{requester} was answered from another wording of the template than the request asked for.",
        steps=(
            _UNREACH,
            "Stop the cause: put the digest of the rendered template into the key, not its name or version "
            "(digest_template, or PrefixKey(...).fingerprint()).",
            _AFFECTED,
        ),
    ),
    "CORPUS_MISMATCH": Advice(
        happened="{requester} was answered from another state of the corpus than the request asked for.",
        steps=(_UNREACH, "Put the corpus digest (document ids with revisions) into the key.", _AFFECTED),
    ),
    "ALIAS_MOVED": Advice(
        happened="{requester} was served an entry computed with the weights the model's name meant before.",
        steps=(_UNREACH, "Resolve a model's name to the digest of its weights before the key is built.", _AFFECTED),
    ),
    "STALE_EPOCH": Advice(
        happened="{requester} was served an entry from before an epoch bump that should have put it out of reach.",
        steps=(
            "Find the prompt assembler that still sends the old epoch (node: {node}) and let it read the new one.",
            _INVALIDATE,
        ),
    ),
    "HIT_AFTER_EXPIRE": Advice(happened="{requester} was served an entry after it had ended."),
    "HIT_AFTER_INVALIDATE": Advice(happened="{requester} was served an entry after it had been invalidated."),
    "HIT_UNCOMMITTED": Advice(happened="{requester} was served an entry that was never completely written."),
    "HIT_FAILED_ENTRY": Advice(happened="{requester} was served an entry whose write had failed."),
    "HIT_UNKNOWN_ENTRY": Advice(
        happened="{requester} was served from an entry that, as far as the complete history goes, nobody created."
    ),
    "STALE_HANDLE": Advice(happened="{requester} read a place that by then held another entry."),
    "PAYLOAD_MISMATCH": Advice(happened="The bytes read for {requester} are not the bytes that were written."),
    "COMPONENT_MISMATCH": Advice(happened="{requester} was served parts that belong to different entries."),
    "COMPONENT_MISSING": Advice(happened="{requester} was served an entry without all of its parts."),
    "INCOMPLETE_ENTRY": Advice(happened="{requester} was served an answer that had not been finished."),
    "AGE_EXCEEDED": Advice(happened="{requester} was served an entry older than its maximum age."),
    "KEY_UNDERSPECIFIED": _LATENT,
    "CANARY_MISMATCH": Advice(
        happened="The answer to {requester} shows the canary of {creator}: entry {key} in store {store} is not theirs.",
        steps=(_UNREACH, _SEE_KEY, _AFFECTED),
    ),
    "SPOT_CHECK_FAILED": Advice(
        happened="Computed again, entry {key} in store {store} is not what the tokens and weights of {requester} give.",
        steps=(_INVALIDATE, _SEE_KEY, _AFFECTED),
    ),
    "BYPASS_DIFF_IMPLICATED": Advice(
        happened="{requester} is answered differently with and without the cache, and entry {key} is the difference.",
        steps=(_INVALIDATE, _SEE_KEY, _AFFECTED),
    ),
}


def cause_name(finding: Finding) -> str:
    """A cause as people call it: `cross-tenant reuse`."""
    return name_of(finding.cause)


def name_of(cause: str) -> str:
    """`CROSS_TENANT_REUSE` as people say it."""
    return _NAMES.get(cause, cause.replace("_", " ").lower())


def advice(cause: str, served: bool) -> Advice:
    """The advice for a cause; `served`: a request was answered (else the finding is about a create or a stream)."""
    known = _ADVICE.get(cause)
    rule = RULES.get(cause)
    if not served and known is not _LATENT:
        if cause in IDENTITY_CAUSES:
            return _LATENT
        told = rule.why if rule is not None else "A rule was broken; no request is known to have been served wrongly."
        return Advice(happened=_literal(told), steps=_steps(rule.first_steps if rule is not None else ()))
    if known is not None and known.steps:
        return known
    if cause in IDENTITY_CAUSES:
        return _IDENTITY
    happened = known.happened if known is not None else "{requester} was served an entry that breaks a rule."
    return Advice(happened=happened, steps=_steps(rule.first_steps if rule is not None else (), _INVALIDATE))


def _steps(of_rule: tuple[str, ...], first: str = "") -> tuple[str, ...]:
    """The rule's steps behind `first`; one that only repeats it in general words is left out."""
    steps = [first] if first else []
    steps += [_literal(step) for step in of_rule if not (first and step.startswith("Invalidate the entry"))]
    return tuple(steps[:_MOST_STEPS]) or ("Read the rule's page, docs/rules, for what it needs to be true.",)


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
