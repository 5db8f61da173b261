"""A transport that also offers events which lack an identity to `kvtrail.context`, where the resolver finds it.

An event is offered once its record is where it belongs: so its resolution comes after it, also where the record had
waited in a spool. Offers are best effort and hold up nothing: what is not offered stays unresolved, which shows as
missing coverage. Records whose events all have an identity cost one search of their bytes.
"""

import asyncio
import re
from contextlib import suppress
from typing import Self

from ..schemas.config import KafkaConfig
from ..schemas.context import lacks_identity, offer
from ..schemas.envelope import EnvelopeDecoder
from ..schemas.events import Event
from ..schemas.topics import CONTEXT
from .outbox import Outbox
from .transport import Transport

LIMIT = 10_000
SETTLE_S = 0.5
_MAYBE = re.compile(rb',-1,[0-9]+,\{"type":"(?:create|hit)"')
"""A row of an envelope without an identity and with a request id, of a type that is judged by identity."""


class OfferingTransport:
    """`inner`, and `context` for the offers. Whatever happens to an offer, `send` is `inner.send`."""

    def __init__(self, inner: Transport, context: Transport, *, limit: int = LIMIT) -> None:
        self._inner, self._context, self._limit = inner, context, limit
        self._decoder = EnvelopeDecoder()
        self._offers: Outbox[Event] = Outbox(context, lambda event: (event.request_id, offer(event)), limit)
        self._task: asyncio.Task[None] | None = None

    @property
    def offers(self) -> Outbox[Event]:
        """What became of the offers."""
        return self._offers

    async def start(self) -> None:
        """Open `inner`; the way to the context topic is opened by the first offer."""
        await self._inner.start()

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        """Deliver one record, then offer what lacks an identity. Raises as `inner` does."""
        await self._inner.send(home, record, first, last)
        if _MAYBE.search(record):
            for event in self._decoder.decode(record).events:
                if lacks_identity(event):
                    self._offers.put(event)
            if self._task is None:
                self._task = asyncio.create_task(self._offers.run())

    async def stop(self) -> None:
        """Close both; offers get a moment as long as all goes well."""
        if self._task is not None:
            await self._offers.settle(SETTLE_S)
            self._task.cancel()
            await asyncio.wait({self._task})
            with suppress(Exception):
                await self._context.stop()
        await self._inner.stop()

    def fresh(self) -> Self:
        """Another one to the same ends, for a forked child."""
        return type(self)(self._inner.fresh(), self._context.fresh(), limit=self._limit)


def to_kafka(kafka: KafkaConfig) -> OfferingTransport:
    """Lifecycle records to a broker, offers to its context topic. Raises `ConfigError` for a compression that needs a
    package which is not installed."""
    from .kafka import KafkaTransport

    return OfferingTransport(KafkaTransport(kafka), KafkaTransport(kafka, topic=CONTEXT))
