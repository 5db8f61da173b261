"""One record that the store rejects, cut down to the events at fault. Pure, but for the insert it is given.

The events go first, in halves under tokens of their own, then the record as evidence, with the right counts. Everything
is cut the same way each time: after a crash the same inserts go again under the same tokens.
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from ..schemas.errors import StoreRejected
from ..schemas.events import Event
from ..store import rows
from ..store.client import NoSuchDatabase, SchemaMissing
from .intake import Item, source_of

NOBODYS_FAULT = (NoSuchDatabase, SchemaMissing)
"""Rejections that say nothing about the rows."""

Insert = Callable[[rows.Rows, str], Awaitable[None]]
"""Rows under a token. Raises `StoreRejected`."""


async def store_singly(item: Item, token: str, insert: Insert) -> list[tuple[Event, StoreRejected]] | None:
    """Store the record's events but those that the store rejects; these, with the reason. None where none of them is
    accepted, or where there is only one: then it is the record that is rejected. Raises `StoreRejected` where the
    events are stored and the record's own row is not."""
    batch = item.batch
    assert batch is not None
    source = source_of(item.record)
    wanted = [event for event in batch.events if event.seq not in item.drop]

    def only(events: Sequence[Event]) -> rows.Rows:
        """The rows of these events, without the record's own."""
        kept = {event.seq for event in events}
        drop = frozenset(event.seq for event in batch.events if event.seq not in kept)
        made = rows.record_rows([rows.Record(source, item.record.value, batch, drop)])
        return made._replace(columns={name: column[1:] for name, column in made.columns.items()})

    async def halves(events: Sequence[Event]) -> list[tuple[Event, StoreRejected]]:
        if not events:
            return []
        try:
            await insert(only(events), f"{token}/{events[0].seq}-{events[-1].seq}")
        except NOBODYS_FAULT:
            raise
        except StoreRejected as error:
            if len(events) == 1:
                return [(events[0], error)]
            middle = len(events) // 2
            return await halves(events[:middle]) + await halves(events[middle:])
        return []

    if len(wanted) < 2:
        return None
    middle = len(wanted) // 2
    refused = await halves(wanted[:middle]) + await halves(wanted[middle:])
    if len(refused) == len(wanted):
        return None
    at_fault = {event.seq for event, _ in refused}
    kept = replace(batch, events=[event for event in batch.events if event.seq not in at_fault])
    evidence = rows.record_rows([rows.Record(source, item.record.value, kept, item.drop)])
    columns = {name: column[:1] for name, column in evidence.columns.items()}
    columns["n_rejects"] = [len(batch.rejects) + len(refused)]
    await insert(evidence._replace(columns=columns), token)
    return refused
