"""The end of an aiokafka producer whose broker may be gone: nothing is waited for long, nothing of it stays at work.

Its own `stop` flushes first, which waits for ever without a broker. And a producer that is only cancelled lets its last
requests wait for metadata that nobody fetches any more: two tasks, their batch and a socket would be left each time.
"""

import asyncio
from contextlib import suppress
from typing import Any

CLOSE_TIMEOUT_S = 1.0
_LOOK_S = 0.05


async def end(producer: Any) -> None:
    """Close a producer without its flush, started or not. Never raises."""
    producer._closed = True  # says, to its finaliser too, that nobody has to stop it any more
    client, task = producer.client, producer._sender.sender_task
    if task is not None:
        task.cancel()
    await _close(client)
    if task is not None:
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_TIMEOUT_S
        while not task.done() and loop.time() < until:
            metadata = client._md_update_fut
            if metadata is not None and not metadata.done():
                metadata.set_result(False)  # who would do it has just been closed
            await asyncio.wait({task}, timeout=_LOOK_S)
        task.cancel()  # once more: what it still waits for is cancelled with it
        await asyncio.wait({task}, timeout=_LOOK_S)
        await _close(client)  # what a last request may have opened


async def _close(client: Any) -> None:
    links = [link._writer for link in client._conns.values() if link._writer is not None]
    try:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await client.close()
    finally:
        for link in links:
            link.transport.abort()  # what its broker has not taken by now it never will
