"""What is ordinary about a hit, so that no rule about storage or places has anything to say of it."""

from ..schemas.events import Event, Hit
from .ledger.home import Home
from .ledger.rows import Row


def as_stored(row: Row, hit: Hit) -> bool:
    """Nothing that was read or reported contradicts what was stored."""
    reported = hit.reported_tokens
    return (
        hit.outcome == "ok"
        and (reported is None or (reported > 0 and reported >= hit.reused_tokens))
        and (hit.tokens_read is None or hit.tokens_read == row.tokens)
        and (hit.bytes_read is None or hit.bytes_read == row.bytes_as_stored)
        and (hit.payload_digest is None or hit.payload_digest == row.payload_as_stored)
    )


def ordinary(home: Home, event: Event, hit: Hit, row: Row) -> bool:
    """What is rare about the row or the hit is as it should be."""
    rare = row.rare
    if (
        (event.part and event.request_id)
        or not rare.readable
        or rare.unfinished
        or event.span != rare.span
        or event.entry_version != rare.version
    ):
        return False
    if rare.max_age_us >= 0:
        age_us = round(hit.age_s * 1e6) if hit.age_s is not None else 0
        if max(event.time_us - row.time_us, age_us) > rare.max_age_us:
            return False
    if event.place and (
        event.place != rare.place or (event.generation is not None and event.generation != rare.generation)
    ):
        return False
    if not rare.place:
        return True
    owners = home.places.owners.get((row.scope, rare.place))
    return owners is not None and owners[-1] is row
