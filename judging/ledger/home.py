"""A home: its lanes, entries, barriers and places, and the judgements that may still change."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import TypeVar

from msgspec import Struct

from ...schemas.events import Event
from ...schemas.reserved import is_reserved_home
from ..interning import Identities, Who
from .addresses import Address, Addresses
from .barriers import Barriers
from .lanes import Incarnations, Lane
from .places import Payloads, Places
from .rows import MEMORY, Row, Scope, pack_key

HELD_KEPT = 16_384
RECENT_KEPT = 512
REQUESTS_KEPT = 8_192
PARTS_KEPT = 256
"""Of one request. Each may have all others judged again."""


class Held(Struct, gc=False, eq=False):
    """A judged event that may be judged again: something before it is missing, unknown or may still come."""

    event: Event
    order: int
    append_us: int
    lane: Lane
    who: Who
    address: Address
    unmatched: bool = False
    disputed: bool = False
    """It has a finding, and what other nodes did about the same time may still clear it."""
    tail: bool = False
    """It came when the next incarnation of its node had begun."""
    seen: bool = False
    """It was counted."""
    gone: bool = False
    clean: bool = False
    """Its identity was compared and matched."""
    told: bool = False
    """Something was found about it, now or before."""

    @property
    def identity(self) -> int:
        return self.who.identity


_Key = TypeVar("_Key")


def _removed(lists: dict[_Key, list[Held]], key: _Key, held: Held) -> bool:
    """Take it out of the list under this key, where it is in it. The oldest goes first, mostly."""
    known = lists.get(key)
    if known is None:
        return False
    at = 0
    if known[0] is not held:
        at = next((n for n, other in enumerate(known) if other is held), -1)
        if at < 0:
            return False
    if len(known) == 1:
        del lists[key]
    else:
        del known[at]
    return True


class Home:
    """Everything that one home orders. Nothing here spans homes."""

    def __init__(self, name: str, identities: Identities, skew_us: int) -> None:
        self.name = name
        self.owner = name[2:] if name.startswith("n:") else ""
        self.nodes: dict[str, Incarnations] = {}
        self.barriers = Barriers(skew_us)
        self.addresses = Addresses(self.barriers, identities, skew_us)
        self.places = Places()
        self.payloads = Payloads()
        self.gapped: dict[int, Lane] = {}
        self.held: dict[Address, list[Held]] = {}
        self.held_order: deque[Held] = deque()
        self._held_at: dict[str, list[Held]] = {}
        """The same, by the place they name."""
        self._gone = 0
        self.requests: dict[str, list[Held]] = {}
        self.recent: deque[Held] = deque(maxlen=RECENT_KEPT)
        """Hits of nodes that do not own the home, found to be right: the owner's word can come later than theirs."""
        self.heard_us = 0
        """When the log last brought a record of this home."""
        self.born_empty = False
        """The first incarnation of the owner said that nothing had survived into it."""

    def lane(self, index: int, node: str, incarnation: str, time_us: int, skew_us: int) -> tuple[Lane, bool]:
        """The lane, and whether it is new (then it took `index`)."""
        incarnations = self.nodes.get(node)
        if incarnations is None:
            incarnations = self.nodes[node] = Incarnations()
        found = incarnations.find(incarnation)
        if found is not None:
            return found, False
        return incarnations.open(index, node, incarnation, self.name, time_us, skew_us), True

    def has_others(self, node: str) -> bool:
        """Whether other nodes than this one can write here: the heartbeat's homes are its node's alone."""
        return self.owner != node and not is_reserved_home(self.name)

    def note_gaps(self, lane: Lane, time_us: int, horizon_us: int) -> bool:
        """Keep count of the lanes with gaps. True when the last gap of this home has just been filled, or given up:
        what has not come within the horizon holds nothing back any longer."""
        if lane.whole:
            return bool(self.gapped) and self.gapped.pop(lane.index, None) is not None and not self.gapped
        if lane.index not in self.gapped:
            lane.gap_us = time_us
            self.gapped[lane.index] = lane
        for other in [other for other in self.gapped.values() if time_us - other.gap_us > horizon_us]:
            other.give_up()
            del self.gapped[other.index]
        return not self.gapped

    def missing(self, tier: str, order: int) -> bool:
        """Whether events are missing that could bear on an entry of this tier at `order`. What an incarnation that is
        over left unsaid cannot be about memory."""
        gapped = [lane for lane in self.gapped.values() if lane.hole < order]
        if not gapped or tier not in MEMORY:
            return bool(gapped)
        current = self._current(order)
        return any(lane.node != self.owner or lane is current for lane in gapped)

    def complete(self, tier: str, order: int) -> bool:
        """Whether every create of a tier that could be live is known: the owner's history has no hole since a start
        that nothing survived. A shared store's history is never known to be complete."""
        current = self._current(order)
        if current is None or self.missing(tier, order):
            return False
        lanes = self.nodes[self.owner].lanes
        if tier in MEMORY:
            return current.blind_from > order
        # The tail of a process that died may be lost, and a tier that survives may hold what it had written.
        return self.born_empty and len(lanes) == 1 and current.blind_from > order

    def _current(self, order: int) -> Lane | None:
        """The owner's incarnation at `order`."""
        lanes = self.nodes[self.owner].lanes if self.owner in self.nodes else []
        return next((lane for lane in reversed(lanes) if lane.runs and lane.start <= order), None)

    def hold(self, held: Held) -> Sequence[Held]:
        """Keep a judged event so that it can be judged again; those that are now final instead."""
        self.held.setdefault(held.address, []).append(held)
        self.held_order.append(held)
        if held.event.place:
            self._held_at.setdefault(held.event.place, []).append(held)
        return () if len(self.held_order) - self._gone <= HELD_KEPT else self._oldest()

    def _oldest(self) -> list[Held]:
        """Those for which there is no room."""
        final: list[Held] = []
        while len(self.held_order) - self._gone > HELD_KEPT:
            oldest = self.held_order.popleft()
            if not oldest.gone:
                self._forget(oldest)
                final.append(oldest)
            self._gone -= 1
        return final

    def hold_accused(self) -> Iterator[Held]:
        """Keep those that had been found to be right and are not any more, since a create may still clear them."""
        for accused in [one for one in self.recent if one.disputed]:
            self.recent.remove(accused)
            if accused not in self.held.get(accused.address, ()):
                if accused.gone:  # one that was held before is still counted there
                    accused = copy(accused)
                    accused.gone = False
                yield from self.hold(accused)

    def release(self, done: Iterable[Held]) -> None:
        """These are final now."""
        for held in done:
            self._forget(held)
        if len(self.held_order) > 1024 and self._gone * 2 > len(self.held_order):
            self._compact()

    def _compact(self) -> None:
        self.held_order = deque(held for held in self.held_order if not held.gone)
        self._gone = 0

    def is_held(self, order: int, address: Address) -> bool:
        """Whether the event of this order may be judged again."""
        return any(one.order == order for one in self.held.get(address, ()))

    def _forget(self, held: Held) -> None:
        if held.gone or not _removed(self.held, held.address, held):
            return
        held.gone = True
        self._gone += 1
        if held.event.place:
            _removed(self._held_at, held.event.place, held)
        if self.requests and held.event.request_id in self.requests:
            self._part_no_more(held)

    def _part_no_more(self, held: Held) -> None:
        """What is final is beside nothing: a judge that is made from a snapshot does not know it either."""
        request = held.event.request_id
        parts = [other for other in self.requests[request] if other is not held]
        if parts:
            self.requests[request] = parts
        else:
            del self.requests[request]

    def part_of(self, held: Held) -> Held | None:
        """Remember a part that a request was served, until the request ends, too many are open, or it is final.
        The oldest part, where the request has too many for it to be remembered."""
        parts = self.requests.setdefault(held.event.request_id, [])
        parts.append(held)
        if len(self.requests) > REQUESTS_KEPT:
            del self.requests[next(iter(self.requests))]
        return parts.pop(0) if len(parts) > PARTS_KEPT else None

    def older(self, append_us: int) -> list[Held]:
        """Judgements of what the log brought before `append_us`: held, or hits of other nodes that were right, which
        are no longer kept from then."""
        past = [held for held in self.recent if held.append_us < append_us]
        self.recent = deque((held for held in self.recent if held.append_us >= append_us), maxlen=RECENT_KEPT)
        return [*(held for held in self.all_held() if held.append_us < append_us), *past]

    def sweep(self, before_us: int) -> None:
        """Forget what ended before `before_us`, and what only that could refer to."""
        self._compact()
        self.addresses.sweep(before_us)
        self.places.sweep(self.addresses, before_us)
        self.barriers.sweep(before_us)
        self.payloads = Payloads()  # built again when somebody asks

    def clear(self) -> None:
        """Forget every entry."""
        self.addresses.clear()
        self.places = Places()
        self.payloads = Payloads()

    def all_held(self) -> list[Held]:
        """In order of the home."""
        return sorted((held for helds in self.held.values() for held in helds), key=lambda held: held.order)

    def held_of_place(self, row: Row) -> list[Held]:
        """What a late create in `row`'s place can change: who read that place, and who was served an entry that was in
        it or has its key."""
        place = row.rare.place
        keys = {row.key, *(owner.key for owner in self.places.owners.get((row.scope, place), ()))}
        served = [held for scope in self.addresses.tables for key in keys for held in self.held.get((scope, key), ())]
        read = self._held_at.get(place, ())
        return list({id(held): held for held in (*served, *read)}.values())

    def scopes_for(self, event: Event) -> list[Scope]:
        """Where the event's entry is: at its address; where it names a copy that is not there, or none, any copy."""
        scope, key = address_of(event)
        if len(self.addresses.tables) < 2 or self.addresses.rows(scope, key):
            return [scope]
        others = [other for other in self.addresses.tables if other[:3] == scope[:3] and "" in (other.copy, scope.copy)]
        return [other for other in others if self.addresses.rows(other, key)] or [scope]

    def at(self, event: Event) -> list[Row]:
        """Every instance known where the event's entry is, whenever it was created."""
        key = pack_key(event.key)
        return [row for scope in self.scopes_for(event) for row in self.addresses.rows(scope, key)]

    def candidates(self, event: Event, order: int, skew_us: int) -> list[Row]:
        """Instances at the event's address that had been created when it happened.

        The home's order says so. A create of another node whose clock contradicts it by more than the skew counts
        only where there is no other; and where there is none at all, a create that arrived later from another node
        but was made before the hit, as far as clocks can tell.
        """
        scopes, key = self.scopes_for(event), pack_key(event.key)
        before = [row for scope in scopes for row in self.addresses.known(scope, key, order)]
        likely = [row for row in before if row.lane.node == event.node or row.time_us <= event.time_us + skew_us]
        if before:
            return likely or before
        rows = [row for scope in scopes for row in self.addresses.rows(scope, key)]
        return [row for row in rows if row.lane.node != event.node and row.time_us <= event.time_us + skew_us][:1]


_scopes: dict[tuple[str, str, int, str], Scope] = {}


def scope_of(event: Event) -> Scope:
    """The event's scope, one object per value."""
    packed = (event.store, event.tier, event.rank, event.copy)
    scope = _scopes.get(packed)
    if scope is None:
        if len(_scopes) > 65_536:
            _scopes.clear()
        scope = _scopes[packed] = Scope(*packed)
    return scope


def address_of(event: Event) -> Address:
    """The event's scope and its packed key."""
    return scope_of(event), pack_key(event.key)
