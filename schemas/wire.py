"""The shapes of a record on the wire, and what a decoded one becomes."""

from typing import Any

from msgspec import Raw, Struct

from .dimensions import EntryKind
from .errors import BadInput, ForeignContent, InvalidField
from .events import LONGEST_TEXT, Body, Count, Event, KeyOrigin, Lookups, Micros, Number, Text, Tier
from .identity import Identity
from .reserved import check_node, check_tenant

SCHEMA_VERSION = 1
MAX_EVENTS = 4096


class Scope(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What many events of an envelope share; strings by index."""

    store: int
    tier: Tier
    rank: Number
    copy: int
    key_origin: KeyOrigin
    kind: EntryKind
    part: int


class Extra(Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """Header fields that few events carry."""

    span: Text = ""
    entry_version: Text = ""
    place: Text = ""
    generation: Number | None = None
    trace_id: Text = ""


class Row(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """One event: microseconds after the envelope's `t0`, indexes into its tables (-1: none), and the body."""

    dt: Micros
    scope: int
    key: int
    identity: int
    request: int
    body: Body
    extra: Extra | None = None


class Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record as it stands on `kvtrail.lifecycle`."""

    v: int
    node: str
    incarnation: str
    home: str
    first: Count
    last: Count
    t0: Micros
    strings: list[Text]
    scopes: list[Scope]
    identities: list[Raw]
    events: list[Row]


class LooseEnvelope(Struct, frozen=True, kw_only=True):
    """An envelope of which some events may be bad; and what a broken one can still say about itself."""

    v: int
    node: str
    incarnation: str
    home: str
    first: Count
    last: Count
    t0: Micros = 0
    strings: list[Text] = []
    scopes: list[Raw] = []
    identities: list[Raw] = []
    events: list[Raw] = []


class PlainEvent(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One event as plain JSON, identity inline. The fields are those of `Event`."""

    v: int
    node: str
    incarnation: str
    home: str
    seq: Count
    time_us: Micros
    body: Body
    store: Text = ""
    tier: Tier = "gpu"
    rank: Number = 0
    copy: Text = ""
    key: Text = ""
    key_origin: KeyOrigin = "derived"
    kind: EntryKind = "kv"
    part: Text = ""
    span: Text = ""
    entry_version: Text = ""
    place: Text = ""
    generation: Number | None = None
    request_id: Text = ""
    trace_id: Text = ""
    identity: dict[str, str] | None = None


class Reject(Struct, frozen=True, kw_only=True):
    """One refused event (`seq` set), or a refused record (`seq` None), with the error that names the field."""

    error: BadInput
    seq: int | None = None
    index: int | None = None


class Batch(Struct, kw_only=True):
    """One decoded record. `first`..`last` is the run it announced; None where it could not be read."""

    node: str = ""
    incarnation: str = ""
    home: str = ""
    first: int | None = None
    last: int | None = None
    events: list[Event] = []
    rejects: list[Reject] = []


def check_tables(strings: int, scopes: int, identities: int, events: int) -> None:
    """Raises `ForeignContent` where an envelope's tables hold more than its events can refer to."""
    for field, rows, most in (("strings", strings, 6), ("scopes", scopes, 1), ("identities", identities, 1)):
        if rows > most * events:
            raise ForeignContent(
                "has rows that no event refers to.", field=field, remedy="Send only what the record's events refer to."
            )


def scope_of(scope: Scope, strings: list[str]) -> tuple[Any, ...]:
    """A scope with its strings looked up. Raises `IndexError` for a row that is not there."""
    if scope.store < 0 or scope.copy < 0 or scope.part < 0:
        raise IndexError
    return (
        strings[scope.store], scope.tier, scope.rank, strings[scope.copy], scope.key_origin, scope.kind,
        strings[scope.part],
    )  # fmt: skip


def event_of(
    node: str, incarnation: str, home: str, seq: int, time_us: int, row: Row, key: str, scope: tuple[Any, ...],
    identity: Identity | None, request: str,
) -> Event:  # fmt: skip
    """One row as an event, its tables' entries already looked up. Raises `InvalidField` for counts of a tenant that is
    not for this node."""
    store, tier, rank, copy, origin, kind, part = scope
    extra = row.extra
    if type(row.body) is Lookups:
        check_lookups(node, row.body)
    if extra is None:
        return Event(
            node=node, incarnation=incarnation, home=home, seq=seq, time_us=time_us, body=row.body, store=store,
            tier=tier, rank=rank, copy=copy, key=key, key_origin=origin, kind=kind, part=part, request_id=request,
            identity=identity,
        )  # fmt: skip
    return Event(
        node=node, incarnation=incarnation, home=home, seq=seq, time_us=time_us, body=row.body, store=store,
        tier=tier, rank=rank, copy=copy, key=key, key_origin=origin, kind=kind, part=part, request_id=request,
        identity=identity, span=extra.span, entry_version=extra.entry_version, place=extra.place,
        generation=extra.generation, trace_id=extra.trace_id,
    )  # fmt: skip


def check_lookups(node: str, body: Lookups) -> None:
    """Raises `InvalidField` where a node counts lookups of a tenant that is not for it."""
    for index, count in enumerate(body.counts):
        check_tenant(node, count.tenant_id, f"body.counts.{index}.tenant_id")


def check_lane(node: str, incarnation: str, home: str, seq: int) -> None:
    """Raises `InvalidField` where this names no lane or no place in one."""
    for field, value in (("node", node), ("incarnation", incarnation), ("home", home)):
        if not value:
            raise InvalidField("is empty.", field=field, remedy="Name the lane the event belongs to.")
        if len(value) > LONGEST_TEXT:
            raise InvalidField("is too long.", field=field, remedy=f"Use at most {LONGEST_TEXT} characters.")
    if not home.startswith(("n:", "s:")):
        raise InvalidField("is no home.", field="home", remedy="Send n:<owner node> or s:<store>:<slot>.")
    check_node(node, home)
    if seq < 1:
        raise InvalidField("does not start at 1.", field="seq", remedy="Count 1, 2, 3 ... inside each lane.")
