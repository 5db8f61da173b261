"""A judge's exact state, copied in a moment and encoded at leisure. What is derived (memoised comparisons, indexes) is
left out.

`freeze` runs where the judge runs and copies what a judge changes in place; `Frozen.encode` may run in another thread
while the judge goes on. Rows travel as columns, in chunks, so that no single step holds the interpreter for long.
Orders need more than 64 bits and travel as two numbers. Rows are listed once and referred to by number, since an
address and a place can hold the same one.
"""

from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from .keeping import pack
from .ledger.home import Home
from .ledger.lanes import Lane
from .ledger.rows import NOTHING_RARE, Mark, Profile, Rare, Row

if TYPE_CHECKING:
    from .judge import Judge

VERSION = 5
_CHUNK = 20_000
_LOW = (1 << 64) - 1
_encode = msgspec.msgpack.encode
_T = TypeVar("_T")


class Frozen:
    """A judge's state at one moment; the judge may go on."""

    def __init__(self, judge: "Judge") -> None:
        comparator, stream = judge.comparator, judge.stream
        self._identities = list(judge.identities.values)
        self._pairs = list(comparator.memo)
        self._hits = [comparison.hits for comparison in comparator.memo.values()]
        self._standing = list(judge.revisions.standing.values())
        self._numbers = list(judge.revisions.numbers.items())
        self._homes = [_FrozenHome(home) for home in judge.homes.values()]
        self._rest = {
            "coverage": [comparator.compared, dict(comparator.covered)],
            "lanes": [[index, *_lane(lane)] for index, lane in judge.lanes.items()],
            "next_lane": judge.next_lane,
            "swept": judge.aging.swept,
            "position": judge.position,
            "counts": dict(judge.counts),
            "stream": [stream.newest_us, stream.facts_until_us, list(stream.stated.items())],
            "checks": judge.checks.freeze(),
        }

    def encode(self) -> bytes:
        """The state as bytes, for `Judge.load`."""
        state = {
            "v": VERSION,
            "identities": self._identities,
            "compared": [[*pair, hits] for pair, hits in zip(self._pairs, self._hits, strict=True)],
            "homes": [home.encode() for home in self._homes],
            "standing": _encode(self._standing),
            "numbers": self._numbers,
            **self._rest,
        }
        return _encode(state)


class _FrozenHome:
    """One home. Rows, what is rare about them and what is held change in place, and are copied; marks and events never
    do."""

    def __init__(self, home: Home) -> None:
        addresses = home.addresses
        rows: list[Row] = []
        self._groups: list[list[int]] = []
        for table in addresses.tables.values():
            groups, found = _grouped(list(table.values()))
            self._groups.append(groups)
            rows += found
        owners = [(place, list(rows)) for place, rows in home.places.owners.items()]
        known = {id(row) for row in rows if row.rare.place} if owners else set()
        for _, placed in owners:
            for row in placed:
                if id(row) not in known:
                    known.add(id(row))
                    rows.append(row)
        numbers = {id(row): number for number, row in enumerate(rows) if row.rare.place} if owners else {}
        self._places = [[*place, [numbers[id(row)] for row in placed]] for place, placed in owners]
        self._rows = _copies(rows)
        for row in self._rows:
            if row.rare is not NOTHING_RARE:
                row.rare = row.rare.__copy__()  # type: ignore[attr-defined]  # as in `_copies`
        self._orphans = [(*at, list(marks)) for at, marks in addresses.orphans.items()]
        self._doubts = [(*at, list(marks)) for at, marks in addresses.doubts.items()]
        self._ended = list(addresses.ended)
        live = [one for one in home.held_order if not one.gone]
        held = {id(one): number for number, one in enumerate(live)}
        also = [one for one in home.recent if id(one) not in held]
        self._held, self._also = _copies(live), _copies(also)
        numbers = held | {id(one): number for number, one in enumerate(also, len(live))}
        self._recent = [numbers[id(one)] for one in home.recent]
        self._rest = {
            "name": home.name,
            "nodes": [[lane.index for lane in incarnations.lanes] for incarnations in home.nodes.values()],
            "barriers": [
                [*split(b.order), b.time_us, b.event_id, b.restart, sorted(b.survivors), b.store, b.where]
                for b in home.barriers.all
            ],
            "gapped": list(home.gapped),
            "requests": [
                [request, [held[id(one)] for one in parts if id(one) in held]]
                for request, parts in home.requests.items()
            ],
            "born_empty": home.born_empty,
            "heard_us": home.heard_us,
        }

    def encode(self) -> dict[str, Any]:
        profiles: dict[Profile, int] = {}
        chunks = [_encode(_columns(self._rows[at : at + _CHUNK], profiles)) for at in range(0, len(self._rows), _CHUNK)]
        return {
            **self._rest,
            "rows": chunks,
            "groups": self._groups,
            "profiles": list(profiles),
            "places": self._places,
            "orphans": [[s, k, [_mark(mark) for mark in marks]] for s, k, marks in self._orphans],
            "doubts": [[s, k, [_mark(mark) for mark in marks]] for s, k, marks in self._doubts],
            "ended": [[ended.time_us, ended.scope, ended.key] for ended in self._ended],
            "held": pack(self._held),
            "also": pack(self._also),
            "recent": self._recent,
        }


