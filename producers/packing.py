"""One record of a run of items: their envelope's rows and tables made at once, without an `Event` in between.

This is what the sender spends its time on, and its time is the engine's: both share an interpreter. So items are turned
into columns, and each column is looked at by the interpreter's own C code: what is the same in all of them is looked up
once a record, the JSON of an identity is made once an object, and a body that many events share is read back once.
Nothing is made here by the thousand that the garbage collector counts: it would stop the engine to walk all it has.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Raw

from ..schemas.events import LONGEST_TEXT, Lookups
from ..schemas.identity import Identity
from ..schemas.reserved import HEARTBEAT_NODE, is_reserved
from ..schemas.wire import SCHEMA_VERSION, Envelope, Extra, Scope
from .buffer import NOTHING, Item, columns

_IDENTITIES_KEPT = 8_192
_BODY = itemgetter(5)


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
        times, bodies, keys, identities, stores, tiers, _owners, requests, hows, mores = columns(items)
        at_scope, scopes = _numbered(stores, tiers, hows)
        texts = dict.fromkeys(keys)
        texts.update(dict.fromkeys(requests))
        for store, _, (_, copy, _, _, part) in scopes:
            texts.update(((store, None), (copy, None), (part, None)))
        if list(map(type, texts)).count(str) < len(texts):  # bytes would be written as Base64 text
            raise Unpackable
        if max(map(len, texts)) > LONGEST_TEXT:  # before it is written: the interpreter would stand still meanwhile
            raise Unpackable
        at = dict(zip(texts, range(len(texts)), strict=True))
        at_identity, table = self._identity_table(identities)
        at_request = {**at, "": -1} if "" in at else at
        t0 = times[0] // 1000
        since = t0 * 1000
        after = [(time_ns - since) // 1000 for time_ns in times]
        of_rows: list[Iterable[Any]] = [
            after,
            at_scope,
            map(at.__getitem__, keys),
            at_identity,
            map(at_request.__getitem__, requests),
            bodies,
        ]
        is_plain = mores.count(NOTHING) == len(items)
        if not is_plain:
            of_rows.append(map(_extra, mores))
        envelope = {
            "v": SCHEMA_VERSION,
            "node": self._node,
            "incarnation": self._incarnation,
            "home": home,
            "first": first,
            "last": first + len(items) - 1,
            "t0": t0,
            "strings": list(texts),
            "scopes": [
                Scope(at[store], tier, rank, at[copy], origin, kind, at[part])
                for store, tier, (rank, copy, origin, kind, part) in scopes
            ],
            "identities": table,
            "events": (rows := list(zip(*of_rows))),  # noqa: B905  # a repeated column has no end
        }
        record = self._encoder.encode(envelope)
        different = dict(zip(map(id, bodies), rows, strict=True)).values()
        if Lookups in set(map(type, map(_BODY, different))):
            self._check_lookups(bodies)
        whole = 2 * len(different) > len(items) or not is_plain or list(map(type, after)).count(int) < len(items)
        if whole:
            self._reader.decode(record)
        else:
            self._read_parts(envelope, list(different), after)
        return record

    def _read_parts(self, envelope: dict[str, Any], rows: list[Any], after: list[int]) -> None:
        """What reading the record back would find, where `rows` hold each body that is in it: no value twice."""
        times = sorted(after)  # nearly is, and then costs less than asking for both ends
        ends = [(at, *rows[0][1:]) for at in (times[0], times[-1])]
        self._reader.decode(self._encoder.encode({**envelope, "strings": [], "identities": [], "events": rows + ends}))

    def _check_lookups(self, bodies: list[Any]) -> None:
        for body in bodies:
            for count in body.counts if isinstance(body, Lookups) else ():
                if is_reserved(count.tenant_id) is not (self._node == HEARTBEAT_NODE):
                    raise Unpackable

    def _identity_table(self, identities: list[Any]) -> tuple[Iterable[int], list[Raw]]:
        """Each item's place in the table of identities (-1: none), and the table."""
        numbers: dict[bytes, int] = {}
        places: dict[int, int] = {}
        ids = list(map(id, identities))
        for identity in dict(zip(ids, identities, strict=True)).values():
            place = -1 if identity is None else numbers.setdefault(self._json(identity), len(numbers))
            places[id(identity)] = place
        return map(places.__getitem__, ids), list(map(Raw, numbers))

    def _json(self, identity: Identity) -> bytes:
        kept = self._identities.get(id(identity))
        if kept is None:
            if not isinstance(identity, Identity):
                raise Unpackable
            if is_reserved(identity.tenant_id) is not (self._node == HEARTBEAT_NODE):
                raise Unpackable
            if len(self._identities) >= _IDENTITIES_KEPT:
                self._identities.clear()
            kept = self._identities[id(identity)] = (identity, identity.canonical())
        return kept[1]


def _numbered(*columns: list[Any]) -> tuple[Iterable[int], list[tuple[Any, ...]]]:
    """The different rows of these columns, and which one each row is."""
    if all(column.count(column[0]) == len(column) for column in columns):
        return repeat(0), [tuple(column[0] for column in columns)]
    rows = list(zip(*columns, strict=True))
    numbers = dict.fromkeys(rows)
    numbers.update(zip(numbers, range(len(numbers)), strict=True))
    return map(numbers.__getitem__, rows), list(numbers)  # type: ignore[arg-type]  # every number has been set


def _extra(more: tuple[Any, ...]) -> Extra | None:
    if more == NOTHING:
        return None
    span, version, place, _, trace = more
    if not (type(span) is type(version) is type(place) is type(trace) is str):  # bytes would become Base64 text
        raise Unpackable
    return Extra(*more)
