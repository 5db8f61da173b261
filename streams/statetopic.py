"""Snapshots on `kvtrail.state`: written beside the input, read back lazily by whoever owns the partition next."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ..schemas.config import KafkaConfig
from ..schemas.topics import STATE
from .clients import reader
from .snapshots import (
    Manifest,
    Snapshot,
    SnapshotUnusable,
    Unpacker,
    manifest_of,
    pack,
    pointed,
    pointer,
    pointer_key,
)

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

TAIL = 64
"""How many records from the log's end are looked at for a pointer."""


class StateTopic:
    """Writes and restores the snapshots of any partition. `owner`: whose, empty for the detector's."""

    def __init__(self, kafka: KafkaConfig, producer: AIOKafkaProducer, instance: str, owner: str = "") -> None:
        self._owner = owner
        self._kafka = kafka
        self._producer = producer
        self._instance = instance
        self._removable: dict[int, list[bytes]] = {}
        self.records_read = 0
        """By the last restore, the search for the pointer not counted."""

    async def restore(self, partition: int) -> Snapshot | None:
        """The partition's newest snapshot. Raises `SnapshotUnusable` where it is not whole."""
        tp = TopicPartition(STATE, partition)
        consumer = reader(self._kafka, f"kvtrail-{self._instance}-state-{partition}")
        try:
            await consumer.start()
            consumer.assign([tp])
            start = (await consumer.beginning_offsets([tp]))[tp]
            end = (await consumer.end_offsets([tp]))[tp]
            first = await self._pointed(consumer, tp, max(start, end - TAIL), end)
            if first is not None and first > start:
                with contextlib.suppress(SnapshotUnusable):
                    found = await self._unpacked(consumer, tp, first, end)
                    if found is not None:
                        return found
            return await self._unpacked(consumer, tp, start, end)
        finally:
            await consumer.stop()

    async def _pointed(self, consumer: AIOKafkaConsumer, tp: TopicPartition, first: int, end: int) -> int | None:
        """Where the newest snapshot begins, if the log's end says so."""
        found: int | None = None
        async for record in _records(consumer, tp, first, end):
            if record.key == pointer_key(tp.partition, self._owner) and record.value:
                found = pointed(record.value)
        return found

    async def _unpacked(self, consumer: AIOKafkaConsumer, tp: TopicPartition, first: int, end: int) -> Snapshot | None:
        unpacker = Unpacker(tp.partition, self._owner)
        self.records_read = 0
        async for record in _records(consumer, tp, first, end):
            self.records_read += 1
            unpacker.add(record.key or b"", record.value or b"")
        self._removable[tp.partition] = unpacker.blobs()
        return await asyncio.to_thread(unpacker.snapshot)

    async def write(
        self, partition: int, state: bytes, next_offset: int, last_append_us: int, unjudged: tuple[int, ...] = ()
    ) -> Manifest:
        """Returns when blobs, then manifest, are acknowledged and what they replace is marked for compaction."""
        records = await asyncio.to_thread(
            pack,
            state,
            partition=partition,
            next_offset=next_offset,
            last_append_us=last_append_us,
            writer=self._instance,
            owner=self._owner,
            unjudged=unjudged,
        )
        before, blobs = self._removable.get(partition, []), [key for key, _ in records[:-1]]
        self._removable[partition] = [*before, *blobs]  # should this one be broken off, the next one removes it too
        first = await self._send(partition, records)
        replaced: list[tuple[bytes, bytes | None]] = [(key, None) for key in before]
        await self._send(partition, [*replaced, pointer(partition, first, self._owner)])
        self._removable[partition] = blobs
        return manifest_of(records)

    async def _send(self, partition: int, records: Iterable[tuple[bytes, bytes | None]]) -> int:
        """The offset of the first, when all are acknowledged; their order is the idempotent producer's to keep."""
        sent = [await self._producer.send(STATE, value, key=key, partition=partition) for key, value in records]
        first: int = (await asyncio.gather(*sent))[0].offset
        return first


async def _records(
    consumer: AIOKafkaConsumer, tp: TopicPartition, first: int, end: int
) -> "AsyncIterator[ConsumerRecord[bytes | None, bytes | None]]":
    """What the log holds from `first` up to `end`."""
    if first >= end:
        return
    consumer.seek(tp, first)
    while await consumer.position(tp) < end:
        for record in (await consumer.getmany(tp, timeout_ms=500)).get(tp, []):
            if record.offset < end:
                yield record
