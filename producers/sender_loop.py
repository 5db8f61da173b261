"""The sender's event loop, which shares the interpreter with an engine and interrupts it seldom."""

import asyncio
import selectors
import socket
from typing import Any

STEPS_WITHOUT_NEWS = 32
"""Steps of the loop that may follow each other before it looks at its sockets."""


class Selector(selectors.DefaultSelector):
    """Asks the system for news only when nothing is left to do, or every so often.

    A loop with work asks before each step, and every time it gives up the interpreter's lock to do so. It has that back
    only after the engine's thread has been made to stop for it: what costs the engine is not the thread's own work but
    how often it interrupts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed_over = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As documented; with a timeout of 0 mostly nothing."""
        if timeout == 0 and self._passed_over < STEPS_WITHOUT_NEWS:
            self._passed_over += 1
            return []
        self._passed_over = 0
        return super().select(timeout)


class Loop(asyncio.SelectorEventLoop):
    """A loop that interrupts the engine seldom, and still resolves names while the interpreter exits, when the usual
    worker threads are gone."""

    def __init__(self) -> None:
        super().__init__(Selector())

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """As documented; in this thread where no other can be had."""
        try:
            return await super().getaddrinfo(host, port, **options)
        except RuntimeError:
            return socket.getaddrinfo(host, port, **options)
