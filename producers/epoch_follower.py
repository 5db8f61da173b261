"""Follows `kvtrail.facts` for epoch bumps, in a thread of its own, so that an assembler only ever looks.

It starts by reading all of the facts, and what it has read it keeps: while the broker is away the last epochs known
hold, `lag_s` says for how long nothing proved them current, and nothing that assembles prompts waits or fails.
"""

import asyncio
import os
import threading
import time
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from ..schemas.config import KafkaConfig
from ..schemas.errors import BadInput, BrokerError
from ..schemas.facts import decode_fact
from ..schemas.topics import FACTS
from .epochs import Epochs
from .kafka_client import connection
from .telling import log

POLL_S = 0.5
RETRY_S = 1.0
STOP_S = 2.0
_facts = TopicPartition(FACTS, 0)
_starting = threading.Lock()
"""Held by whoever makes a forked child's thread."""


def _renew() -> None:
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_renew)


class EpochFollower:
    """An `EpochSource` over the fact stream. `epochs` holds what is known, and may begin with configured ones.

    A forked child follows by itself from its first question on, with what was known at the fork until it has read on.

    Raises `BrokerError` when the facts cannot be read within `timeout_s`; nothing raises afterwards.
    """

    def __init__(self, kafka: KafkaConfig, epochs: Epochs | None = None, *, timeout_s: float = 10.0) -> None:
        self.epochs = epochs or Epochs()
        self._kafka = kafka
        self._read_at = 0.0
        self._next = -1
        self._begin()
        if not self._ready.wait(timeout_s):
            self.close()
            raise BrokerError(
                "the facts could not be read in time, so the epoch is not known.", field="kafka.bootstrap",
                remedy="Check that the broker is up and `kvtrail.facts` exists, or set epoch.value.",
            )  # fmt: skip

    @property
    def lag_s(self) -> float:
        """Seconds since the broker last said that everything there is has been read."""
        return time.monotonic() - self._read_at

    def of(self, **prefix: str | None) -> str:
        """The epoch of a prefix, as far as has been read."""
        self._here()
        return self.epochs.of(**prefix)

    def mark(self, prompt: str, **prefix: str | None) -> str:
        """The prompt with the marker of its epoch at its front; unchanged where it has none."""
        self._here()
        return self.epochs.mark(prompt, **prefix)

    def close(self) -> None:
        """Stop following. What is known stays."""
        self._stopping.set()
        if self._process != os.getpid():
            return  # the thread is the parent's
        loop, over = self._loop, self._over
        if loop is not None and over is not None:
            with suppress(RuntimeError):  # it has ended in between
                loop.call_soon_threadsafe(over.set)
        self._thread.join(2 * STOP_S)

    def __enter__(self) -> "EpochFollower":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="kvtrail-epochs", daemon=True)
        self._thread.start()
        self._process = os.getpid()

    def _here(self) -> None:
        """A forked child has the parent's epochs and not its thread, and maybe a lock that nobody will open."""
        if self._process != os.getpid() and not self._stopping.is_set():
            with _starting:
                if self._process != os.getpid():
                    self.epochs.after_fork()
                    with suppress(RuntimeError):  # no thread to be had: the next question tries again
                        self._begin()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            log.exception("following the epochs has failed: the last ones known hold")

    async def _main(self) -> None:
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        told = False
        while not self._stopping.is_set():
            try:
                await self._follow()
            except Exception as error:  # whatever it was, the next attempt may succeed
                if not told and self._ready.is_set():
                    told = True
                    log.warning("epoch facts cannot be read (%s): the last ones known hold", type(error).__name__)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), RETRY_S)

    async def _follow(self) -> None:
        consumer = AIOKafkaConsumer(
            **connection(self._kafka), group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            await consumer.start()
            consumer.assign([_facts])
            start = (await consumer.beginning_offsets([_facts]))[_facts]
            consumer.seek(_facts, max(start, self._next))
            while not self._stopping.is_set():
                await self._read(consumer)
        finally:
            with suppress(KafkaError, OSError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await consumer.stop()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        end = (await consumer.end_offsets([_facts]))[_facts]
        while not self._stopping.is_set():
            position = await consumer.position(_facts)
            if position >= end:
                self._read_at = time.monotonic()
                self._ready.set()
                break
            await self._take(consumer, POLL_S)
        await self._take(consumer, POLL_S)

    async def _take(self, consumer: AIOKafkaConsumer, wait_s: float) -> None:
        found = await consumer.getmany(_facts, timeout_ms=int(wait_s * 1000))
        for record in found.get(_facts, ()):
            self._next = record.offset + 1
            with suppress(BadInput):  # a worker refuses and keeps it; here it says nothing of an epoch
                self.epochs.take(decode_fact(record.value or b""))
