"""What is older than any verdict can reach is let go, so that the state is as large as what lives.

By the log's clock, which no producer can set: four times a horizon, in the record that comes first then. So a replay
forgets the same at the same record. What ended more than two horizons ago can be matched by no hit that was less than
one horizon on its way; everything else here is only referred to by that.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from .ledger.home import Home
from .ledger.lanes import Lane
from .ledger.rows import Mark, Row

if TYPE_CHECKING:
    from .judge import Judge

SWEEPS = 4
"""In one horizon."""
ENDED = 2
"""Horizons for which what ended is known, and what may still change is held: a gap is given up before that."""
SILENT = 4
"""Horizons after which a home of which nothing was heard has no entries: its node is gone, and nobody says so."""
GONE = 30
"""Horizons after which a lane that went silent is not expected to go on. Before that its next number is no gap."""


class Aging:
    """When a judge swept last, and what it swept away."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self._period_us = max(1, judge.context.horizon_us // SWEEPS)
        self.swept = 0

    def due(self, append_us: int) -> bool:
        """Whether a new quarter of the horizon has begun."""
        return append_us // self._period_us > self.swept

    def sweep(self, append_us: int) -> None:
        """Forget what is too old at `append_us`."""
        first, self.swept = not self.swept, append_us // self._period_us
        if first:
            return
        judge, horizon_us = self._judge, self._judge.context.horizon_us
        before_us = append_us - ENDED * horizon_us - judge.context.skew_us
        for home in judge.homes.values():
            if home.heard_us < append_us - SILENT * horizon_us:
                self._empty(home)
            old = home.older(append_us - ENDED * horizon_us)
            home.release(old)
            judge.trial.settle(home, old)
            home.sweep(before_us)
        self._lanes(append_us - GONE * horizon_us, before_us)
        judge.identities.free(set(_identities(judge)), judge.comparator)
        judge.findings.forget()

    def _empty(self, home: Home) -> None:
        home.clear()
        for incarnations in home.nodes.values():
            incarnations.lanes[-1].blind_from = 0  # what it may still have is unknown

    def _lanes(self, gone_us: int, before_us: int) -> None:
        judge = self._judge
        used = {lane.index for home in judge.homes.values() for lane in _lanes(home)}
        for name, home in list(judge.homes.items()):
            for node, incarnations in list(home.nodes.items()):
                kept = [
                    lane
                    for lane in incarnations.lanes
                    if lane.index in used or lane.heard_us >= (gone_us if lane.next is None else before_us)
                ]
                for lane in incarnations.lanes:
                    if lane not in kept:
                        judge.forget_lane(lane)
                        # Its tail may be lost, and a tier that survived it may hold what it had written.
                        home.born_empty = home.born_empty and node != home.owner
                incarnations.lanes = kept
                for lane, following in zip_longest(kept, kept[1:]):
                    lane.next = following
                if not kept:
                    del home.nodes[node]
            if not home.nodes:
                del judge.homes[name]


def _rows(home: Home) -> Iterator[Row]:
    yield from home.addresses
    for owners in home.places.owners.values():
        yield from owners


def _marks(home: Home) -> Iterator[Mark]:
    for row in _rows(home):
        if row.end is not None:
            yield row.end
        if row.rare.commit is not None:
            yield row.rare.commit
    for marks in (*home.addresses.orphans.values(), *home.addresses.doubts.values()):
        yield from marks


def _lanes(home: Home) -> Iterator[Lane]:
    yield from home.gapped.values()
    for row in _rows(home):
        yield row.lane
    for mark in _marks(home):
        if mark.lane is not None:
            yield mark.lane
    for held in (*home.all_held(), *home.recent):
        yield held.lane


def _identities(judge: "Judge") -> Iterator[int]:
    for home in judge.homes.values():
        for row in _rows(home):
            yield row.identity
        for held in (*home.all_held(), *home.recent):
            yield held.identity
        for parts in home.requests.values():
            for held in parts:
                yield held.identity
