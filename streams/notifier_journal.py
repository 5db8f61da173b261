"""`kvtrail.notifications`: what was decided and what became of it, written in order and read back by the next life."""

import asyncio
import logging

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ..schemas.config import KafkaConfig
from ..schemas.errors import BadInput
from ..schemas.notifications import Entry, encode_entry
from ..schemas.notifications import decode_entry as decode
from ..schemas.topics import NOTIFICATIONS
from .reader import TopicReader

_CAP_S = 5.0

_log = logging.getLogger("kvtrail.streams.notifier")


class Journal:
    """Entries reach the topic in the order of `put`, each tried until it is there."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.next = 0
        """Every entry before this offset is known."""
        self._producer = producer
        self._queue: asyncio.Queue[tuple[Entry, asyncio.Future[None]]] = asyncio.Queue()

    def put(self, entry: Entry) -> "asyncio.Future[None]":
        """Write this entry, soon. The answer is done when it is there."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((entry, written))
        return written

    async def run(self) -> None:
        """Write, for ever."""
        while True:
            entry, written = await self._queue.get()
            key, pause_s = _key(entry), 0.1
            while True:
                try:
                    at = await self._producer.send_and_wait(NOTIFICATIONS, encode_entry(entry), key=key)
                except KafkaError as error:
                    _log.warning("what was told is written down later: %r", error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _CAP_S)
                else:
                    break
            if at.offset == self.next:  # else another one wrote something that is to be read
                self.next += 1
            if not written.done():
                written.set_result(None)
            self._queue.task_done()

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything is written, or until the time is over."""
        try:
            await asyncio.wait_for(self._queue.join(), timeout_s)
        except TimeoutError:
            _log.warning("what was told last is not written down: it may be told again")


async def read_journal(kafka: KafkaConfig, client: str, first: int = 0) -> tuple[list[Entry], int]:
    """The entries from offset `first` on, oldest first, and the offset after them. What cannot be read is left out."""
    reader = TopicReader(kafka, NOTIFICATIONS, client)
    entries: list[Entry] = []
    try:
        await reader.start()
        start, end = await reader.bounds(0)
        async for records in reader.read(0, max(first, start), end):
            for record in records:
                try:
                    entries.append(decode(record.value))
                except BadInput as error:
                    _log.warning("an entry cannot be read: %s", error, extra={"offset": record.offset})
    finally:
        await reader.stop()
    return entries, end


def _key(entry: Entry) -> bytes:
    return (entry.cause_id if hasattr(entry, "cause_id") else entry.notification.cause_id).encode()
