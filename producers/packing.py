"""One record of a run of items: their envelope's rows and tables made at once, without an `Event` in between.

This is what the sender spends its time on, and its time is the engine's: both share an interpreter. So the JSON of an
identity is made once an object, strings and scopes are looked up once an event, and only a string that is new to the
envelope is looked at twice.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ..schemas.identity import Identity
from ..schemas.reserved import HEARTBEAT_NODE, is_reserved
from ..schemas.wire import SCHEMA_VERSION, Envelope, Extra, Row, Scope
from .buffer import Item

_IDENTITIES_KEPT = 8_192


class Unpackable(Exception):
    """One of the items is no event. Which one, and why, is found by looking at each alone."""


class Writer:
    """Writes records of one publisher; keeps the JSON of the identities it has been given."""

    def __init__(self, node: str, incarnation: str) -> None:
        self._node = node
        self._incarnation = incarnation
        self._encoder = msgspec.json.Encoder()
        self._reader = msgspec.json.Decoder(Envelope)
        # The identity is kept beside its JSON, so that its id is not given to another object.
        self._identities: dict[int, tuple[Identity, bytes]] = {}

    def write(self, home: str, first: int, items: Sequence[Item]) -> bytes:
        """The items as the run of a lane that begins at `first`, read back as a reader will.

        Raises `Unpackable`, or what the values themselves raise, where one of the items is no event.
        """
        strings: dict[str, int] = {}
        scopes: dict[tuple[Any, ...], int] = {}
        table: dict[bytes, int] = {}
        places: dict[int, int] = {}
        rows: list[Row] = []
        t0 = items[0][0] // 1000
        for (
            time_ns, body, key, identity, store, tier, _owner, rank, copy, origin, kind, part, span, version, place,
            generation, request_id, trace_id,
        ) in items:  # fmt: skip
            scope_tuple = (store, tier, rank, copy, origin, kind, part)
            scope = scopes.get(scope_tuple)
            if scope is None:
                scope = scopes[scope_tuple] = len(scopes)
            at = strings.get(key)
            if at is None:
                at = _new(strings, key)
            who = -1
            if identity is not None:
                found = places.get(id(identity))
                who = self._place(identity, table, places) if found is None else found
            request = -1
            if request_id != "":
                request = strings.get(request_id, -1)
                if request < 0:
                    request = _new(strings, request_id)
            extra = None
            if span or version or place != "" or generation is not None or trace_id:
                if type(place) is not str:
                    raise Unpackable
                extra = Extra(span, version, place, generation, trace_id)
            rows.append(Row(time_ns // 1000 - t0, scope, at, who, request, body, extra))
        packed = [
            Scope(_index(strings, store), tier, rank, _index(strings, copy), origin, kind, _index(strings, part))
            for store, tier, rank, copy, origin, kind, part in scopes
        ]
        record = self._encoder.encode(
            Envelope(
                v=SCHEMA_VERSION,
                node=self._node,
                incarnation=self._incarnation,
                home=home,
                first=first,
                last=first + len(items) - 1,
                t0=t0,
                strings=list(strings),
                scopes=packed,
                identities=[Raw(raw) for raw in table],
                events=rows,
            )
        )
        self._reader.decode(record)
        return record

    def _place(self, identity: Identity, table: dict[bytes, int], places: dict[int, int]) -> int:
        kept = self._identities.get(id(identity))
        if kept is None:
            if not isinstance(identity, Identity):
                raise Unpackable
            if is_reserved(identity.tenant_id) is not (self._node == HEARTBEAT_NODE):
                raise Unpackable
            if len(self._identities) >= _IDENTITIES_KEPT:
                self._identities.clear()
            kept = self._identities[id(identity)] = (identity, identity.canonical())
        place = places[id(identity)] = table.setdefault(kept[1], len(table))
        return place


def _new(strings: dict[str, int], text: str) -> int:
    if type(text) is not str:  # bytes would be written as Base64 text
        raise Unpackable
    at = strings[text] = len(strings)
    return at


def _index(strings: dict[str, int], text: str) -> int:
    at = strings.get(text)
    return _new(strings, text) if at is None else at
