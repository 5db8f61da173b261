"""What each cause means for the people involved, and what to do now: one to three concrete steps.

Sentences are templates over `{requester}`, `{creator}`, `{key}`, `{store}`, `{dimensions}`, `{node}`, `{cause}`.
"""

from msgspec import Struct

from .incidents import IDENTITY_CAUSES


class Advice(Struct, frozen=True, kw_only=True):
    """`happened`: one sentence about the served entry. `steps`: in the order in which to do them.
    `served`: whether the cause by itself says that a request was answered from a wrong entry."""

    happened: str
    steps: tuple[str, ...]
    served: bool = True


_UNREACH = (
    "Put the wrong entries out of reach now, no restart needed: bump the epoch marker at the front of the prompt, "
    "or invalidate key {key} in store {store}."
)
_REKEY = (
    "Stop the cause: build the store key from every dimension, as PrefixKey(...).fingerprint() does; "
    "this key leaves out {dimensions}."
)
_AFFECTED = "Go through the answers that were given: `kvtrail findings --cause {cause} --json` lists the requests."
_INVALIDATE = "Invalidate key {key} in store {store}, and check that the outcome is done, not refused or partial."
_NODE = "Take {node} out of rotation until its store honours the end of an entry."

_IDENTITY = Advice(
    happened="{requester} was served an entry that was computed for something else: {dimensions} differ.",
    steps=(_UNREACH, _REKEY, _AFFECTED),
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
    "HIT_AFTER_EXPIRE": Advice(
        happened="{requester} was served an entry after it had expired.",
        steps=(_NODE, "Check that lookups and expiry use one index and one clock in store {store}."),
    ),
    "HIT_AFTER_INVALIDATE": Advice(
        happened="{requester} was served an entry after it had been invalidated.",
        steps=(
            _INVALIDATE,
            _NODE,
            "Check every tier and copy: an invalidation that leaves one out reports success and changes nothing.",
        ),
    ),
    "HIT_UNCOMMITTED": Advice(
        happened="{requester} was served an entry that was never completely written.",
        steps=(_INVALIDATE, "Make an entry visible only after its commit (write, sync, rename)."),
    ),
    "HIT_FAILED_ENTRY": Advice(
        happened="{requester} was served an entry whose write had failed.",
        steps=(_INVALIDATE, "Let a failed write remove the entry from the index before it is reported."),
    ),
    "STALE_HANDLE": Advice(
        happened="{requester} read a place that by then held another entry.",
        steps=(_NODE, "Check the generation of a place at every read, and hold a lease while a handle is in use."),
    ),
    "PAYLOAD_MISMATCH": Advice(
        happened="The bytes read for {requester} are not the bytes that were written.",
        steps=(_INVALIDATE, "Check the disk and the transfer path of {node}; verify the payload digest on every read."),
    ),
    "COMPONENT_MISMATCH": Advice(
        happened="{requester} was served parts that belong to different entries.",
        steps=(_INVALIDATE, "Commit the parts of an entry together, under one version."),
    ),
    "COMPONENT_MISSING": Advice(
        happened="{requester} was served an entry without all of its parts.",
        steps=(_INVALIDATE, "Treat an entry with a missing part as a miss."),
    ),
    "INCOMPLETE_ENTRY": Advice(
        happened="{requester} was served an entry whose generation had not finished.",
        steps=(_INVALIDATE, "Store a response only when it finished by itself."),
    ),
    "AGE_EXCEEDED": Advice(
        happened="{requester} was served an entry older than its maximum age.",
        steps=(_INVALIDATE, "Check whether hits renew the TTL beyond the maximum age."),
    ),
    "UNKNOWN_ENTRY": Advice(
        happened="{requester} was served from an entry that, as far as the complete history goes, does not exist.",
        steps=(_NODE, "Check whether every writer of store {store} publishes its creates."),
    ),
    "UNREPORTED_REUSE": Advice(
        happened="{requester} was told less reuse than there was.",
        steps=("Correct the accounting of reused tokens on {node}; bills may rest on it.",),
        served=False,
    ),
    "UNATTRIBUTED_HIT": Advice(
        happened="{requester} was served an entry whose creator is unknown: its history is incomplete.",
        steps=("Find the missing events; the hit is judged again when they arrive.",),
        served=False,
    ),
    "STREAM_GAP": Advice(
        happened="Events are missing in this stream; verdicts that rest on it are incomplete.",
        steps=("Check the producer named in the finding, its buffer and its broker.",),
        served=False,
    ),
    "KEY_CLIENT_CONTROLLED": Advice(
        happened="Clients choose this key: whoever guesses it can read or replace the entry.",
        steps=("Derive the key on the server, or put the tenant in front of what the client sends.",),
        served=False,
    ),
    "KEY_DRIFT": Advice(
        happened="Equal content has different keys on different nodes: reuse is lost.",
        steps=("Compare key function, hash seed and version between the nodes.",),
        served=False,
    ),
    "PREFIX_PROBING": Advice(
        happened="One principal tries prefixes that belong to others.",
        steps=("Rate-limit the principal and give the victim its own isolation domain.",),
        served=False,
    ),
    "INVALIDATE_FAILED": Advice(
        happened="An invalidation did not reach everything it covers.",
        steps=("Repeat it where it was refused, and watch for hits on what it covers until then.",),
        served=False,
    ),
    "ALLOWED_STALENESS": Advice(
        happened="{requester} was served an older entry, within the lag its policy accepts.",
        steps=("Nothing, unless the declared lag is wrong.",),
        served=False,
    ),
}

_LATENT = Advice(
    happened="Two live entries with different identities share key {key}: {dimensions} differ. No request has been "
    "served the wrong one yet.",
    steps=(_REKEY, _UNREACH),
    served=False,
)

_OTHER = Advice(
    happened="{requester} was served an entry that breaks a rule.",
    steps=(_INVALIDATE, "Read the rule's page, docs/rules, for what it needs to be true.", _AFFECTED),
)


def advice(cause: str, served: bool) -> Advice:
    """The advice for a cause; `served`: a request was answered (else the finding is about a create or a stream)."""
    known = _ADVICE.get(cause)
    if not served and (known is None or known.served):
        return _LATENT
    if known is not None:
        return known
    return _IDENTITY if cause in IDENTITY_CAUSES else _OTHER
