"""The judge of one partition: lifecycle events in, finding revisions out."""

from collections.abc import Callable

from ..schemas.config import JudgingConfig
from ..schemas.context import RESOLVER
from ..schemas.dimensions import TENSORS
from ..schemas.envelope import Batch
from ..schemas.events import Check, Commit, Create, Event, Expire, Hit, Invalidate, NodeStart, RequestEnd, Resolve
from ..schemas.findings import Finding
from ..schemas.identity import Identity
from .aging import Aging
from .checking import Checks
from .comparison import Comparator
from .express import Express
from .factbook import FactBook
from .findings import Findings
from .freezing import Frozen
from .interning import Identities
from .ledger.addresses import COMMIT, Address
from .ledger.entries import new_mark, new_row
from .ledger.home import Held, Home, address_of
from .ledger.lanes import Lane
from .ledger.rows import Mark
from .observations import Observation, RequestClosed
from .revisions import Revisions
from .stream import StreamWatch
from .trial import Trial
from .upheaval import Upheaval
from .verdicts import Context

_NUMBERS_KEPT = 4096


class _Numbers(dict[int, int]):
    def __missing__(self, number: int) -> int:
        if len(self) < _NUMBERS_KEPT:
            self[number] = number
        return number


class Judge:
    """Folds one partition's records into a ledger and judges them. Pure: no clock, no randomness, no I/O.

    What may still change is held and judged again when a missing event, a late create or an identity arrives; all
    else is final when it is first judged.
    """

    def __init__(self, settings: JudgingConfig, deployment: str, facts: FactBook, *, observe: bool = False) -> None:
        """`observe`: collect what fleet rules need in `observations`, for the caller to drain."""
        self.settings, self.deployment, self.facts = settings, deployment, facts
        self.identities = Identities()
        self.comparator = Comparator(self.identities)
        self.context = Context(
            settings=settings,
            identities=self.identities,
            comparator=self.comparator,
            facts=facts,
            skew_us=round(settings.skew_s * 1e6),
            horizon_us=round(settings.horizon_s * 1e6),
        )
        self.homes: dict[str, Home] = {}
        self.lanes: dict[int, Lane] = {}
        self.next_lane = 0
        self.position = 0
        self.counts: dict[str, int] = {}
        self.small = _Numbers().__getitem__
        """The same number, one object for each of the common ones: sizes repeat over a million rows."""
        self._express: dict[int, Express] = {}
        self.revisions = Revisions()
        self.findings = Findings(deployment, self.identities)
        self.stream = StreamWatch(self.revisions, self.findings, self.context)
        self.observations: list[Observation] | None = [] if observe else None
        self.trial = Trial(self.context, self.findings, self.revisions, self.observations)
        self.checks = Checks(self.trial)
        self.aging = Aging(self)
        self.upheaval = Upheaval(self)
        self._handlers: dict[type, Callable[[Home, Held, bool], None]] = {
            Create: self._create,
            Hit: self._hit,
            Commit: self._commit,
            Expire: self._expire,
            Invalidate: self.upheaval.invalidate,
            NodeStart: self.upheaval.node_start,
            Resolve: self._resolve,
            RequestEnd: self._request_end,
            Check: self.checks.take,
        }

    def batch(self, batch: Batch, append_us: int) -> list[Finding]:
        """Judge one record, appended at `append_us`. New finding revisions, in order."""
        if batch.first is None or batch.last is None:
            return []
        self.stream.facts(append_us)
        if batch.node == RESOLVER and all(type(event.body) is Resolve for event in batch.events):
            return self._resolutions(batch)
        if self.aging.due(append_us):
            self.aging.sweep(append_us)
        home, lane = self.open(batch)
        home.heard_us = lane.heard_us = append_us
        express = self._express.get(lane.index)
        if express is None:
            express = self._express[lane.index] = Express(self, home, lane)
        events = batch.events
        if events and express.begins(batch):
            self.take(home, lane, events[0], append_us)
            events = events[1:]
        if express.applies(batch, events):
            express.run(events, append_us)
        else:
            refused = sorted(reject.seq for reject in batch.rejects if reject.seq is not None)
            for event in events:
                while refused and refused[0] < event.seq:
                    self._refused(home, lane, refused.pop(0))
                self.take(home, lane, event, append_us)
            for seq in refused:
                self._refused(home, lane, seq)
        return self.revisions.drain()

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Counts for metrics: events per type, duplicates, live rows, comparisons and coverage per dimension."""
        compared, covered = self.comparator.coverage()
        live = sum(1 for home in self.homes.values() for row in home.addresses if row.end is None)
        held = sum(len(held) for home in self.homes.values() for held in home.held.values())
        return {**self.counts, "live": live, "held": held, "compared": compared, "coverage": covered}

    def freeze(self) -> Frozen:
        """A copy of the exact state, taken in milliseconds; its `encode` may run in another thread."""
        return Frozen(self)

    def dump(self) -> bytes:
        """The exact state: `load` continues with the same future findings."""
        return self.freeze().encode()

    @classmethod
    def load(
        cls, raw: bytes, settings: JudgingConfig, deployment: str, facts: FactBook, *, observe: bool = False
    ) -> "Judge":
        """A judge that continues from `dump`. Raises `SnapshotError` for what is none."""
        from .snapshot import restore

        return restore(cls(settings, deployment, facts, observe=observe), raw)

    def open(self, batch: Batch) -> tuple[Home, Lane]:
        """The home and the lane of a record, made where they are new."""
        home = self.homes.get(batch.home)
        if home is None:
            home = self.homes[batch.home] = Home(batch.home, self.identities, self.context.skew_us)
        time_us = batch.events[0].time_us if batch.events else self.stream.newest_us
        lane, new = home.lane(self.next_lane, batch.node, batch.incarnation, time_us, self.context.skew_us)
        if new:
            self.lanes[lane.index] = lane
            self.next_lane += 1
        return home, lane

    def forget_lane(self, lane: Lane) -> None:
        """Nothing refers to this lane, and nothing more is expected of it."""
        for table in (self.lanes, self._express, self.stream.stated):
            table.pop(lane.index, None)

    def take(self, home: Home, lane: Lane, event: Event, append_us: int) -> None:
        """One event, by the full path."""
        self.position += 1
        first = not lane.runs
        order = lane.take(event.seq, self.position)
        if order is None:
            self.counts["duplicates"] = self.counts.get("duplicates", 0) + 1
            self.stream.repeated(home, lane, event)
            return
        if event.time_us > lane.last_us:
            lane.last_us = event.time_us
        kind = event.type
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.stream.seen(event.time_us)
        if first and lane.node == home.owner:
            self.upheaval.restarted(home, lane, event)
        filled = home.note_gaps(lane, event.time_us, self.context.horizon_us)
        handler = self._handlers.get(type(event.body))
        if handler is not None:
            who = self.identities.intern(event.identity)
            held = Held(event, order, append_us, lane, who, address_of(event), tail=lane.next is not None)
            handler(home, held, lane.is_late(order))
        if home.gapped or filled:
            self.stream.gaps(home, lane, event)
        if filled:
            self._settle(home)

    def _refused(self, home: Home, lane: Lane, seq: int) -> None:
        """An event that was refused: its number is seen, what it said is unknown."""
        self.position += 1
        order = lane.take(seq, self.position)
        if order is not None:
            lane.blind_from = min(lane.blind_from, order)
        filled = home.note_gaps(lane, self.stream.newest_us, self.context.horizon_us)
        self.stream.gaps(home, lane)
        if filled:
            self._settle(home)

    def _settle(self, home: Home) -> None:
        """The last gap was filled: everything held is judged on the whole history, and most of it is final."""
        home.addresses.settle()
        held = home.all_held()
        for one in held:
            self.trial.judge(home, one, "the missing events arrived")
        done = [one for one in held if not self.trial.may_change(home, one)]
        home.release(done)
        self.trial.settle(home, done)

    def again(self, home: Home, held: list[Held], reason: str) -> None:
        """Judge these once more, in the order of the home."""
        for one in sorted(held, key=lambda one: one.order):
            self.trial.judge(home, one, reason)

    def _judge(self, home: Home, held: Held) -> None:
        self.trial.judge(home, held, "")
        if self.trial.may_change(home, held):
            self.trial.settle(home, home.hold(held))
        else:
            self.trial.settle(home, (held,))

    def _close(self, home: Home, judged: list[Held]) -> None:
        """Those of them that nothing can change any more are final."""
        done = [one for one in judged if not self.trial.may_change(home, one)]
        home.release(done)
        self.trial.settle(home, done)

    def _create(self, home: Home, held: Held, late: bool) -> None:
        body = held.event.body
        assert isinstance(body, Create)
        row = new_row(held.event, body, held.order, held.lane, held.who, self.small)
        home.addresses.create(row, late=late, keep=bool(home.gapped))
        home.payloads.add(row)
        sharing: list[Held] = []
        if row.rare.place:
            if late:
                sharing = home.held_of_place(row)
            home.places.own(row, keep=bool(home.gapped))
        if row.origin == "client":
            self.stream.client_key(row, held)
        waiting = home.held.get((row.scope, row.key))
        self._judge(home, held)
        if sharing:
            self.again(home, sharing, "a create arrived late")
        elif waiting:
            again = [
                one
                for one in waiting
                if one is not held and (one.unmatched or one.disputed or (late and one.order > held.order))
            ]
            self.again(home, again, "its create arrived" if not late else "an earlier event arrived late")
            self._close(home, again)

    def _hit(self, home: Home, held: Held, late: bool) -> None:
        event = held.event
        if event.part and event.request_id and event.kind in TENSORS:
            self._part_left_out(home, home.part_of(held))
        self._judge(home, held)
        if held.lane.node != home.owner and not held.unmatched and not held.told:
            self.trial.remember(home, held)
        if held.clean and event.part and event.request_id:
            self.again(home, self.trial.concerned(home, held), "another part of its request was judged")

    def _part_left_out(self, home: Home, oldest: Held | None) -> None:
        """A request has too many parts: its oldest keeps its verdict, unless something else can change it."""
        if oldest is None:
            return
        self.counts["parts_left_out"] = self.counts.get("parts_left_out", 0) + 1
        if not self.trial.may_change_alone(home, oldest):
            home.release((oldest,))
            self.trial.settle(home, (oldest,))

    def _commit(self, home: Home, held: Held, late: bool) -> None:
        body = held.event.body
        assert isinstance(body, Commit)
        mark = new_mark(held.event, held.order, held.lane, COMMIT)
        mark.bytes = -1 if body.bytes is None else body.bytes
        mark.payload = body.payload_digest or ""
        self.mark(home, held, mark, late)
        for row in home.addresses.rows(*held.address):
            if row.rare.commit is mark:
                home.payloads.add(row)

    def _expire(self, home: Home, held: Held, late: bool) -> None:
        body = held.event.body
        assert isinstance(body, Expire)
        self.mark(home, held, new_mark(held.event, held.order, held.lane, body.reason), late)
        home.addresses.forget(held.event.time_us - self.context.horizon_us)

    def mark(self, home: Home, held: Held, mark: Mark, late: bool) -> None:
        """What a commit or an end says about an address, and what is judged again for it."""
        scope, key = held.address
        scopes = home.scopes_for(held.event)
        for one in scopes:
            home.addresses.mark(one, key, mark, late=late, keep=bool(home.gapped))
        addresses = {(at, key) for at in (*scopes, scope)}
        again = [
            one
            for at in addresses
            for one in home.held.get(at, ())
            if one.disputed or (late and one.order > held.order)
        ]
        if again:
            self.again(home, again, "an earlier event arrived late" if late else "another node's event arrived")
            self._close(home, again)
        self.told_later(home, held, addresses)

    def told_later(self, home: Home, held: Held, addresses: set[Address] | None) -> None:
        """Hits of other nodes that came before an end, although by the clocks they were made after it."""
        ended_us = held.event.time_us + self.context.skew_us
        if self.stream.newest_us <= ended_us or not (home.recent or home.held):
            return
        if addresses is None:
            held_there = home.all_held()
        else:
            held_there = [one for at in addresses for one in home.held.get(at, ())]
        again = {
            id(one): one
            for one in (*home.recent, *held_there)
            if one.event.time_us > ended_us
            and one.order < held.order
            and one.event.node != held.event.node
            and (addresses is None or one.address in addresses)
        }
        self.again(home, list(again.values()), "an end that came before it was told later")
        self._close(home, list(again.values()))
        self.trial.settle(home, home.hold_accused())

    def _resolve(self, home: Home, held: Held, late: bool) -> None:
        """The identity of an event that carried only a request id."""
        if held.event.identity is not None:
            self._resolved(home, held.event, held.event.identity)

    def _resolutions(self, batch: Batch) -> list[Finding]:
        """What the resolver sends is numbered after the events it is about: it has no order, and lacks nothing."""
        self.counts["resolve"] = self.counts.get("resolve", 0) + len(batch.events)
        home = self.homes.get(batch.home)
        for event in batch.events if home is not None else ():
            if home is not None and event.identity is not None:
                self._resolved(home, event, event.identity)
        return self.revisions.drain()

    def _resolved(self, home: Home, resolve: Event, identity: Identity) -> None:
        assert isinstance(resolve.body, Resolve)
        event_id = resolve.body.event_id
        # The resolver names the address of the event; whoever else resolves need not.
        for one in home.held.get(address_of(resolve)) or home.all_held():
            if one.event.id == event_id and one.identity < 0:
                one.who = self.identities.intern(identity)
                for row in home.addresses.rows(*one.address):
                    if row.order == one.order:
                        row.resolve(one.who)
                again = [other for other in home.held.get(one.address, ()) if other.order >= one.order]
                self.again(home, again, "its identity was resolved")
                done = [other for other in again if not self.trial.may_change(home, other)]
                home.release(done)
                self.trial.settle(home, done)
                return

    def _request_end(self, home: Home, held: Held, late: bool) -> None:
        event, body = held.event, held.event.body
        assert isinstance(body, RequestEnd)
        if self.observations is not None and event.request_id and body.parts_required:
            self.observations.append(RequestClosed(event.id, event.time_us, event.request_id, body.parts_required))
        done = home.requests.pop(event.request_id, [])
        done = [one for one in done if not self.trial.may_change(home, one)]
        home.release(done)
        self.trial.settle(home, done)
