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
from msgspec import Raw

from .errors import BadInput, BrokenRun
from .events import Event
from .identity import Identity
from .identity_wire import IdentityReader
from .imperfect import decode_imperfect
from .reserved import check_tenant
from .wire import (
    MAX_EVENTS,
    SCHEMA_VERSION,
    Envelope,
    Extra,
    PlainEvent,
    Row,
    Scope,
    check_lane,
    check_tables,
    event_of,
    scope_of,
)
from .wire import Batch as Batch
from .wire import Reject as Reject

_IDENTITIES_KEPT = 65_536
_envelope = msgspec.json.Decoder(Envelope)
_encoder = msgspec.json.Encoder()


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
        self._reader = IdentityReader()

    def decode(self, raw: bytes) -> Batch:
        """The record's events and what was refused. Never raises for bad input: a `Reject` says what is wrong."""
        try:
            envelope = _envelope.decode(raw)
            if (
                envelope.v == SCHEMA_VERSION
                and 0 < envelope.last - envelope.first + 1 == len(envelope.events) <= MAX_EVENTS
            ):
                check_lane(envelope.node, envelope.incarnation, envelope.home, envelope.first)
                tables = len(envelope.strings), len(envelope.scopes), len(envelope.identities)
                check_tables(*tables, len(envelope.events))
                return self._resolve(envelope)
        except (msgspec.DecodeError, BadInput, IndexError):
            pass
        return decode_imperfect(raw, self._identity)

    def _resolve(self, envelope: Envelope) -> Batch:
        # The last row of each table is what index -1 means: none.
        identities = [*map(self._identity, envelope.identities), None]
        for identity in identities[:-1]:
            check_tenant(envelope.node, identity.tenant_id)  # type: ignore[union-attr]  # only the last is None
        strings = [*envelope.strings, ""]
        scopes = [scope_of(scope, strings) for scope in envelope.scopes]
        node, incarnation, home, t0 = envelope.node, envelope.incarnation, envelope.home, envelope.t0
        events: list[Event] = []
        for seq, row in enumerate(envelope.events, envelope.first):
            if row.scope < 0 or row.key < 0 or row.identity < -1 or row.request < -1:
                raise IndexError
            events.append(
                event_of(
                    node, incarnation, home, seq, t0 + row.dt, row, strings[row.key], scopes[row.scope],
                    identities[row.identity], strings[row.request],
                )
            )  # fmt: skip
        return Batch(
            node=node, incarnation=incarnation, home=home, first=envelope.first, last=envelope.last, events=events
        )

    def _identity(self, raw: Raw | bytes) -> Identity:
        packed = bytes(raw)
        identity = self._identities.get(packed)
        if identity is None:
            identity = self._reader.read(packed)
            if len(self._identities) >= _IDENTITIES_KEPT:
                self._identities.clear()
            self._identities[packed] = identity
        return identity
