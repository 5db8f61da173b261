"""What is told about incidents, to whom, and with what success: the records of `kvtrail.notifications`.

A webhook receives a `Notification` as its JSON body. `id` is the same however often it is delivered: whoever receives
one twice drops the second.
"""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from .dimensions import Severity
from .errors import InvalidField, UndecodableRecord
from .wording import reworded

TENANTS_NAMED = 50
"""At most so many tenants are named; `tenant_count` says how many there are."""

PIPELINE_SILENT = "PIPELINE_SILENT"
"""The cause that is no finding: the heartbeat has not been found."""

Kind = Literal["opened", "grown", "resolved"]


class Notification(Struct, frozen=True, kw_only=True):
    """What became of one incident.

    `cause_id` is the incident; an `episode` is one time it was open, counted from 1; `revision` counts what was told in
    an episode, from 1. `findings` counts those that stand, at or above the severity that pages; `since_us`: when the
    episode was opened; `first_us`, `last_us`: of the events behind it. `example` is the id of its first finding, for
    `kvtrail investigate --finding`. `previous_severity`: where this one raised it. `reason`: why it is told now.
    """

    id: str
    kind: Kind
    deployment: str
    cause_id: str
    episode: int
    revision: int
    at_us: int
    since_us: int
    cause: str
    severity: Severity
    title: str
    reason: str
    dimension: str = ""
    store: str = ""
    findings: int = 0
    tenants: tuple[str, ...] = ()
    tenant_count: int = 0
    keys: int = 0
    first_us: int = 0
    last_us: int = 0
    example: str = ""
    previous_severity: Severity | None = None
    v: int = 1

    @property
    def order(self) -> tuple[int, int]:
        """Later is greater, within one incident."""
        return self.episode, self.revision

    @property
    def is_open(self) -> bool:
        """Whether the incident still stands."""
        return self.kind != "resolved"


class Decided(Struct, tag="decided", frozen=True, kw_only=True):
    """Something is to be told, to these targets."""

    notification: Notification
    targets: tuple[str, ...]


class Attempt(Struct, tag="attempt", frozen=True, kw_only=True):
    """One attempt to deliver a notification to one target. `code`: the HTTP status, 0 where there was no answer.

    `failed` is tried again; `gave_up`: the target will never take this one; `superseded`: nobody needed to be told any
    more before it was first tried.
    """

    id: str
    target: str
    attempt: int
    at_us: int
    status: Literal["delivered", "failed", "gave_up", "superseded"]
    cause_id: str
    episode: int
    revision: int
    code: int = 0
    took_ms: int = 0
    detail: str = ""


Entry = Decided | Attempt
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def notification_id(deployment: str, cause_id: str, episode: int, revision: int) -> str:
    """32 hex digits, the same however often the notification is derived."""
    text = "\n".join(("notification", deployment, cause_id, str(episode), str(revision)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def encode_entry(entry: Entry) -> bytes:
    """The entry as JSON, as it stands on `kvtrail.notifications`."""
    return msgspec.json.encode(entry)


def decode_entry(raw: bytes) -> Entry:
    """An entry from its JSON. Raises `UndecodableRecord` or `InvalidField`."""
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        message, field = reworded(error, {}, Attempt)
        raise InvalidField(
            message, field=f"notification.{field}".rstrip("."), remedy="See docs/reference/notification.schema.json."
        ) from None
    except msgspec.DecodeError:
        raise UndecodableRecord("is not JSON.", field="notification", remedy="Send one JSON object a record.") from None
