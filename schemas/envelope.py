"""The envelope codec: one Kafka record, one contiguous run of one lane's events.

An envelope carries tables of strings, scopes and identities that its events refer to by index, since an inline
identity costs about 1.4 KB an event. A record that is one plain JSON event, its identity inline, is equally valid:
a producer in another language needs no library.

Decoding never fails as a whole because of one event: `Batch.rejects` names what was refused, `Batch.events` is the
rest, and the run `first`..`last` counts as seen either way.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from .dimensions import EntryKind
from .errors import (
    BadInput,
    BrokenRun,
    ForeignContent,
    InvalidField,
    NameInDigestPlace,
    UndecodableRecord,
    UnknownSchemaVersion,
)
from .events import BODIES, Body, Count, Event, KeyOrigin, Micros, Number, Text, Tier
from .identity import Identity
from .wording import choices, reworded

SCHEMA_VERSION = 1
MAX_EVENTS = 4096
_IDENTITIES_KEPT = 65_536


class Scope(Struct, frozen=True, array_like=True, gc=False):
    """What many events of an envelope share; strings by index."""

    store: int
    tier: Tier
    rank: Number
    copy: int
    key_origin: KeyOrigin
    kind: EntryKind
    part: int


class Extra(Struct, frozen=True, omit_defaults=True, gc=False):
    """Header fields that few events carry."""

    span: Text = ""
    entry_version: Text = ""
    place: Text = ""
    generation: Number | None = None
    trace_id: Text = ""


class Row(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One event: microseconds after the envelope's `t0`, indexes into its tables (-1: none), and the body."""

    dt: Micros
    scope: int
    key: int
    identity: int
    request: int
    body: Body
    extra: Extra | None = None


class Envelope(Struct, frozen=True, kw_only=True):
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


class _Loose(Struct, frozen=True, kw_only=True):
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


_envelope = msgspec.json.Decoder(Envelope)
_loose = msgspec.json.Decoder(_Loose)
_scope = msgspec.json.Decoder(Scope)
_row = msgspec.json.Decoder(Row)
_plain = msgspec.json.Decoder(PlainEvent)
_identity_map = msgspec.json.Decoder(dict[str, str])
_encoder = msgspec.json.Encoder()
_CHOICES = choices(*BODIES, PlainEvent)
_HEADER_FIELDS = frozenset(PlainEvent.__struct_fields__)
_BODY_FIELDS = frozenset(name for body in BODIES for name in body.__struct_fields__) | {"type"}
LONGEST_UNKNOWN = 256
"""Characters, or items, that a field of a newer producer may have."""


class EnvelopeEncoder:
    """Packs runs of events into envelopes; keeps the JSON of identities it has seen."""

    def __init__(self) -> None:
        self._identities: dict[Identity, Raw] = {}

    def encode(self, events: Sequence[Event]) -> bytes:
        """One lane's contiguous run as one record. Raises `BrokenRun` where it is none."""
        if not events:
            raise BrokenRun("an envelope needs at least one event.", field="events")
        head = events[0]
        strings: dict[str, int] = {}
        scopes: dict[tuple[Any, ...], int] = {}
        identities: dict[Identity, int] = {}
        rows: list[Row] = []
        for offset, event in enumerate(events):
            if event.seq != head.seq + offset or (event.node, event.incarnation, event.home) != (
                head.node,
                head.incarnation,
                head.home,
            ):
                raise BrokenRun("the events are not one lane's contiguous run.", field=f"events.{offset}.seq")
            scope = (event.store, event.tier, event.rank, event.copy, event.key_origin, event.kind, event.part)
            rows.append(
                Row(
                    event.time_us - head.time_us,
                    scopes.setdefault(scope, len(scopes)),
                    strings.setdefault(event.key, len(strings)),
                    -1 if event.identity is None else identities.setdefault(event.identity, len(identities)),
                    strings.setdefault(event.request_id, len(strings)) if event.request_id else -1,
                    event.body,
                    self._extra(event),
                )
            )
        packed = [
            Scope(
                strings.setdefault(store, len(strings)),
                tier,
                rank,
                strings.setdefault(copy, len(strings)),
                origin,
                kind,
                strings.setdefault(part, len(strings)),
            )
            for store, tier, rank, copy, origin, kind, part in scopes
        ]
        return _encoder.encode(
            Envelope(
                v=SCHEMA_VERSION,
                node=head.node,
                incarnation=head.incarnation,
                home=head.home,
                first=head.seq,
                last=events[-1].seq,
                t0=head.time_us,
                strings=list(strings),
                scopes=packed,
                identities=[self._raw(identity) for identity in identities],
                events=rows,
            )
        )

    def _raw(self, identity: Identity) -> Raw:
        raw = self._identities.get(identity)
        if raw is None:
            if len(self._identities) >= _IDENTITIES_KEPT:
                self._identities.clear()
            raw = self._identities[identity] = Raw(identity.canonical())
        return raw

    @staticmethod
    def _extra(event: Event) -> Extra | None:
        if event.span or event.entry_version or event.place or event.generation is not None or event.trace_id:
            return Extra(event.span, event.entry_version, event.place, event.generation, event.trace_id)
        return None


