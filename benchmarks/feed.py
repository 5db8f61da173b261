"""The publishers' side as a process: records that were packed before, sent as fast as they go or at a pace."""

import asyncio
import os
import time
from collections import deque
from pathlib import Path

import msgspec
from msgspec import Struct

from ..schemas.config import Config, load_config
from ..schemas.topics import FACTS, LIFECYCLE
from ..streams.clients import producer as make_producer
from .rig import used
from .traffic import read

_IN_FLIGHT = 500
"""Records sent and not acknowledged; more would only fill this process' memory."""


class Fed(Struct):
    """Unix times of the first send and the last acknowledgement, processor time in between, and when each envelope
    was sent: (partition, offset, unix time)."""

    began: float
    ended: float
    cpu_s: float
    peak_mb: float
    sent: list[tuple[int, int, float]]


def main(path: str, first: str, end: str, rate: str, out: str) -> None:
    """Send frames `first` up to `end` of `path`, `rate` events a second (0: at once); the account goes to `out`."""
    fed = asyncio.run(_feed(load_config(), Path(path), int(first), int(end), float(rate)))
    Path(out).write_bytes(msgspec.msgpack.encode(fed))


def account(path: Path) -> Fed:
    """What a feeder wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Fed)


async def _feed(config: Config, path: Path, first: int, end: int, rate: float) -> Fed:
    producer = make_producer(config.kafka, "bench-feed")
    await producer.start()
    sent: list[tuple[int, int, float]] = []
    waiting: deque[tuple[float, asyncio.Future[object]]] = deque()

    async def settle(most: int) -> None:
        while len(waiting) > most:
            at, future = waiting.popleft()
            record: object = await future
            sent.append((record.partition, record.offset, at))  # type: ignore[attr-defined]  # aiokafka has no types

    try:
        began, used_s, events = time.time(), time.process_time(), 0
        for frame in read(path, first, end):
            if frame.fact:  # what follows a fact must not overtake it
                await settle(0)
                await producer.send_and_wait(FACTS, frame.value, key=frame.key.encode())
                continue
            if rate:
                await asyncio.sleep(max(0.0, began + events / rate - time.time()))
            events += frame.events
            waiting.append((time.time(), await producer.send(LIFECYCLE, frame.value, key=frame.key.encode())))
            await settle(_IN_FLIGHT)
        await settle(0)
        return Fed(began, time.time(), time.process_time() - used_s, used(os.getpid()).peak_mb, sent)
    finally:
        await producer.stop()
