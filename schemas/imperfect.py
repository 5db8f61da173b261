"""Records that are not whole: which events of them can be had, and what was wrong with the others."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from .errors import (
    BadInput,
    BrokenRun,
    ForeignContent,
    InvalidField,
    NameInDigestPlace,
    UndecodableRecord,
    UnknownSchemaVersion,
)
from .events import BODIES, Event, Lookups
from .foreign import known, known_body, known_row, known_scope
from .identity import Identity
from .reserved import check_tenant
from .wire import (
    MAX_EVENTS,
    SCHEMA_VERSION,
    Batch,
    LooseEnvelope,
    PlainEvent,
    Reject,
    Row,
    Scope,
    check_lane,
    check_lookups,
    check_tables,
    event_of,
    scope_of,
)
from .wording import choices, reworded

_loose = msgspec.json.Decoder(LooseEnvelope)
_scope = msgspec.json.Decoder(Scope)
_row = msgspec.json.Decoder(Row)
_plain = msgspec.json.Decoder(PlainEvent)
_CHOICES = choices(*BODIES, PlainEvent)
_PLAIN_FIELDS = frozenset(PlainEvent.__struct_fields__)
_ENVELOPE_FIELDS = frozenset(LooseEnvelope.__struct_fields__)


def decode_imperfect(raw: bytes, identity_of: Callable[[Raw], Identity]) -> Batch:
    """What can be had of a record that the fast path refused. `identity_of` validates and shares identities.

    Never raises for bad input: a `Reject` says what is wrong.
    """
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
    try:
        if "events" in shape:
            known(shape, _ENVELOPE_FIELDS, "record")
            return _events(raw, identity_of)
        plain = known(shape, _PLAIN_FIELDS, "record")
        return _plain_event(plain | {"body": known_body(plain["body"])} if "body" in plain else plain)
    except ForeignContent as error:
        return _refused(error)


def _plain_event(shape: dict[str, Any]) -> Batch:
    try:
        plain = _plain.decode(msgspec.json.encode(shape))
    except msgspec.ValidationError as error:
        return _refused(_field_error(error))
    batch = Batch(node=plain.node, incarnation=plain.incarnation, home=plain.home, first=plain.seq, last=plain.seq)
    try:
        check_lane(plain.node, plain.incarnation, plain.home, plain.seq)
        identity = None if plain.identity is None else Identity.from_wire(plain.identity)
        if identity is not None:
            check_tenant(plain.node, identity.tenant_id)
        if isinstance(plain.body, Lookups):
            check_lookups(plain.node, plain.body)
        fields = {name: getattr(plain, name) for name in Event.__struct_fields__ if name != "identity"}
        batch.events.append(Event(identity=identity, **fields))
    except BadInput as error:
        batch.rejects.append(Reject(error=error, seq=plain.seq, index=0))
    return batch


def _events(raw: bytes, identity_of: Callable[[Raw], Identity]) -> Batch:
    try:
        loose = _loose.decode(raw)
        check_lane(loose.node, loose.incarnation, loose.home, loose.first)
        tables = len(loose.strings), len(loose.scopes), len(loose.identities)
        if loose.events:
            check_tables(*tables, len(loose.events))
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
                error=BrokenRun("holds too many events.", field="events", remedy=f"Send at most {MAX_EVENTS} a record.")
            )
        )
        return batch
    batch.first, batch.last = loose.first, loose.last
    for index, packed in enumerate(loose.events):
        try:
            batch.events.append(_event(loose, index, packed, identity_of))
        except BadInput as error:
            batch.rejects.append(Reject(error=error, seq=loose.first + index, index=index))
    return batch


def _event(loose: LooseEnvelope, index: int, packed: Raw, identity_of: Callable[[Raw], Identity]) -> Event:
    where = f"events.{index}"
    try:
        row = _row.decode(msgspec.json.encode(known_row(msgspec.json.decode(packed))))
    except msgspec.ValidationError as error:
        raise _field_error(error).at(where) from None
    except ForeignContent as error:
        raise error.at(where) from None
    try:
        if row.scope < 0 or row.key < 0 or row.identity < -1 or row.request < -1:
            raise IndexError
        strings = [*loose.strings, ""]
        packed_scope = msgspec.json.encode(known_scope(msgspec.json.decode(loose.scopes[row.scope])))
        scope = scope_of(_scope.decode(packed_scope), loose.strings)
        key, request = loose.strings[row.key], strings[row.request]
        packed_identity = None if row.identity == -1 else loose.identities[row.identity]
    except msgspec.ValidationError as error:
        raise _field_error(error, Scope).at(f"{where}.scope") from None
    except ForeignContent as error:
        raise error.at(where) from None
    except IndexError:
        raise InvalidField(
            "refers to a table row that is not there.", field=where, remedy="Send the tables it refers to."
        ) from None
    identity = None
    if packed_identity is not None:
        try:
            identity = identity_of(packed_identity)
            check_tenant(loose.node, identity.tenant_id, "tenant_id")
        except msgspec.DecodeError:
            raise InvalidField(
                "is not a map of strings.", field=f"{where}.identity", remedy="Send dimension names and text."
            ) from None
        except BadInput as error:
            raise error.at(f"{where}.identity") from None
    try:
        return event_of(
            loose.node, loose.incarnation, loose.home, loose.first + index, loose.t0 + row.dt, row, key, scope,
            identity, request,
        )  # fmt: skip
    except BadInput as error:
        raise error.at(where) from None


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