def _copies(structs: list[_T]) -> list[_T]:
    """As `copy.copy` makes them, in half the time."""
    return [one.__copy__() for one in structs]  # type: ignore[attr-defined]  # msgspec's stubs leave it out


def _grouped(table: list[Row | list[Row]]) -> tuple[list[int], list[Row]]:
    """How many rows each address has, and the rows."""
    if set(map(type, table)) == {Row}:
        return [1] * len(table), cast(list[Row], table)
    groups = [1 if isinstance(found, Row) else len(found) for found in table]
    return groups, [row for found in table for row in ((found,) if isinstance(found, Row) else found)]


def _columns(rows: list[Row], profiles: dict[Profile, int]) -> list[list[Any]]:
    return [
        [row.order >> 64 for row in rows],
        [row.order & _LOW for row in rows],
        [row.lane.index for row in rows],
        [row.time_us for row in rows],
        [row.identity for row in rows],
        [row.mask for row in rows],
        [row.principal for row in rows],
        [row.key for row in rows],
        [profiles.setdefault(row.profile, len(profiles)) for row in rows],
        [row.data for row in rows],
        [row.tokens for row in rows],
        [row.size for row in rows],
        [None if row.end is None else _mark(row.end) for row in rows],
        [None if row.rare is NOTHING_RARE else _rare(row.rare) for row in rows],
    ]


def split(order: int) -> tuple[int, int]:
    """An order as two numbers of 64 bits."""
    return order >> 64, order & _LOW


def _lane(lane: Lane) -> list[Any]:
    return [
        lane.node, lane.incarnation, lane.home, lane.ordinal, lane.first_us, lane.last_us, *split(lane.blind_from),
        lane.gap_us, lane.heard_us, list(lane.lost), [list(run) for run in lane.runs],
    ]  # fmt: skip


def _mark(mark: Mark | None) -> list[Any] | None:
    if mark is None:
        return None
    return [
        *split(mark.order), mark.time_us, mark.reason, -1 if mark.lane is None else mark.lane.index,
        mark.told_by, mark.place, mark.generation, mark.version, mark.domain, mark.bytes, mark.payload,
    ]  # fmt: skip


def _rare(rare: Rare) -> list[Any]:
    return [
        rare.place, rare.generation, rare.part, rare.span, rare.version, rare.max_age_us, rare.weights_version,
        rare.finish, rare.pending, _mark(rare.commit), [split(order) for order in sorted(rare.served)],
        rare.served_for_good, rare.own, rare.payload,
    ]  # fmt: skip
