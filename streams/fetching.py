"""Faust's consumer, which no longer makes a busy partition wait for idle ones.

Two waits did. Faust asks for all partitions whose buffer has room, for up to a second at a time: one whose buffer was
full at the beginning is left out for that second, however soon it has room again. And aiokafka has one fetch on its way
to a broker, without the partitions of which it holds records: where those are idle, Faust lets the broker keep that
fetch for a second and a half, and what the busy partition has next is not asked for before it comes back.
"""

import asyncio
from typing import Any

from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer

from .clients import FETCH_WAIT_MS

SOON_S = 0.02
"""How long partitions with a full buffer are left out."""


class PromptThread(AIOKafkaConsumerThread):
    """Lets a broker keep a fetch for a short while only."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer


class PromptConsumer(Consumer):
    """Asks for little time while the buffer of a partition is full."""

    def _new_consumer_thread(self) -> PromptThread:
        return PromptThread(self, loop=self.loop, beacon=self.beacon)

    async def _wait_next_records(self, wait_s: float) -> Any:
        if not self._buffered_partitions:
            return await super()._wait_next_records(wait_s)
        if self.flow_active and not self._get_active_partitions():  # Faust would sleep for a second
            await asyncio.sleep(SOON_S)
            return {}, set()
        return await super()._wait_next_records(SOON_S)
