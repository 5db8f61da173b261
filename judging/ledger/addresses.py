"""Addresses of a home: which instances lived at each, folded from creates, commits and ends in the home's order.

In order the fold is incremental. A mark that comes late is put in its place and the address is folded again, which
needs what was seen there: while something may still arrive late, nothing is pruned.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from msgspec import Struct

from ..interning import Identities
from .barriers import Barriers
from .rows import Digest, Mark, Row, Scope, precedes

COMMIT = "commit"
REPLACED = "replaced"
NOT_READABLE = frozenset({"failed", "aborted"})
_ENDED_KEPT = 10_000
_MARKS_KEPT = 64
ENDED_KEPT = 8
"""Ended instances of an address that are kept beside those that live."""
LATE_US = 60_000_000
"""How long ago they ended at most; the last of them is kept for as long as the horizon."""
Address = tuple[Scope, Digest]


def _ended(row: Row) -> bool:
    return row.end is not None


class Ended(Struct, gc=False, frozen=True):
    """Something ended at an address."""

    time_us: int
    scope: Scope
    key: Digest


class Addresses:
    """Every entry of one home. The common address holds one row, others a list in order of creation."""

    def __init__(self, barriers: Barriers, identities: Identities, skew_us: int) -> None:
        self.tables: dict[Scope, dict[Digest, Row | list[Row]]] = {}
        self.orphans: dict[Address, list[Mark]] = {}
        self.doubts: dict[Address, list[Mark]] = {}
        """Ends that name no domain where several live: who ended is open until there are as many as instances."""
        self.ended: deque[Ended] = deque()
        self._barriers, self._identities, self._skew_us = barriers, identities, skew_us

    def rows(self, scope: Scope, key: Digest) -> list[Row]:
        """The instances known at an address, oldest first."""
        table = self.tables.get(scope)
        found = table.get(key) if table is not None else None
        return [] if found is None else [found] if isinstance(found, Row) else found

    def known(self, scope: Scope, key: Digest, order: int) -> list[Row]:
        """The instances that an undisturbed run would still know at `order`: what had come by then, without what the
        latest create had pruned."""
        rows = [row for row in self.rows(scope, key) if row.order < order]
        if len(rows) < 3:
            return rows
        known: list[Row] = []
        for row in rows:
            known = [*self._pruned(known, row), row]
        return known

    def __iter__(self) -> Iterator[Row]:
        for table in self.tables.values():
            for found in table.values():
                if isinstance(found, Row):
                    yield found
                else:
                    yield from found

    def end_of(self, row: Row, before: int) -> Mark | None:
        """What ended the row before `before`, if anything: its own end, or the barrier that came first."""
        end = row.end if row.end is not None and row.end.order < before else None
        barrier = self._barriers.covering(row, before if end is None else end.order, self._identities)
        return barrier or end

    def barrier_of(self, row: Row) -> Mark | None:
        """The first barrier that covers the row, whenever it came."""
        return self._barriers.covering(row, 1 << 256, self._identities)

    def create(self, row: Row, *, late: bool, keep: bool) -> None:
        """An entry exists from now on. `keep`: something may still come late."""
        scope, key = row.scope, row.key
        table = self.tables.get(scope)
        if table is None:
            table = self.tables[scope] = {}
        found = table.get(key)
        if found is None and not late and not self.orphans:
            table[key] = row
            return
        rows = self.rows(scope, key)
        if late or (scope, key) in self.orphans:
            self._fold(scope, key, [*rows, row], [])
            return
        if not keep:
            rows = self._pruned(rows, row)
        self._create(rows, row)
        table[key] = row if len(rows) == 1 else rows

    def mark(self, scope: Scope, key: Digest, mark: Mark, *, late: bool, keep: bool) -> None:
        """A commit or an end reached an address."""
        rows = self.rows(scope, key)
        if not late and rows and self.ends_the_latest(scope, key, rows if len(rows) > 1 else rows[0], mark):
            return
        if late:
            self._fold(scope, key, rows, [mark])
        elif not self._apply(scope, key, rows, mark) and keep:
            marks = self.orphans.setdefault((scope, key), [])
            if len(marks) < _MARKS_KEPT:
                marks.append(mark)
        if not keep:
            self.orphans.pop((scope, key), None)

    def ends_the_latest(self, scope: Scope, key: Digest, found: Row | list[Row], mark: Mark) -> bool:
        """The common case of `mark`, for one that is not late: it can mean none but the latest of the instances that
        are `found` at its address, and ends that."""
        if self.orphans or self.doubts or mark.reason == COMMIT:
            return False
        row = found if isinstance(found, Row) else found[-1]
        if (
            row.end is not None
            or (row.order <= self._barriers.last and self._barriers.covering(row, mark.order, self._identities))
            or mark.domain is not None
            or (mark.place and mark.place != row.rare.place)
            or (mark.generation >= 0 and mark.generation != row.rare.generation)
            or (mark.version and mark.version != row.rare.version)
            or (mark.order < row.order if mark.lane is row.lane else precedes(mark, row, self._skew_us))
            or (isinstance(found, list) and (self._before(found, row, mark) or not all(map(_ended, found[:-1]))))
        ):
            return False
        row.end = mark
        self.ended.append(Ended(mark.time_us, scope, key))
        return True

    def barrier_came_late(self, order: int) -> None:
        """Fold again what was marked after `order`: a barrier before it decides which instances a mark can mean."""
        touched = [
            (scope, key)
            for scope, table in self.tables.items()
            for key, found in table.items()
            if not isinstance(found, Row)
            or any(mark is not None and mark.order > order for mark in (found.end, found.rare.commit))
        ]
        for scope, key in dict.fromkeys((*touched, *self.doubts, *self.orphans)):
            self._fold(scope, key, self.rows(scope, key), [])

    def settle(self) -> None:
        """Nothing can come late any more: marks that found no instance never will."""
        self.orphans.clear()

    def forget(self, before_us: int) -> None:
        """Drop instances that ended before `before_us`, oldest first and only where many are kept."""
        while len(self.ended) > _ENDED_KEPT and self.ended[0].time_us < before_us:
            ended = self.ended.popleft()
            scope, key = ended.scope, ended.key
            kept = [row for row in self.rows(scope, key) if row.end is None or row.end.time_us >= before_us]
            table = self.tables.get(scope, {})
            if not kept:
                table.pop(key, None)
                self.doubts.pop((scope, key), None)
            else:
                table[key] = kept[0] if len(kept) == 1 else kept

    def sweep(self, before_us: int) -> None:
        """Drop every instance that ended before `before_us`, by its own end or a barrier, and ends that are as old and
        found no instance."""
        for scope, table in list(self.tables.items()):
            for key in [key for key, found in table.items() if isinstance(found, list) or self._over(found, before_us)]:
                kept = [row for row in self.rows(scope, key) if not self._over(row, before_us)]
                if kept:
                    table[key] = kept[0] if len(kept) == 1 else kept
                else:
                    del table[key]
            if not table:
                del self.tables[scope]
        for marks in (self.orphans, self.doubts):
            for address in [at for at, waiting in marks.items() if waiting[-1].time_us < before_us]:
                del marks[address]
        self.ended = deque(one for one in self.ended if one.time_us >= before_us)

    def clear(self) -> None:
        """Drop everything."""
        for table in (self.tables, self.orphans, self.doubts, self.ended):
            table.clear()

    def _over(self, row: Row, before_us: int) -> bool:
        end = self.end_of(row, 1 << 256)
        return end is not None and end.time_us < before_us

    def slot(self, row: Row) -> tuple[str, str]:
        """Instances of one slot replace each other."""
        return self._identities.domain(row.identity), row.rare.version

    def _create(self, rows: list[Row], row: Row) -> None:
        if not row.rare.pending:  # until its commit, what it will replace is what is read
            self._replace(rows, row, row.order, row.time_us)
        rows.append(row)

    def _replace(self, rows: list[Row], row: Row, order: int, time_us: int) -> None:
        slot = self.slot(row)
        for other in rows:
            if other is not row and other.end is None and other.order < row.order and self.slot(other) == slot:
                other.end = Mark(order, time_us, REPLACED, row.lane)

    def _pruned(self, rows: list[Row], newer: Row) -> list[Row]:
        """What lives when a newer instance comes, what ended last, and the few that ended so lately that a hit on
        them may still be on its way."""
        if len(rows) < 2:
            return rows  # it lives, or it ended last
        ends = [(row, self.end_of(row, newer.order)) for row in rows]
        ended = sorted((end.order, row.order, end.time_us) for row, end in ends if end is not None)
        since_us = newer.time_us - LATE_US
        kept = {order for _, order, time_us in ended[-ENDED_KEPT:] if time_us >= since_us}
        kept.update(order for _, order, _ in ended[-1:])
        return [row for row, end in ends if end is None or row.order in kept]

    def _apply(self, scope: Scope, key: Digest, rows: list[Row], mark: Mark) -> bool:
        live = [row for row in rows if row.order < mark.order and row.end is None]
        live = [row for row in live if self._barriers.covering(row, mark.order, self._identities) is None]
        if mark.reason == COMMIT:
            waiting = [row for row in live if row.rare.pending and row.rare.commit is None]
            meant = self._meant(waiting, mark)
            if meant:
                meant[-1].rare.commit = mark
                self._replace(rows, meant[-1], mark.order, mark.time_us)
            return bool(meant)
        # An end that was surely before a create, and was told after it, is none of that instance.
        live = [row for row in live if not precedes(mark, row, self._skew_us)]
        if mark.reason in NOT_READABLE:
            live = [row for row in live if row.rare.pending and row.rare.commit is None] or live
            live = live[-1:]
        meant = self._meant(live, mark)
        if len(meant) == 1:
            meant = self._before(rows, meant[0], mark) or meant
        if len(meant) > 1:
            # Several domains live here and the end names none: nobody can say which ended until all have.
            doubts = self.doubts.setdefault((scope, key), [])
            doubts.append(mark)
            if len(doubts) < len(meant):
                return True
            doubts.pop()  # this one stands with the rows that it ends
        spent = self.doubts.pop((scope, key), None)
        if spent:
            self.orphans.setdefault((scope, key), []).extend(spent)
        for row in meant:
            row.end = mark
            self.ended.append(Ended(mark.time_us, scope, key))
        return bool(meant)

    def _before(self, rows: list[Row], row: Row, mark: Mark) -> list[Row]:
        """An instance that was replaced without an end, if the end may be its own: told by another node than the one
        that made the one that lives, and about then. A store ends what it has before it makes it anew."""
        if precedes(row, mark, self._skew_us) or precedes(mark, row, self._skew_us):
            return []
        replaced = [other for other in rows if other.end is not None and other.end.reason == REPLACED]
        return self._meant(replaced, mark)[-1:]

    def means(self, mark: Mark, row: Row) -> bool:
        """Whether what an end says fits an instance."""
        return bool(self._meant([row], mark))

    def _meant(self, rows: list[Row], mark: Mark) -> list[Row]:
        if mark.place:
            rows = [row for row in rows if row.rare.place in ("", mark.place)]
            if mark.generation >= 0:
                rows = [row for row in rows if row.rare.generation in (-1, mark.generation)]
        if mark.version:
            rows = [row for row in rows if row.rare.version in ("", mark.version)]
        if mark.domain is not None:
            rows = [row for row in rows if row.identity < 0 or self._identities.domain(row.identity) == mark.domain]
        return rows

    def _fold(self, scope: Scope, key: Digest, rows: list[Row], marks: list[Mark]) -> None:
        """The address again from the start, every create and mark in order."""
        marks = [*marks, *self.orphans.pop((scope, key), []), *self.doubts.pop((scope, key), [])]
        steps: list[Row | Mark] = []
        for row in rows:
            insort(steps, row, key=attrgetter("order"))
            if row.end is not None and row.end.reason != REPLACED:
                marks.append(row.end)
            if row.rare.commit is not None:
                marks.append(row.rare.commit)
                row.rare.commit = None
            row.end = None
        seen: set[int] = set()
        for mark in marks:
            if mark.order not in seen:  # one end can have ended several rows
                seen.add(mark.order)
                insort(steps, mark, key=attrgetter("order"))
        folded: list[Row] = []
        for step in steps:
            if isinstance(step, Row):
                self._create(folded, step)
            elif not self._apply(scope, key, folded, step):
                self.orphans.setdefault((scope, key), []).append(step)
        if folded:
            self.tables.setdefault(scope, {})[key] = folded[0] if len(folded) == 1 else folded
