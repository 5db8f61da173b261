"""A judge's exact state as bytes, and back. What is derived (memoised comparisons, indexes) is left out.

Orders need more than 64 bits and travel as two numbers. Rows are listed once and referred to by number, since an
address and a place can hold the same one.
"""

from collections.abc import Iterator
from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec

from ..schemas.envelope import EnvelopeDecoder, encode_plain
from ..schemas.errors import BadInput
from ..schemas.findings import Finding
from .errors import SnapshotError
from .interning import Packed, Who
from .ledger.barriers import Barrier
from .ledger.home import Held, Home
from .ledger.lanes import Incarnations, Lane
from .ledger.rows import NOTHING_RARE, Mark, Profile, Rare, Row, Scope

if TYPE_CHECKING:
    from .judge import Judge

VERSION = 1
_LOW = (1 << 64) - 1
_findings = msgspec.msgpack.Decoder(list[Finding])


def dump(judge: "Judge") -> bytes:
    """The exact state: what `restore` gives back judges the future as this one would."""
    state = {
        "v": VERSION,
        "identities": judge.identities.values,
        "coverage": [judge.comparator.compared, judge.comparator.covered],
        "compared": [[*pair, comparison.hits] for pair, comparison in judge.comparator.memo.items()],
        "lanes": [_lane(lane) for lane in judge.lanes],
        "homes": [_home(home) for home in judge.homes.values()],
        "position": judge.position,
        "counts": judge.counts,
        "stream": [judge.stream.newest_us, judge.stream.facts_until_us, list(judge.stream.stated.items())],
        "standing": msgspec.msgpack.encode(list(judge.revisions.standing.values())),
    }
    return msgspec.msgpack.encode(state)


