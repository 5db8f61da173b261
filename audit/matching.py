"""Which create a hit was served from, where no finding says so: the ledger's matching in its simple form.

The detectors judge with the whole ledger; this is for display, over the few events of one history.
"""

from collections.abc import Sequence

from ..schemas.events import MEMORY_TIERS, Create, Event, Expire, Hit, Invalidate, NodeStart

Address = tuple[str, str, str, int, str, str]


def address(event: Event) -> Address:
    """Where the event's entry lives: store, owner node (empty for shared tiers), tier, rank, copy, key."""
    return (event.store, event.owner, event.tier, event.rank, event.copy, event.key)


def agrees(where: dict[str, str], event: Event) -> bool:
    """Whether an entry created by `event` is covered by a scope; an unknown dimension is not agreement."""
    known = event.identity.to_wire() if event.identity is not None else {}
    return all(known.get(dimension) == value for dimension, value in where.items())


def match_hits(events: Sequence[Event]) -> dict[str, Event]:
    """Event id of each hit -> the create of the instance it met; hits without one are left out.

    `events` stand in time order. A live instance comes before an ended one, an equal isolation domain before
    another, and then the latest create.
    """
    living: dict[Address, list[Event]] = {}
    ended: dict[Address, list[Event]] = {}
    found: dict[str, Event] = {}
    for event in events:
        where = address(event)
        if isinstance(event.body, Create):
            living.setdefault(where, []).append(event)
        elif isinstance(event.body, Hit):
            creators = living.get(where) or ended.get(where)
            if creators:
                found[event.id] = _met(event, creators)
        else:
            for place, creators in living.items():
                gone = [create for create in creators if _ends(event, create)]
                if gone:
                    ended.setdefault(place, []).extend(gone)
                    living[place] = [create for create in creators if create not in gone]
    return found


def _met(hit: Event, creators: Sequence[Event]) -> Event:
    if hit.identity is not None:
        domain = hit.identity.isolation_domain
        for create in reversed(creators):
            if create.identity is not None and create.identity.isolation_domain == domain:
                return create
    return creators[-1]


def _ends(event: Event, create: Event) -> bool:
    body = event.body
    if isinstance(body, Expire):
        return address(event) == address(create)
    if isinstance(body, Invalidate):
        if body.outcome == "refused" or event.home != create.home or event.store != create.store:
            return False
        return event.key == create.key if body.scope == "entry" else agrees(body.where, create)
    if isinstance(body, NodeStart):
        return event.home == create.home and (create.tier in MEMORY_TIERS or create.tier not in body.surviving_tiers)
    return False