def encode_plain(event: Event) -> bytes:
    """One event as a plain JSON record, identity inline."""
    fields = {name: getattr(event, name) for name in Event.__struct_fields__ if name != "identity"}
    identity = event.identity.to_wire() if event.identity is not None else None
    return _encoder.encode(PlainEvent(v=SCHEMA_VERSION, identity=identity, **fields))


class EnvelopeDecoder:
    """Unpacks records; keeps the identities it has seen, so that each is validated once and shared."""

    def __init__(self) -> None:
        self._identities: dict[bytes, Identity] = {}

    def decode(self, raw: bytes) -> Batch:
        """The record's events and what was refused. Never raises for bad input: a `Reject` says what is wrong."""
        try:
            envelope = _envelope.decode(raw)
            if (
                envelope.v == SCHEMA_VERSION
                and 0 < envelope.last - envelope.first + 1 == len(envelope.events) <= MAX_EVENTS
            ):
                _check_lane(envelope.node, envelope.incarnation, envelope.home, envelope.first)
                return self._resolve(envelope)
        except (msgspec.DecodeError, BadInput, IndexError):
            pass
        return self._decode_slowly(raw)

    def _resolve(self, envelope: Envelope) -> Batch:
        # The last row of each table is what index -1 means: none.
        identities = [*map(self._identity, envelope.identities), None]
        strings = [*envelope.strings, ""]
        scopes = [self._scope(scope, strings) for scope in envelope.scopes]
        node, incarnation, home, t0 = envelope.node, envelope.incarnation, envelope.home, envelope.t0
        events: list[Event] = []
        for seq, row in enumerate(envelope.events, envelope.first):
            if row.scope < 0 or row.key < 0 or row.identity < -1 or row.request < -1:
                raise IndexError
            events.append(
                _event(
                    node, incarnation, home, seq, t0 + row.dt, row, strings[row.key], scopes[row.scope],
                    identities[row.identity], strings[row.request],
                )
            )  # fmt: skip
        return Batch(
            node=node, incarnation=incarnation, home=home, first=envelope.first, last=envelope.last, events=events
        )

    @staticmethod
    def _scope(scope: Scope, strings: list[str]) -> tuple[Any, ...]:
        if scope.store < 0 or scope.copy < 0 or scope.part < 0:
            raise IndexError
        return (
            strings[scope.store], scope.tier, scope.rank, strings[scope.copy], scope.key_origin, scope.kind,
            strings[scope.part],
        )  # fmt: skip

    def _identity(self, raw: Raw | bytes) -> Identity:
        packed = bytes(raw)
        identity = self._identities.get(packed)
        if identity is None:
            identity = Identity.from_wire(_identity_map.decode(packed))
            if len(self._identities) >= _IDENTITIES_KEPT:
                self._identities.clear()
            self._identities[packed] = identity
        return identity

    def _decode_slowly(self, raw: bytes) -> Batch:
        try:
            shape = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            return _refused(UndecodableRecord("is not JSON.", field="record", remedy="Send UTF-8 JSON."))
        except RecursionError:
            return _refused(UndecodableRecord("is nested too deeply.", field="record", remedy="Flatten it."))
        if not isinstance(shape, dict):
            return _refused(UndecodableRecord("is not a JSON object.", field="record", remedy="Send an object."))
        version = shape.get("v")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            return _refused(
                UnknownSchemaVersion(
                    "is missing." if version is None else "is not known here.",
                    field="v",
                    remedy=f"Send version {SCHEMA_VERSION}, or upgrade this worker.",
                )
            )
        if "events" in shape:
            return self._loose(raw)
        content = _foreign_content(shape)
        return _refused(content) if content is not None else self._plain(raw)

    def _plain(self, raw: bytes) -> Batch:
        try:
            plain = _plain.decode(raw)
        except msgspec.ValidationError as error:
            return _refused(_field_error(error))
        batch = Batch(node=plain.node, incarnation=plain.incarnation, home=plain.home, first=plain.seq, last=plain.seq)
        try:
            _check_lane(plain.node, plain.incarnation, plain.home, plain.seq)
            identity = None if plain.identity is None else Identity.from_wire(plain.identity)
            fields = {name: getattr(plain, name) for name in Event.__struct_fields__ if name != "identity"}
            batch.events.append(Event(identity=identity, **fields))
        except BadInput as error:
            batch.rejects.append(Reject(error=error, seq=plain.seq, index=0))
        return batch

    def _loose(self, raw: bytes) -> Batch:
        try:
            loose = _loose.decode(raw)
            _check_lane(loose.node, loose.incarnation, loose.home, loose.first)
        except msgspec.ValidationError as error:
            return _refused(_field_error(error))
        except BadInput as error:
            return _refused(error)
        batch = Batch(node=loose.node, incarnation=loose.incarnation, home=loose.home)
        if loose.last - loose.first + 1 != len(loose.events) or not loose.events:
            batch.rejects.append(
                Reject(
                    error=BrokenRun(
                        f"announces a run that is not the {len(loose.events)} events it holds.",
                        field="last",
                        remedy="Send each lane's events as one contiguous run, first to last.",
                    )
                )
            )
            return batch
        if len(loose.events) > MAX_EVENTS:
            batch.rejects.append(
                Reject(
                    error=BrokenRun(
                        "holds too many events.", field="events", remedy=f"Send at most {MAX_EVENTS} a record."
                    )
                )
            )
            return batch
        batch.first, batch.last = loose.first, loose.last
        for index, packed in enumerate(loose.events):
            try:
                batch.events.append(self._loose_event(loose, index, packed))
            except BadInput as error:
                batch.rejects.append(Reject(error=error, seq=loose.first + index, index=index))
        return batch

    def _loose_event(self, loose: _Loose, index: int, packed: Raw) -> Event:
        where = f"events.{index}"
        try:
            row = _row.decode(packed)
        except msgspec.ValidationError as error:
            raise _field_error(error).at(where) from None
        try:
            if row.scope < 0 or row.key < 0 or row.identity < -1 or row.request < -1:
                raise IndexError
            strings = [*loose.strings, ""]
            scope = self._scope(_scope.decode(loose.scopes[row.scope]), loose.strings)
            key, request = loose.strings[row.key], strings[row.request]
            packed_identity = None if row.identity == -1 else loose.identities[row.identity]
        except msgspec.ValidationError as error:
            raise _field_error(error, Scope).at(f"{where}.scope") from None
        except IndexError:
            raise InvalidField(
                "refers to a table row that is not there.", field=where, remedy="Send the tables it refers to."
            ) from None
        identity = None
        if packed_identity is not None:
            try:
                identity = self._identity(packed_identity)
            except msgspec.DecodeError:
                raise InvalidField(
                    "is not a map of strings.", field=f"{where}.identity", remedy="Send dimension names and text."
                ) from None
            except BadInput as error:
                raise error.at(f"{where}.identity") from None
        return _event(
            loose.node, loose.incarnation, loose.home, loose.first + index, loose.t0 + row.dt, row, key, scope,
            identity, request,
        )  # fmt: skip


