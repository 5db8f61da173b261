"""The common case, fast: the next events of a lane that touch ordinary entries and give rise to no finding.

Nothing is decided here that `Trial` would decide otherwise: an event that needs a rule, or finds anything unusual, is
left to the full path. `tests/judging/test_express.py` holds the two against each other.
"""

from operator import attrgetter
from typing import TYPE_CHECKING

from ..schemas.envelope import Batch
from ..schemas.epochs import CORPUS_ID
from ..schemas.events import Commit, Create, Event, Expire, Hit
from ..schemas.facts import EpochFact, InvalidationFact
from .comparison import Variant, other_principal, own_verdicts
from .interning import Who
from .ledger.addresses import COMMIT, Address
from .ledger.entries import new_mark, new_row
from .ledger.home import Held, Home, scope_of
from .ledger.lanes import POSITION_SHIFT, SEQ_BITS, Lane
from .ledger.rows import FINISHED, NOTHING_RARE, Row, pack_key
from .orders import before_bump
from .ordinary import as_stored, ordinary

if TYPE_CHECKING:
    from .judge import Judge

_ORDERS_TRIED = 16
_time_us = attrgetter("time_us")


class Express:
    """One lane's short ways, kept from record to record. Each returns False, having changed nothing, for an event that
    it leaves to the full path."""

    __slots__ = (
        "append_us", "barriers", "comparator", "facts", "home", "intern", "judge", "lane", "memo", "node", "ordinal",
        "own", "skew_us", "tables",
    )  # fmt: skip

    def __init__(self, judge: "Judge", home: Home, lane: Lane) -> None:
        self.judge, self.home, self.lane, self.append_us = judge, home, lane, 0
        self.ordinal = lane.ordinal << SEQ_BITS
        self.comparator, self.facts = judge.comparator, judge.facts
        self.memo, self.intern = judge.comparator.memo, judge.identities.intern
        self.barriers, self.tables = home.barriers, home.addresses.tables
        self.node, self.own, self.skew_us = lane.node, lane.node == home.owner, judge.context.skew_us

    def begins(self, batch: Batch) -> bool:
        """Whether the batch opens its lane, or a gap in it: its first event is not for here, the others may be."""
        runs = self.lane.runs
        return not batch.rejects and (not runs or batch.events[0].seq > runs[-1][1] + 1)

    def applies(self, batch: Batch, events: list[Event]) -> bool:
        """Whether these, the last of the batch, continue the newest incarnation of its lane. A gap before them is kept
        in mind, a gap that is to be given up is not for here."""
        runs, home, first = self.lane.runs, self.home, (batch.last or 0) - len(events) + 1
        if not (
            runs
            and events
            and first == events[0].seq == runs[-1][1] + 1
            and self.lane.next is None
            and not batch.rejects
        ):
            return False
        if not home.gapped or self.lane.whole:
            return True
        oldest = min(lane.gap_us for lane in home.gapped.values())
        newest: int = max(map(_time_us, events))
        return newest - oldest <= self.judge.context.horizon_us

    def run(self, events: list[Event], append_us: int) -> None:
        """Judge the events in order, each by the shortest way that is right."""
        lane, judge, tables = self.lane, self.judge, self.tables
        self.append_us = append_us
        last_run, newest_us = lane.runs[-1], lane.last_us
        hit, counts = self.hit, judge.counts
        seen: dict[str, int] = {}
        for event in events:
            body = event.body
            at = scope, key = scope_of(event), pack_key(event.key)
            table = tables.get(scope)
            found = None if table is None else table.get(key)
            if type(body) is Hit:
                name, done = "hit", hit(event, body, at, found)
            elif type(body) is Create:
                name, done = "create", self.create(event, body, at, found)
            elif type(body) is Expire:
                name, done = "expire", self.expire(event, body, at, found)
            elif type(body) is Commit:
                name, done = "commit", self.commit(event, body, at, found)
            else:
                done = False
            if done:
                seen[name] = seen.get(name, 0) + 1
                last_run[1] = event.seq
                if event.time_us > newest_us:
                    newest_us = event.time_us
            else:
                judge.take(self.home, lane, event, append_us)
        lane.last_us = max(lane.last_us, newest_us)
        judge.stream.seen(newest_us)
        for name, count in seen.items():
            counts[name] = counts.get(name, 0) + count

    def order(self, event: Event) -> int:
        self.judge.position += 1
        return self.judge.position << POSITION_SHIFT | self.ordinal | event.seq

    def hit(self, event: Event, hit: Hit, at: Address, found: Row | list[Row] | None) -> bool:
        if found is None or event.identity is None:
            return False
        who = self.intern(event.identity)
        row = found if isinstance(found, Row) else self._of_domain(found, event, who)
        if (
            row is None
            or row.end is not None
            or (row.order <= self.barriers.last and self._covered(row))
            or (row.time_us <= self.facts.ordered_until_us and self._ordered(row, event))
            or not as_stored(row, hit)
        ):
            return False
        if (row.rare is not NOTHING_RARE or event.place or event.span or event.entry_version or event.part) and (
            not ordinary(self.home, event, hit, row)
        ):
            return False
        variant: Variant = who.mask if row.owns(who) else own_verdicts(row, who)
        other = row.principal is not who.principal and other_principal(row, who)
        pair = (row.identity, who.identity, event.kind, hit.match_mode, None, variant, other)
        comparison = self.memo.get(pair)
        if comparison is None:
            if self.comparator.activated(row.identity, who.identity):
                return False
            comparison = self.comparator.of(pair)
        if not comparison.silent and (
            not comparison.harmless or self.judge.identities.tenant(row.identity) in self.facts.keep_to_themselves
        ):
            return False
        comparison.hits += 1
        if comparison.scope and self.judge.observations is not None and comparison.tenant:
            self.judge.trial.observe_reached(event, row, who, comparison)
        if self.own and not self.home.gapped:
            self.judge.position += 1
            return True
        held = Held(event, self.order(event), self.append_us, self.lane, who, at, seen=True, clean=True)
        if not self.own:
            self.judge.trial.remember(self.home, held)
        if self.home.gapped:
            self._hold(held)
        return True

    def _hold(self, held: Held) -> None:
        final = self.home.hold(held)
        if final:
            self.judge.trial.settle(self.home, final)

    def _of_domain(self, rows: list[Row], event: Event, who: Who) -> Row | None:
        """Of several instances at an address the one that lives and is of the requester's isolation domain, if that is
        beyond doubt."""
        identities, latest_us = self.judge.identities, event.time_us + self.skew_us
        domain = identities.domain(who.identity)
        found: Row | None = None
        for row in rows:
            end = row.end
            if end is None:
                if identities.domain(row.identity) != domain:
                    continue
                if found is not None or (row.time_us > latest_us and row.lane.node != self.node):
                    return None
                found = row
            elif end.time_us > latest_us and end.node != self.node:
                return None
        return found

    def _covered(self, row: Row) -> bool:
        """Whether a barrier ended the row, as of an order after everything that has come."""
        following = (self.judge.position + 1) << POSITION_SHIFT
        return self.barriers.covering(row, following, self.judge.identities) is not None

    def _ordered(self, row: Row, event: Event) -> bool:
        """Whether an order to the fleet could be about the row."""
        orders, identities = self.facts.orders_between(row.time_us, event.time_us), self.judge.identities
        if not orders:
            return False
        if len(orders) > _ORDERS_TRIED or row.identity < 0:
            return True
        epoch = identities.epoch(row.identity)
        for _, fact in orders:
            body = fact.body
            if isinstance(body, EpochFact) and (epoch is None or not before_bump(epoch, body)):
                continue
            assert isinstance(body, EpochFact | InvalidationFact)
            if CORPUS_ID in body.where or self.barriers.agrees(tuple(sorted(body.where.items())), row, identities):
                return True
        return False

    def create(self, event: Event, create: Create, at: Address, found: Row | list[Row] | None) -> bool:
        home, judge = self.home, self.judge
        if (
            event.identity is None
            or event.key_origin == "client"
            or (create.finish is not None and create.finish not in FINISHED)
            or (create.rederived_key is not None and create.rederived_key != event.key)
            or create.computed_tokens is not None
            or (found is not None and self._lives(found))
            or (home.held and self._judged_again(at))
            or (event.copy and len(self.tables) > 1)
            or (self.facts.not_cached and event.identity.tenant_id in self.facts.not_cached)
        ):
            return False
        if event.place:
            owners = home.places.owners.get((at[0], event.place))
            if owners and owners[-1].end is None and not self._covered(owners[-1]):
                return False
        who = self.intern(event.identity)
        row = new_row(event, create, self.order(event), self.lane, who, judge.small, at)
        keep = bool(home.gapped)
        home.addresses.create(row, late=False, keep=keep)
        home.payloads.add(row)
        if event.place:
            home.places.own(row, keep=keep)
        if judge.observations is not None:
            judge.trial.observe_create(event, who)
        if keep:
            self._hold(Held(event, row.order, self.append_us, self.lane, who, at))
        return True

    def _lives(self, found: Row | list[Row]) -> bool:
        """Whether an instance lives at the address."""
        for row in (found,) if isinstance(found, Row) else found:
            if row.end is None and not self._covered(row):
                return True
        return False

    def expire(self, event: Event, expire: Expire, at: Address, found: Row | list[Row] | None) -> bool:
        home = self.home
        if found is None or self._told_late(event) or (home.held and self._disputed(at)):
            return False
        mark = new_mark(event, self.order(event), self.lane, expire.reason)
        if not home.addresses.ends_the_latest(*at, found, mark):
            home.addresses.mark(*at, mark, late=False, keep=bool(home.gapped))
        home.addresses.forget(event.time_us - self.judge.context.horizon_us)
        return True

    def commit(self, event: Event, commit: Commit, at: Address, found: Row | list[Row] | None) -> bool:
        home = self.home
        if found is None or self._told_late(event) or (home.held and self._disputed(at)):
            return False
        mark = new_mark(event, self.order(event), self.lane, COMMIT)
        mark.bytes = -1 if commit.bytes is None else commit.bytes
        mark.payload = commit.payload_digest or ""
        home.addresses.mark(*at, mark, late=False, keep=bool(home.gapped))
        if home.payloads.built:
            for row in home.addresses.rows(*at):
                if row.rare.commit is mark:
                    home.payloads.add(row)
        return True

    def _judged_again(self, at: Address) -> bool:
        """Whether something judged before at the address waits for whatever is created there next."""
        held = self.home.held.get(at)
        return held is not None and any(one.unmatched or one.disputed for one in held)

    def _disputed(self, at: Address) -> bool:
        """Whether a finding at the address waits for the word of another node, which its end or commit may be."""
        if self.own and len(self.home.nodes) == 1:
            return False  # an owner's word is against nobody's
        return any(one.disputed for one in self.home.held.get(at, ()))

    def _told_late(self, event: Event) -> bool:
        """Hits of other nodes may have been seen that were made after this."""
        home = self.home
        return self.judge.stream.newest_us > event.time_us + self.skew_us and bool(home.recent or home.held)
