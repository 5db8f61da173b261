"""Findings: one judged violation each, with cause, severity and evidence, in numbered revisions."""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from .dimensions import Severity
from .errors import InvalidField, UndecodableRecord
from .wording import choices, reworded


class Party(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One side of a finding: the creator of an entry, or the requester that was served from it."""

    event_id: str = ""
    time_us: int = 0
    tenant_id: str = ""
    request_id: str = ""
    node: str = ""
    identity: dict[str, str] = {}


class Difference(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One dimension on which creator and requester disagree."""

    dimension: str
    created: str = ""
    requested: str = ""


class Finding(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One revision of one finding.

    `id` comes from the subject (one event; or the lane, namespace or pair the finding is about), never from the
    rule, so that a better rule revises a finding and does not add one. `cause_id` groups the findings of one root
    cause into an incident. `complete` is false when the verdict rests on a history with gaps. `facts` and
    `evidence` are ids of the facts and events it used. `judged_from_us` is the time of the subject event.
    """

    id: str
    revision: int
    status: Literal["open", "retracted"]
    rule: str
    cause: str
    severity: Severity
    title: str
    deployment: str = ""
    cause_id: str = ""
    dimension: str = ""
    subject: str = ""
    event_time_us: int = 0
    store: str = ""
    tier: str = ""
    home: str = ""
    key: str = ""
    key_origin: str = ""
    kind: str = ""
    creator: Party | None = None
    requester: Party | None = None
    differing: tuple[Difference, ...] = ()
    reused_tokens: int = 0
    complete: bool = True
    facts: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    reason: str = ""
    v: int = 1


_decoder = msgspec.json.Decoder(Finding)
_CHOICES = choices(Finding, Party, Difference)


def finding_id(subject: str) -> str:
    """The id of the finding about `subject`: 32 hex digits, the same live, replayed or re-run."""
    return hashlib.sha256(f"finding\n{subject}".encode()).hexdigest()[:32]


def cause_id(deployment: str, store: str, cause: str, dimension: str) -> str:
    """The id of the incident that findings with this root cause belong to."""
    return hashlib.sha256("\n".join(("cause", deployment, store, cause, dimension)).encode()).hexdigest()[:32]


def precedence(finding: Finding) -> tuple[int, int, tuple[int, ...]]:
    """Of the revisions of one finding the one with the greatest is current: the highest number, then the earliest
    event, then the least text. The store's order (`store/finding_queries.py:NEWEST`) is the same."""
    return finding.revision, -finding.event_time_us, tuple(-byte for byte in encode_finding(finding))


def encode_finding(finding: Finding) -> bytes:
    """The finding as JSON, as it stands on `kvtrail.findings`."""
    return msgspec.json.encode(finding)


def decode_finding(raw: bytes) -> Finding:
    """A finding from its JSON. Raises `UndecodableRecord` or `InvalidField`."""
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        message, field = reworded(error, _CHOICES, Finding)
        raise InvalidField(
            message, field=f"finding.{field}".rstrip("."), remedy="See docs/reference/finding.schema.json."
        ) from None
    except msgspec.DecodeError:
        raise UndecodableRecord("is not JSON.", field="finding", remedy="Send one JSON object a record.") from None
