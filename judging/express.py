"""The common case, fast: the next events of a healthy lane that touch ordinary entries and give rise to no finding.

Nothing is decided here that `Trial` would decide otherwise: an event that needs a rule, or finds anything unusual, is
left to the full path. `tests/judging/test_express.py` holds the two against each other.
"""

from typing import TYPE_CHECKING

from ..schemas.envelope import Batch
from ..schemas.events import Create, Event, Expire, Hit
from .ledger.addresses import NOT_READABLE
from .ledger.home import Held, Home, scope_of
from .ledger.lanes import POSITION_SHIFT, SEQ_BITS, Lane
from .ledger.rows import NOTHING_RARE, Mark, Row, pack_digest

if TYPE_CHECKING:
    from .judge import Judge


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
    last_run = lane.runs[0]
    ordinal = lane.ordinal << SEQ_BITS
    tables, barriers = home.addresses.tables, home.barriers
    memo, intern = judge.comparator.memo, judge.identities.intern
    own, skew_us = lane.node == home.owner, judge.context.skew_us
    ordered_until_us = judge.facts.ordered_until_us
    observing = judge.observations is not None
    creates = hits = expires = 0
    newest_us = lane.last_us
    for event in events:
        body = event.body
        kind = type(body)
        table = tables.get(scope_of(event))
        found = None if table is None else table.get(event.key)
        if isinstance(body, Hit):
            if (
                type(found) is Row
                and found.end is None
                and found.rare is NOTHING_RARE
                and found.order > barriers.last
                and found.time_us > ordered_until_us
                and (own or found.lane is lane or found.time_us <= event.time_us + skew_us)
                and event.identity is not None
                and not (event.place or event.part or event.span or event.entry_version)
                and _as_stored(found, body)
            ):
                who = intern(event.identity)
                comparison = None
                if found.mask == who.mask and found.own == who.own:
                    comparison = memo.get((found.identity, who.identity, event.kind, body.match_mode, None, found.mask))
                if comparison is not None and comparison.silent:
                    comparison.hits += 1
                    hits += 1
                    judge.position += 1
                    if not own:
                        order = judge.position << POSITION_SHIFT | ordinal | event.seq
                        held = Held(event, order, append_us, lane, who)
                        held.seen = held.clean = True
                        home.recent.append(held)
                    last_run[1] = event.seq
                    if event.time_us > newest_us:
                        newest_us = event.time_us
                    continue
        elif kind is Create:
            assert isinstance(body, Create)
            if found is None and _ordinary(judge, home, event, body):
                judge.position += 1
                order = judge.position << POSITION_SHIFT | ordinal | event.seq
                who = intern(event.identity)
                row = Row(
                    order=order, lane=lane, time_us=event.time_us, identity=who.identity, mask=who.mask, own=who.own,
                    scope=scope_of(event), key=event.key, kind=event.kind, origin=event.key_origin,
                    tokens=judge.small(body.tokens), bytes=-1 if body.bytes is None else judge.small(body.bytes),
                    packed=pack_digest(body.payload_digest or ""), request_id=event.request_id,
                )  # fmt: skip
                if table is None:
                    table = tables[row.scope] = {}
                table[event.key] = row
                if observing:
                    judge.trial.observe_create(event, who)
                creates += 1
                last_run[1] = event.seq
                if event.time_us > newest_us:
                    newest_us = event.time_us
                continue
        elif (
            isinstance(body, Expire)
            and type(found) is Row
            and found.end is None
            and found.order > barriers.last
            and body.reason not in NOT_READABLE
            and event.identity is None
            and not (event.place or event.entry_version or home.held)
            and (not home.recent or event.time_us + skew_us >= judge.stream.newest_us)
        ):
            judge.position += 1
            order = judge.position << POSITION_SHIFT | ordinal | event.seq
            found.end = Mark(order, event.time_us, body.reason, lane)
            home.addresses.ended.append((event.time_us, (found.scope, found.key)))
            home.addresses.forget(event.time_us - judge.context.horizon_us)
            expires += 1
            last_run[1] = event.seq
            if event.time_us > newest_us:
                newest_us = event.time_us
            continue
        judge.take(home, lane, event, append_us)
    lane.last_us = max(lane.last_us, newest_us)
    judge.stream.seen(newest_us)
    for name, count in (("create", creates), ("hit", hits), ("expire", expires)):
        if count:
            judge.counts[name] = judge.counts.get(name, 0) + count


def _as_stored(row: Row, hit: Hit) -> bool:
    """Nothing that was read contradicts what was stored, and nothing was reported that could be wrong."""
    return (
        hit.outcome == "ok"
        and hit.reported_tokens is None
        and (hit.tokens_read is None or hit.tokens_read == row.tokens)
        and (hit.bytes_read is None or hit.bytes_read == row.bytes)
        and (hit.payload_digest is None or hit.payload_digest == row.payload)
    )


def _ordinary(judge: "Judge", home: Home, event: Event, create: Create) -> bool:
    """A create that no rule looks at and nothing waits for."""
    return (
        create.state == "committed"
        and create.rederived_key is None
        and create.finish is None
        and create.max_age_s is None
        and create.weights_version is None
        and create.computed_tokens is None
        and event.key_origin != "client"
        and event.identity is not None
        and not (event.place or event.part or event.span or event.entry_version)
        and not (home.held or home.addresses.orphans)
        and not home.payloads.built
        and not judge.facts.caching_off
    )
