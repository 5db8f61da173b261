"""The common case, fast: the next events of a healthy lane that touch ordinary entries and give rise to no finding.

Nothing is decided here that `Trial` would decide otherwise: an event that needs a rule, or finds anything unusual, is
left to the full path. `tests/judging/test_express.py` holds the two against each other.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..schemas.envelope import Batch
from ..schemas.events import Commit, Create, Event, Expire, Hit
from ..schemas.facts import EpochFact, InvalidationFact
from .comparison import other_principal
from .ledger.addresses import COMMIT, NOT_READABLE
from .ledger.entries import new_mark, new_row
from .ledger.home import Held, Home, scope_of
from .ledger.lanes import POSITION_SHIFT, SEQ_BITS, Lane
from .ledger.rows import FINISHED, NOTHING_RARE, Row, pack_key

if TYPE_CHECKING:
    from .judge import Judge

_ORDERS_TRIED = 16


def applies(judge: "Judge", home: Home, lane: Lane, batch: Batch) -> bool:
    """Whether the batch continues a lane of a home in which nothing is missing."""
    runs = lane.runs
    return (
        len(runs) == 1
        and runs[0][0] == 1
        and batch.first == runs[0][1] + 1
        and lane.next is None
        and not home.gapped
        and not batch.rejects
        and len(batch.events) == (batch.last or 0) - batch.first + 1
    )


def run(judge: "Judge", home: Home, lane: Lane, events: list[Event], append_us: int) -> None:
    """Judge the events in order, each by the shortest way that is right."""
    express = _Express(judge, home, lane, append_us)
    last_run, take = lane.runs[0], judge.take
    ways: dict[type, Callable[[Event, Any, Row | list[Row] | None], bool]] = {
        Hit: express.hit,
        Create: express.create,
        Expire: express.expire,
        Commit: express.commit,
    }
    counts = dict.fromkeys(ways, 0)
    newest_us = lane.last_us
    tables = home.addresses.tables
    for event in events:
        kind = type(event.body)
        way = ways.get(kind)
        if way is not None:
            table = tables.get(scope_of(event))
            if way(event, event.body, None if table is None else table.get(pack_key(event.key))):
                counts[kind] += 1
                last_run[1] = event.seq
                if event.time_us > newest_us:
                    newest_us = event.time_us
                continue
        take(home, lane, event, append_us)
    lane.last_us = max(lane.last_us, newest_us)
    judge.stream.seen(newest_us)
    for body, count in counts.items():
        if count:
            name = str(body.__name__).lower()
            judge.counts[name] = judge.counts.get(name, 0) + count


class _Express:
    """One batch. Each way returns False, having changed nothing, for what it leaves to the full path."""

    __slots__ = (
        "append_us", "barriers", "home", "intern", "judge", "lane", "memo", "open_sharing", "ordered_until_us",
        "ordinal", "own", "skew_us",
    )  # fmt: skip

    def __init__(self, judge: "Judge", home: Home, lane: Lane, append_us: int) -> None:
        self.judge, self.home, self.lane, self.append_us = judge, home, lane, append_us
        self.ordinal = lane.ordinal << SEQ_BITS
        self.memo, self.intern = judge.comparator.memo, judge.identities.intern
        self.barriers = home.barriers
        self.own, self.skew_us = lane.node == home.owner, judge.context.skew_us
        self.ordered_until_us = judge.facts.ordered_until_us
        self.open_sharing = judge.observations is None and not judge.facts.sharing_restricted

    def order(self, event: Event) -> int:
        self.judge.position += 1
        return self.judge.position << POSITION_SHIFT | self.ordinal | event.seq

    def hit(self, event: Event, hit: Hit, row: Row | list[Row] | None) -> bool:
        if (
            type(row) is not Row
            or row.end is not None
            or (row.order <= self.barriers.last and self._covered(row))
            or (row.time_us <= self.ordered_until_us and self._ordered(row))
            or event.identity is None
            or not _as_stored(row, hit)
            or not (self.own or row.lane is self.lane or row.time_us <= event.time_us + self.skew_us)
        ):
            return False
        if (row.rare is not NOTHING_RARE or event.place or event.span or event.entry_version or event.part) and (
            not self._ordinary_hit(event, hit, row)
        ):
            return False
        who = self.intern(event.identity)
        if row.mask != who.mask or row.own != who.own:
            return False
        other = row.principal is not who.principal and other_principal(row, who)
        pair = (row.identity, who.identity, event.kind, hit.match_mode, None, row.mask, other)
        comparison = self.memo.get(pair)
        if comparison is None or not (comparison.silent or (self.open_sharing and comparison.harmless)):
            return False
        comparison.hits += 1
        if self.own:
            self.judge.position += 1
        else:
            held = Held(event, self.order(event), self.append_us, self.lane, who)
            held.seen = held.clean = True
            self.home.recent.append(held)
        return True

    def _covered(self, row: Row) -> bool:
        return self.barriers.covering(row, self._next, self.judge.identities) is not None

    @property
    def _next(self) -> int:
        """An order after everything that has come."""
        return (self.judge.position + 1) << POSITION_SHIFT

    def _ordered(self, row: Row) -> bool:
        """Whether an order to the fleet could be about the row."""
        identities = self.judge.identities
        return len(self.judge.facts.orders) > _ORDERS_TRIED or any(
            row.time_us < fact.effective_at_us
            and self.barriers.agrees(tuple(sorted(fact.body.where.items())), row, identities)
            for _, fact in self.judge.facts.orders
            if isinstance(fact.body, EpochFact | InvalidationFact)
        )

    def _ordinary_hit(self, event: Event, hit: Hit, row: Row) -> bool:
        rare = row.rare
        if event.part and event.request_id:
            return False
        if not rare.readable or rare.unfinished or event.span != rare.span or event.entry_version != rare.version:
            return False
        if rare.max_age_us >= 0:
            age_us = round(hit.age_s * 1e6) if hit.age_s is not None else 0
            if max(event.time_us - row.time_us, age_us) > rare.max_age_us:
                return False
        return self._same_place(event, row) and (not rare.place or self._last_owner(row))

    @staticmethod
    def _same_place(event: Event, row: Row) -> bool:
        if not event.place:
            return True
        rare = row.rare
        return event.place == rare.place and (event.generation is None or event.generation == rare.generation)

    def _last_owner(self, row: Row) -> bool:
        owners = self.home.places.owners.get((row.scope, row.rare.place))
        return owners is not None and owners[-1] is row

    def create(self, event: Event, create: Create, found: Row | list[Row] | None) -> bool:
        home, judge = self.home, self.judge
        if (
            found is not None
            or create.rederived_key is not None
            or create.computed_tokens is not None
            or (create.finish is not None and create.finish not in FINISHED)
            or event.key_origin == "client"
            or event.identity is None
            or home.held
            or home.addresses.orphans
            or home.payloads.built
            or judge.facts.caching_off
            or (len(home.addresses.tables) > 1 and event.copy)
        ):
            return False
        if event.place:
            owners = home.places.owners.get((scope_of(event), event.place))
            if owners and owners[-1].end is None:
                return False
        who = self.intern(event.identity)
        row = new_row(event, create, self.order(event), self.lane, who, judge.small)
        home.addresses.tables.setdefault(row.scope, {})[row.key] = row
        if event.place:
            home.places.own(row, keep=False)
        if judge.observations is not None:
            judge.trial.observe_create(event, who)
        return True

    def expire(self, event: Event, expire: Expire, row: Row | list[Row] | None) -> bool:
        home = self.home
        if (
            not self._plain_mark(event, row)
            or type(row) is not Row
            or expire.reason in NOT_READABLE
            or (home.recent and event.time_us + self.skew_us < self.judge.stream.newest_us)
        ):
            return False
        row.end = new_mark(event, self.order(event), self.lane, expire.reason)
        home.addresses.ended.append((event.time_us, (row.scope, row.key)))
        home.addresses.forget(event.time_us - self.judge.context.horizon_us)
        return True

    def commit(self, event: Event, commit: Commit, row: Row | list[Row] | None) -> bool:
        if not self._plain_mark(event, row) or type(row) is not Row or self.home.payloads.built:
            return False
        if not row.rare.pending or row.rare.commit is not None:
            return False
        mark = row.rare.commit = new_mark(event, self.order(event), self.lane, COMMIT)
        mark.bytes = -1 if commit.bytes is None else commit.bytes
        mark.payload = commit.payload_digest or ""
        return True

    def _plain_mark(self, event: Event, row: Row | list[Row] | None) -> bool:
        """It can only mean the one live instance at its address."""
        return (
            type(row) is Row
            and row.end is None
            and (row.order > self.barriers.last or not self._covered(row))
            and event.identity is None
            and not self.home.held
            and event.entry_version == row.rare.version
            and self._same_place(event, row)
        )


def _as_stored(row: Row, hit: Hit) -> bool:
    """Nothing that was read contradicts what was stored, and nothing was reported that could be wrong."""
    return (
        hit.outcome == "ok"
        and hit.reported_tokens is None
        and (hit.tokens_read is None or hit.tokens_read == row.tokens)
        and (hit.bytes_read is None or hit.bytes_read == row.bytes_as_stored)
        and (hit.payload_digest is None or hit.payload_digest == row.payload_as_stored)
    )