def restore(judge: "Judge", raw: bytes) -> "Judge":
    """Fill a new judge from a snapshot. Raises `SnapshotError`."""
    try:
        state = msgspec.msgpack.decode(raw)
        version = state["v"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise SnapshotError("is damaged.", field="snapshot", remedy="Rebuild the state from the log.") from None
    if version != VERSION:
        raise SnapshotError("is of another version.", field="snapshot.v", remedy="Rebuild the state from the log.")
    try:
        _restore(judge, state)
    except (KeyError, IndexError, TypeError, ValueError, BadInput, msgspec.DecodeError) as error:
        raise SnapshotError("is damaged.", field="snapshot", remedy="Rebuild the state from the log.") from error
    return judge


def _restore(judge: "Judge", state: Any) -> None:
    for shared in state["identities"]:
        judge.identities.number(tuple(shared))
    judge.comparator.compared, judge.comparator.covered = state["coverage"]
    for creator, requester, kind, mode, end, variant, principal, hits in state["compared"]:
        variant = variant if isinstance(variant, int) else tuple(variant)
        judge.comparator.of((creator, requester, kind, mode, end, variant, principal)).hits = hits
    for index, packed in enumerate(state["lanes"]):
        lane = Lane(index, *packed[:5])
        lane.last_us, lane.blind, lane.gap_us, lost, lane.runs = packed[5:]
        lane.lost = [(first, last) for first, last in lost]
        judge.lanes.append(lane)
    for packed in state["homes"]:
        home = _unpack_home(judge, packed)
        judge.homes[home.name] = home
    judge.position = state["position"]
    judge.counts = state["counts"]
    judge.stream.newest_us, judge.stream.facts_until_us, stated = state["stream"]
    for index, (gaps, revealed) in stated:
        judge.stream.stated[index] = tuple((first, last) for first, last in gaps), revealed
    judge.revisions.standing = {finding.id: finding for finding in _findings.decode(state["standing"])}


def _lane(lane: Lane) -> list[Any]:
    return [
        lane.node, lane.incarnation, lane.home, lane.ordinal, lane.first_us, lane.last_us, lane.blind, lane.gap_us,
        lane.lost, lane.runs,
    ]  # fmt: skip


def _home(home: Home) -> dict[str, Any]:
    rows = _Rows(home)
    held = {id(one): number for number, one in enumerate(_live(home))}
    return {
        "name": home.name,
        "nodes": [[lane.index for lane in incarnations.lanes] for incarnations in home.nodes.values()],
        "barriers": [
            [*_split(b.order), b.time_us, b.event_id, b.restart, sorted(b.survivors), b.store, b.where]
            for b in home.barriers.all
        ],
        "scopes": list(rows.scopes),
        "rows": [rows.pack(row) for row in rows.rows],
        "addresses": [
            [rows.number(row) for row in ([found] if isinstance(found, Row) else found)]
            for table in home.addresses.tables.values()
            for found in table.values()
        ],
        "orphans": [[s, k, [_mark(mark) for mark in marks]] for (s, k), marks in home.addresses.orphans.items()],
        "doubts": [[s, k, [_mark(mark) for mark in marks]] for (s, k), marks in home.addresses.doubts.items()],
        "ended": [[ended, s, k] for ended, (s, k) in home.addresses.ended],
        "places": [
            [s, place, [rows.number(row) for row in owners]] for (s, place), owners in home.places.owners.items()
        ],
        "gapped": list(home.gapped),
        "held": [_pack_held(one) for one in _live(home)],
        "recent": [held[id(one)] if id(one) in held else _pack_held(one) for one in home.recent],
        "requests": [
            [request, [held[id(one)] for one in parts if id(one) in held]] for request, parts in home.requests.items()
        ],
        "born_empty": home.born_empty,
    }


def _pack_held(one: Held) -> list[Any]:
    at = [*_split(one.order), one.append_us, one.lane.index]
    who = [one.who.identity, one.who.mask, one.who.own, one.who.principal]
    return [encode_plain(one.event), *at, *who, one.unmatched, one.clean]


def _live(home: Home) -> Iterator[Held]:
    return (one for one in home.held_order if not one.gone)


class _Rows:
    """Every row that a home's addresses and places hold, numbered."""

    def __init__(self, home: Home) -> None:
        self.rows: list[Row] = []
        self.scopes: dict[Scope, int] = {}
        self._numbers: dict[int, int] = {}
        for row in home.addresses:
            self._add(row)
        for owners in home.places.owners.values():
            for row in owners:
                self._add(row)

    def _add(self, row: Row) -> None:
        if id(row) not in self._numbers:
            self._numbers[id(row)] = len(self.rows)
            self.rows.append(row)
            self.scopes.setdefault(row.scope, len(self.scopes))

    def number(self, row: Row) -> int:
        return self._numbers[id(row)]

    def pack(self, row: Row) -> list[Any]:
        return [
            *_split(row.order), row.lane.index, row.time_us, row.identity, row.mask, row.own, row.principal,
            self.scopes[row.scope], row.key, row.kind, row.origin, row.tokens, row.bytes, row.packed, row.request_id,
            _mark(row.end), _rare(row.rare),
        ]  # fmt: skip


def _split(order: int) -> tuple[int, int]:
    return order >> 64, order & _LOW


def _mark(mark: Mark | None) -> list[Any] | None:
    if mark is None:
        return None
    return [
        *_split(mark.order), mark.time_us, mark.reason, -1 if mark.lane is None else mark.lane.index,
        mark.told_by, mark.place, mark.generation, mark.version,
        mark.domain, mark.bytes, mark.payload,
    ]  # fmt: skip


def _rare(rare: Rare) -> list[Any] | None:
    if rare is NOTHING_RARE:
        return None
    return [
        rare.place, rare.generation, rare.part, rare.span, rare.version, rare.max_age_us, rare.weights_version,
        rare.finish, rare.pending, _mark(rare.commit), [_split(order) for order in sorted(rare.served)],
        rare.served_for_good,
    ]  # fmt: skip


def _unpack_mark(judge: "Judge", packed: Any) -> Mark | None:
    if packed is None:
        return None
    high, low, time_us, reason, lane, told_by = packed[:6]
    mark = Mark(high << 64 | low, time_us, reason, judge.lanes[lane] if lane >= 0 else None, told_by)
    mark.place, mark.generation, mark.version, mark.domain, mark.bytes, mark.payload = packed[6:]
    return mark


def _unpack_rare(judge: "Judge", packed: Any) -> Rare:
    if packed is None:
        return NOTHING_RARE
    rare = Rare()
    rare.place, rare.generation, rare.part, rare.span, rare.version, rare.max_age_us = packed[:6]
    rare.weights_version, rare.finish, rare.pending = packed[6:9]
    rare.commit = _unpack_mark(judge, packed[9])
    rare.served = frozenset(high << 64 | low for high, low in packed[10])
    rare.served_for_good = packed[11]
    return rare


def _unpack_row(judge: "Judge", scopes: list[Scope], profiles: dict[Any, Profile], packed: Any) -> Row:
    high, low, lane, time_us, identity, mask, own = packed[:7]
    principal, scope, key, kind, origin, tokens, size, digest, request = packed[7:16]
    return Row(
        order=high << 64 | low,
        lane=judge.lanes[lane],
        time_us=time_us,
        identity=identity,
        mask=mask,
        own=_own(own),
        principal=None if principal is None else intern(principal),
        key=key,
        profile=profiles.setdefault((scope, kind, origin), Profile(scopes[scope], kind, origin)),
        tokens=judge.small(tokens),
        bytes=judge.small(size),
        packed=digest,
        request_id=request,
        end=_unpack_mark(judge, packed[16]),
        rare=_unpack_rare(judge, packed[17]),
    )


def _own(packed: Any) -> Packed:
    return packed if isinstance(packed, bytes) else tuple(packed)


def _unpack_home(judge: "Judge", packed: Any) -> Home:
    home = Home(packed["name"], judge.identities)
    for indexes in packed["nodes"]:
        incarnations = Incarnations()
        incarnations.lanes = [judge.lanes[index] for index in indexes]
        for lane, following in zip(incarnations.lanes, incarnations.lanes[1:], strict=False):
            lane.next = following
        home.nodes[incarnations.lanes[0].node] = incarnations
    for high, low, time_us, event_id, restart, survivors, store, where in packed["barriers"]:
        pairs = tuple((name, value) for name, value in where)
        home.barriers.add(Barrier(high << 64 | low, time_us, event_id, restart, frozenset(survivors), store, pairs))
    scopes = [Scope(*scope) for scope in packed["scopes"]]
    profiles: dict[Any, Profile] = {}
    rows = [_unpack_row(judge, scopes, profiles, row) for row in packed["rows"]]
    for numbers in packed["addresses"]:
        found = [rows[number] for number in numbers]
        table = home.addresses.tables.setdefault(found[0].scope, {})
        table[found[0].key] = found[0] if len(found) == 1 else found
    for scope, key, marks in packed["orphans"]:
        unpacked = [mark for mark in (_unpack_mark(judge, one) for one in marks) if mark is not None]
        home.addresses.orphans[Scope(*scope), key] = unpacked
    for scope, key, marks in packed["doubts"]:
        unpacked = [mark for mark in (_unpack_mark(judge, one) for one in marks) if mark is not None]
        home.addresses.doubts[Scope(*scope), key] = unpacked
    home.addresses.ended.extend((ended, (Scope(*scope), key)) for ended, scope, key in packed["ended"])
    for scope, place, numbers in packed["places"]:
        home.places.owners[Scope(*scope), place] = [rows[number] for number in numbers]
    home.gapped = {index: judge.lanes[index] for index in packed["gapped"]}
    held = [_unpack_held(judge, one) for one in packed["held"]]
    for one in held:
        for _ in home.hold(one):  # never more than are kept
            pass
    home.requests = {request: [held[number] for number in parts] for request, parts in packed["requests"]}
    home.recent.extend(held[one] if isinstance(one, int) else _unpack_held(judge, one) for one in packed["recent"])
    home.born_empty = packed["born_empty"]
    return home


def _unpack_held(judge: "Judge", packed: Any) -> Held:
    raw, high, low, append_us, lane, identity, mask, own, principal, unmatched, clean = packed
    event = EnvelopeDecoder().decode(raw).events[0]
    held = Held(event, high << 64 | low, append_us, judge.lanes[lane], Who(identity, mask, _own(own), principal))
    held.unmatched, held.clean, held.seen = unmatched, clean, True
    return held
