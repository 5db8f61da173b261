"""Lanes: homes, sequence numbers, and the packing of runs into records.

A number is given when its event is packed, in the order of acceptance, after the event was found to be one that
every reader will take. What happened to an entry costs one either way: dropped, or of which no event can be made, it is
a gap that the reader sees. Any other call that no event can be made of costs none.
"""

from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..schemas.config import PublisherConfig
from ..schemas.envelope import EnvelopeDecoder, encode_plain
from ..schemas.errors import BadInput
from ..schemas.events import Check, Event, Invalidate, Lookups, NodeStart
from ..schemas.identity import Identity
from .buffer import NOTHING, PLAIN, Item, oldest
from .packing import Writer
from .placing import CACHE_CALLS, homes_at
from .tally import Marks

ITEM_FIELDS = (
    "key", "identity", "store", "tier", "owner", "request_id", "rank", "copy", "key_origin", "kind", "part", "span",
    "entry_version", "place", "generation", "trace_id",
)  # fmt: skip
"""What follows time and body in an `Item`."""


def homes_of(item: Item, node: str, slots: int) -> tuple[str, ...]:
    """Where an event is ordered: one home, or every slot of a shared store for an invalidation that covers it.

    Raises `Homeless` for arguments that name none: the caller refuses the event.
    """
    body, tier = item[1], item[5]
    shared = tier == "shared" and not isinstance(body, NodeStart | Lookups)
    whole = isinstance(body, Invalidate) and body.scope == "store"
    return homes_at(shared, whole, item[2], item[4], item[6], node, slots)


class Packed(Struct, frozen=True):
    """One record ready to be sent: the run `first`..`last` of a lane."""

    record: bytes
    first: int
    last: int

    @property
    def events(self) -> int:
        """How many events it holds."""
        return self.last - self.first + 1


class Lane:
    """One lane: the events of this incarnation in one home. `pending` holds items, counts of dropped events, and
    markers, in order; `given` numbers have been given out; `marks` keeps the books that outlive the process."""

    __slots__ = ("given", "hole", "home", "marks", "pending")

    def __init__(self, home: str, marks: Marks | None = None) -> None:
        self.home = home
        self.marks = marks
        self.given = 0
        self.hole = False
        self.pending: deque[Any] = deque()


