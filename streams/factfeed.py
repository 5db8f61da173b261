"""Facts: read whole by every worker, outside any group, into one book; and the gate that makes live and replay agree.

A batch may be judged once every fact appended before its newest envelope is in the book. Only a record on the facts
topic itself proves that: one with a later append time. Where none has come, the worker writes a tick there.
"""

import asyncio
import logging
import time
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ..judging.factbook import FactBook
from ..schemas.config import KafkaConfig
from ..schemas.errors import BadInput
from ..schemas.facts import Fact, Tick, decode_fact, encode_fact
from ..schemas.topics import FACTS
from .clients import reader

_log = logging.getLogger("kvtrail.streams.facts")
_facts = TopicPartition(FACTS, 0)


class FactFeed:
    """Reads `kvtrail.facts` from its first record on and keeps reading. `book` is shared by all judges."""

    def __init__(self, kafka: KafkaConfig, producer: AIOKafkaProducer, instance: str) -> None:
        self.book = FactBook()
        self.facts = 0
        self.refused = 0
        self.ticks = 0
        self._instance = instance
        self._consumer: AIOKafkaConsumer = reader(kafka, f"kvtrail-{instance}-facts")
        self._producer = producer
        self._read_us = 0
        self._next = 0
        self._moved = asyncio.Event()
        self._ticking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when every fact that existed at the call is in the book."""
        await self._consumer.start()
        self._consumer.assign([_facts])
        start = (await self._consumer.beginning_offsets([_facts]))[_facts]
        end = (await self._consumer.end_offsets([_facts]))[_facts]
        self._consumer.seek(_facts, start)
        while start < end and await self._consumer.position(_facts) < end:
            await self._read()
        self._task = asyncio.create_task(self._follow(), name="facts")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.stop()

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The following reader; it ends only by failing."""
        return self._task

    async def reach(self, append_us: int) -> None:
        """Wait until every fact appended before `append_us` has been read.

        Append times have a resolution of a millisecond, so a record of the same millisecond proves nothing about
        what follows it: the proof must be later.
        """
        while self._read_us <= append_us:
            async with self._ticking:
                if self._read_us > append_us:
                    return
                await self._tick(append_us)

    async def _tick(self, append_us: int) -> None:
        tick = Fact(id=f"tick-{uuid.uuid4().hex}", effective_at_us=time.time_ns() // 1000, body=Tick())
        written = await self._producer.send_and_wait(FACTS, encode_fact(tick), key=f"tick:{self._instance}".encode())
        self.ticks += 1
        while self._next <= written.offset:
            self._moved.clear()
            await self._moved.wait()
        if written.timestamp * 1000 <= append_us:
            # The same millisecond, or a broker whose clock is behind the one that stamped the envelope.
            await asyncio.sleep((append_us - written.timestamp * 1000) / 1e6 + 0.001)

    async def _follow(self) -> None:
        while True:
            await self._read()

    async def _read(self) -> None:
        chunk = await self._consumer.getmany(_facts, timeout_ms=500)
        for record in chunk.get(_facts, []):
            append_us = record.timestamp * 1000
            try:
                fact = decode_fact(record.value or b"")
            except BadInput as error:
                self.refused += 1
                _log.warning("a fact was refused: %s", error, extra={"offset": record.offset, "code": error.code})
            else:
                if not isinstance(fact.body, Tick):
                    self.facts += self.book.add(fact, append_us)
            self._read_us = max(self._read_us, append_us)
            self._next = record.offset + 1
        self._moved.set()
