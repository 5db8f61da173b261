"""A transport that keeps records in a list: for the tests of whoever embeds the publisher."""

import asyncio
from typing import Self

from .transport import TransportError


class MemoryTransport:
    """Keeps (home, record) in order of arrival. While `down` is set, nothing is taken."""

    def __init__(self, *, down: bool = False) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.down = down
        self.attempts = 0

    async def start(self) -> None:
        """Nothing to open."""

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        """Keep the record. Raises `TransportError` while down."""
        self.attempts += 1
        await asyncio.sleep(0)
        if self.down:
            raise TransportError("is switched off.", reason="down", field="transport")
        self.records.append((home, record))

    async def stop(self) -> None:
        """Nothing to close."""

    def fresh(self) -> Self:
        """An empty one: a forked child's records are its own."""
        return type(self)(down=self.down)