class Packer:
    """Makes records of a lane's oldest events. `refuse(field, message)` is called for each that no event can hold.

    In the place of one that says what happened to an entry its number is left out, a gap. Any other costs no number,
    unless `stand_in` gives another event for it.
    """

    def __init__(
        self,
        node: str,
        incarnation: str,
        config: PublisherConfig,
        refuse: Callable[[str, str], None],
        stand_in: Callable[[Item], Item] | None = None,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self._config = config
        self._refuse = refuse
        self._stand_in = stand_in
        self._writer = Writer(node, incarnation)
        self._decoder = EnvelopeDecoder()
        self._room = config.envelope_events
        """How many events are expected to fit: fewer after a record that was too large, more again after small ones."""

    def pack(self, lane: Lane) -> Packed | None:
        """The lane's next record, or None where a marker, or nothing, comes next."""
        pending = lane.pending
        while pending:
            while pending and type(pending[0]) is int:
                lane.given += pending.popleft()
                lane.hole = True
            items: list[Item] = oldest(pending, self._room)
            if not items:
                return None
            packed = self._pack(lane, items)
            if packed is not None:
                lane.given = packed.last
                lane.hole = False
                return packed
        return None

    def _pack(self, lane: Lane, items: list[Item]) -> Packed | None:
        first = lane.given + 1
        record = self._encoded(lane, items)
        if record is None:
            things = [self._taken(lane, item) for item in items]
            if all(map(is_, things, items)):  # each was found good alone: nothing is known to lead here
                reason = "cannot be put into an envelope."
                things = [self._turn_down(lane, item, f"{_type(item)}.arguments", reason) for item in items]
            lane.pending.extendleft(thing for thing in reversed(things) if thing is not None)
            return None
        while len(record) > self._config.envelope_bytes:
            if len(items) == 1:
                reason = "is larger than an envelope may be."
                thing = self._turn_down(lane, items[0], f"{_type(items[0])}.size", reason)
                if thing is not None:
                    lane.pending.appendleft(thing)
                return None
            fit = max(1, min(len(items) - 1, len(items) * self._config.envelope_bytes * 7 // (8 * len(record))))
            if self._stand_in is None:  # a run that may be packed again has to give the same records
                self._room = fit
            lane.pending.extendleft(reversed(items[fit:]))
            items = items[:fit]
            record = self._writer.write(lane.home, first, items)
        if len(items) >= self._room and len(record) < self._config.envelope_bytes // 4:
            self._room = min(self._config.envelope_events, 2 * self._room)
        return Packed(record, first, first + len(items) - 1)

    def _encoded(self, lane: Lane, items: list[Item]) -> bytes | None:
        """The items as one record; None where one of them is bad."""
        try:
            return self._writer.write(lane.home, lane.given + 1, items)
        except Exception:  # whatever a caller put there: the slow path finds it and names the field
            return None

    def _taken(self, lane: Lane, item: Item) -> Item | int | None:
        """The item, where an event can be made of it; else it is refused by the name of its field."""
        try:
            event = self._event(lane, item, 1)
            if not _right_types(event):
                return self._turn_down(lane, item, f"{_type(item)}.{_wrong_type(event)}", "has the wrong type.")
            # As a plain event first, whose decoder names each field; the envelope's tables are checked after it.
            batch = self._decoder.decode(encode_plain(event))
            if not batch.rejects:
                batch = self._decoder.decode(self._writer.write(lane.home, 1, [item]))
            if batch.rejects:
                error: BadInput = batch.rejects[0].error
                # Its code, not its message: that may quote the value.
                field = f"{_type(item)}.{_plain_field(error.field)}"
                return self._turn_down(lane, item, field, f"is refused ({error.code}).")
        except Exception as error:
            field = f"{_type(item)}.{_culprit(item)}"
            return self._turn_down(lane, item, field, f"cannot be written ({type(error).__name__}).")
        return item

    def _turn_down(self, lane: Lane, item: Item, field: str, message: str) -> Item | int | None:
        """What takes the place of a refused item: a number that is left out, an event that stands in, or nothing."""
        self._refuse(field, message)
        if _type(item) in CACHE_CALLS:
            return 1
        if self._stand_in is None:
            if lane.marks is not None:
                lane.marks.refused()
            return None
        stands_in = isinstance(item[1], Check) and item[1].check == "heartbeat"
        return 1 if stands_in else self._stand_in(item)

    def _event(self, lane: Lane, item: Item, seq: int) -> Event:
        time_ns, body, key, identity, store, tier, _owner, request_id, how, more = item
        rank, copy, origin, kind, part = how
        span, version, place, generation, trace_id = more
        return Event(
            node=self.node, incarnation=self.incarnation, home=lane.home, seq=seq, time_us=time_ns // 1000, body=body,
            store=store, tier=tier, rank=rank, copy=copy, key=key,  # type: ignore[arg-type]  # read back above
            key_origin=origin, kind=kind, part=part, span=span,  # type: ignore[arg-type]  # read back above
            entry_version=version, place=place, generation=generation, request_id=request_id, trace_id=trace_id,
            identity=identity,
        )  # fmt: skip


def heartbeat(
    time_ns: int,
    home: str,
    detail: str = "events before this one were dropped",
    result: Literal["pass", "inconclusive"] = "pass",
) -> Item:
    """A check that says only "this lane goes on": it makes a gap at a lane's end visible to its readers."""
    body = Check(check="heartbeat", result=result, detail=detail)
    store, tier = (home[2:].rpartition(":")[0], "shared") if home.startswith("s:") else ("", "gpu")
    return (time_ns, body, "", None, store, tier, "", "", PLAIN, NOTHING)


def first_event(time_ns: int) -> Item:
    """The `node_start` of an incarnation that did not announce itself: nothing is known to have survived."""
    return (time_ns, NodeStart(), "", None, "", "gpu", "", "", PLAIN, NOTHING)


_TEXTS = ("key", "place", "request_id", "span", "entry_version", "trace_id")


def _right_types(event: Event) -> bool:
    """What reading the record back cannot find: a foreign identity, and bytes, which become Base64 text."""
    return all(type(getattr(event, name)) is str for name in _TEXTS) and (
        event.identity is None or isinstance(event.identity, Identity)
    )


def _wrong_type(event: Event) -> str:
    return next((name for name in _TEXTS if type(getattr(event, name)) is not str), "identity")


def _type(item: Item) -> str:
    return str(item[1].__struct_config__.tag)


def _plain_field(field: str) -> str:
    """`events.0.body.tokens` -> `tokens`."""
    parts = [part for part in field.split(".") if part not in ("events", "0", "body", "extra", "record")]
    return ".".join(parts) or "arguments"


def _culprit(item: Item) -> str:
    """The first header field, or else body field, that JSON cannot hold."""
    fields: list[tuple[str, Any]] = [
        (name, value)
        for name, value in zip(ITEM_FIELDS, (*item[2:8], *item[8], *item[9]), strict=True)
        if name != "identity"
    ]
    fields += [(name, getattr(item[1], name)) for name in item[1].__struct_fields__]
    for name, value in fields:
        try:
            hash(value) if name in ITEM_FIELDS else None
            msgspec.json.encode(value)
        except Exception:
            return name
    return "arguments"