def _event(
    node: str, incarnation: str, home: str, seq: int, time_us: int, row: Row, key: str, scope: tuple[Any, ...],
    identity: Identity | None, request: str,
) -> Event:  # fmt: skip
    store, tier, rank, copy, origin, kind, part = scope
    extra = row.extra
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


def _check_lane(node: str, incarnation: str, home: str, seq: int) -> None:
    for field, value in (("node", node), ("incarnation", incarnation), ("home", home)):
        if not value:
            raise InvalidField("is empty.", field=field, remedy="Name the lane the event belongs to.")
    if not home.startswith(("n:", "s:")):
        raise InvalidField("is no home.", field="home", remedy="Send n:<owner node> or s:<store>:<slot>.")
    if seq < 1:
        raise InvalidField("does not start at 1.", field="seq", remedy="Count 1, 2, 3 ... inside each lane.")


def _foreign_content(shape: dict[str, Any]) -> BadInput | None:
    """A field that is not known here and holds text or numbers at length: a prompt or its tokens, not a new field."""
    body = shape.get("body")
    for where, values, known in (
        ("", shape, _HEADER_FIELDS), ("body.", body if isinstance(body, dict) else {}, _BODY_FIELDS)
    ):  # fmt: skip
        for name, value in values.items():
            if name not in known and isinstance(value, str | list) and len(value) > LONGEST_UNKNOWN:
                return ForeignContent(
                    "a field that is not known here holds content at length.",
                    field=where.rstrip(".") or "record",
                    remedy="Send digests: prompts and tokens never enter an event.",
                )
    return None


def _refused(error: BadInput) -> Batch:
    return Batch(rejects=[Reject(error=error)])


def _field_error(error: msgspec.ValidationError, row: type[Struct] = Row) -> BadInput:
    message, field = reworded(error, _CHOICES, row)
    if field.endswith("_digest") and "matching regex" in message:
        return NameInDigestPlace(
            "holds a name or a label, not a digest of content.",
            field=field,
            remedy="Send lower-case hex of at least 64 bits.",
        )
    return InvalidField(message, field=field, remedy="See docs/reference/event.schema.json.")
