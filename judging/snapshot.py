"""A judge from the bytes of a snapshot: what `freezing` wrote, read back to the same future findings."""

from collections.abc import Iterator
from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec

from ..schemas.errors import BadInput
from ..schemas.findings import Finding, finding_id
from .errors import SnapshotError
from .freezing import VERSION
from .keeping import unpack
from .ledger.addresses import Ended
from .ledger.barriers import Barrier
from .ledger.entries import profile
from .ledger.home import Home
from .ledger.lanes import Incarnations, Lane
from .ledger.rows import NOTHING_RARE, Mark, Profile, Rare, Row, Scope

if TYPE_CHECKING:
    from .judge import Judge

_findings = msgspec.msgpack.Decoder(list[Finding])
_decode = msgspec.msgpack.decode


def restore(judge: "Judge", raw: bytes) -> "Judge":
    """Fill a new judge from a snapshot. Raises `SnapshotError`."""
    try:
        state = _decode(raw)
        version = state["v"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise SnapshotError("is damaged.", field="snapshot", remedy="Rebuild the state from the log.") from None
    if version != VERSION:
        raise SnapshotError(
            f"is {version!r:.20}, and this build reads {VERSION}.",
            field="snapshot.v",
            remedy="Rebuild the state from the log.",
        )
    try:
        _restore(judge, state)
    except (KeyError, IndexError, TypeError, ValueError, BadInput, msgspec.DecodeError) as error:
        raise SnapshotError("is damaged.", field="snapshot", remedy="Rebuild the state from the log.") from error
    return judge


def _restore(judge: "Judge", state: Any) -> None:
    judge.identities.restore(tuple(shared) for shared in state["identities"])
    judge.comparator.compared, judge.comparator.covered = state["coverage"]
    for creator, requester, kind, mode, end, variant, principal, hits in state["compared"]:
        variant = variant if isinstance(variant, int) else tuple(variant)
        judge.comparator.of((creator, requester, kind, mode, end, variant, principal)).hits = hits
    for index, *packed in state["lanes"]:
        lane = Lane(index, *packed[:5])
        lane.last_us, high, low, lane.gap_us, lane.heard_us, lost, lane.runs = packed[5:]
        lane.blind_from = high << 64 | low
        lane.lost = [(first, last) for first, last in lost]
        judge.lanes[index] = lane
    for packed in state["homes"]:
        home = _unpack_home(judge, packed)
        judge.homes[home.name] = home
    judge.position, judge.next_lane, judge.aging.swept = state["position"], state["next_lane"], state["swept"]
    judge.counts = state["counts"]
    judge.stream.newest_us, judge.stream.facts_until_us, stated = state["stream"]
    for index, (gaps, revealed) in stated:
        judge.stream.stated[index] = tuple((first, last) for first, last in gaps), revealed
    judge.checks.restore(state.get("checks", []))
    judge.revisions.standing = {finding.id: finding for finding in _findings.decode(state["standing"])}
    judge.revisions.numbers = dict(state.get("numbers", ()))
    for home in judge.homes.values():
        for held in (*home.held_order, *home.recent):
            held.told = finding_id(held.event.id) in judge.revisions


def _unpack_mark(judge: "Judge", packed: Any) -> Mark | None:
    if packed is None:
        return None
    high, low, time_us, reason, lane, *rest = packed
    return Mark(high << 64 | low, time_us, reason, judge.lanes[lane] if lane >= 0 else None, *rest)


def _unpack_marks(judge: "Judge", packed: Any) -> list[Mark]:
    return [mark for mark in (_unpack_mark(judge, one) for one in packed) if mark is not None]


def _unpack_rare(judge: "Judge", packed: Any) -> Rare:
    if packed is None:
        return NOTHING_RARE
    fields = list(packed)
    fields[9], fields[12] = _unpack_mark(judge, packed[9]), tuple(packed[12])
    fields[10] = frozenset(high << 64 | low for high, low in packed[10])
    return Rare(*fields)


def _unpack_rows(judge: "Judge", profiles: list[Profile], chunks: Any) -> Iterator[Row]:
    small, lanes = judge.small, judge.lanes
    for chunk in chunks:
        for (
            high, low, lane, time_us, identity, mask, principal, key, at, data, tokens, size, end, rare
        ) in zip(*_decode(chunk), strict=True):  # fmt: skip
            yield Row(
                order=high << 64 | low,
                lane=lanes[lane],
                time_us=time_us,
                identity=identity,
                mask=mask,
                principal=None if principal is None else intern(principal),
                key=key,
                profile=profiles[at],
                data=data,
                tokens=small(tokens),
                size=small(size),
                end=_unpack_mark(judge, end),
                rare=_unpack_rare(judge, rare),
            )


def _unpack_home(judge: "Judge", packed: Any) -> Home:
    home = Home(packed["name"], judge.identities, judge.context.skew_us)
    for indexes in packed["nodes"]:
        incarnations = Incarnations()
        incarnations.lanes = [judge.lanes[index] for index in indexes]
        for lane, following in zip(incarnations.lanes, incarnations.lanes[1:], strict=False):
            lane.next = following
        home.nodes[incarnations.lanes[0].node] = incarnations
    for high, low, time_us, event_id, restart, survivors, store, where in packed["barriers"]:
        pairs = tuple((name, value) for name, value in where)
        home.barriers.add(Barrier(high << 64 | low, time_us, event_id, restart, frozenset(survivors), store, pairs))
    profiles = [profile(Scope(*scope), kind, origin, size) for scope, kind, origin, size in packed["profiles"]]
    rows = list(_unpack_rows(judge, profiles, packed["rows"]))
    at = 0
    for groups in packed["groups"]:
        for count in groups:
            first = rows[at]
            table = home.addresses.tables.setdefault(first.scope, {})
            table[first.key] = first if count == 1 else rows[at : at + count]
            at += count
    for scope, key, marks in packed["orphans"]:
        home.addresses.orphans[Scope(*scope), key] = _unpack_marks(judge, marks)
    for scope, key, marks in packed["doubts"]:
        home.addresses.doubts[Scope(*scope), key] = _unpack_marks(judge, marks)
    home.addresses.ended.extend(Ended(ended, Scope(*scope), key) for ended, scope, key in packed["ended"])
    for scope, place, numbers in packed["places"]:
        home.places.owners[Scope(*scope), place] = [rows[number] for number in numbers]
    home.gapped = {index: judge.lanes[index] for index in packed["gapped"]}
    held = unpack(judge, packed["held"])
    for one in held:
        for _ in home.hold(one):  # never more than are kept
            pass
    home.requests = {request: [held[number] for number in parts] for request, parts in packed["requests"] if parts}
    held += unpack(judge, packed["also"])
    home.recent.extend(held[number] for number in packed["recent"])
    home.born_empty, home.heard_us = packed["born_empty"], packed["heard_us"]
    return home
