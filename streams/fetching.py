"""Faust's consumer, which no longer makes a busy partition wait for idle ones.

Faust asks the broker for all partitions whose buffer has room, for up to a second at a time. One whose buffer was full
at the beginning is left out for that second, however soon it has room again: where the others have nothing to send, a
partition with a backlog was judged for a tenth of a second and then stood still for a whole one.
"""

import asyncio
from typing import Any

from faust.transport.drivers.aiokafka import Consumer

SOON_S = 0.02
"""How long partitions with a full buffer are left out."""


class PromptConsumer(Consumer):
    """Asks for little time while the buffer of a partition is full."""

    async def _wait_next_records(self, wait_s: float) -> Any:
        if not self._buffered_partitions:
            return await super()._wait_next_records(wait_s)
        if self.flow_active and not self._get_active_partitions():  # Faust would sleep for a second
            await asyncio.sleep(SOON_S)
            return {}, set()
        return await super()._wait_next_records(SOON_S)
