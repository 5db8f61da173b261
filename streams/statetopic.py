"""Snapshots on `kvtrail.state`: written beside the input, read back lazily by whoever owns the partition next."""

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaProducer, TopicPartition

from ..schemas.config import KafkaConfig
from ..schemas.topics import STATE
from .clients import reader
from .snapshots import Manifest, Snapshot, Unpacker, manifest_of, pack


class StateTopic:
    """Writes and restores the snapshots of any partition. `owner`: whose, empty for the detector's."""

    def __init__(self, kafka: KafkaConfig, producer: AIOKafkaProducer, instance: str, owner: str = "") -> None:
        self._owner = owner
        self._kafka = kafka
        self._producer = producer
        self._instance = instance
        self._removable: dict[int, list[bytes]] = {}

    async def restore(self, partition: int) -> Snapshot | None:
        """The partition's newest snapshot. Raises `SnapshotUnusable` where it is not whole."""
        tp = TopicPartition(STATE, partition)
        unpacker = Unpacker(partition, self._owner)
        consumer = reader(self._kafka, f"kvtrail-{self._instance}-state-{partition}")
        await consumer.start()
        try:
            consumer.assign([tp])
            start = (await consumer.beginning_offsets([tp]))[tp]
            end = (await consumer.end_offsets([tp]))[tp]
            consumer.seek(tp, start)
            while start < end and await consumer.position(tp) < end:
                for record in (await consumer.getmany(tp, timeout_ms=500)).get(tp, []):
                    unpacker.add(record.key or b"", record.value or b"")
        finally:
            await consumer.stop()
        self._removable[partition] = unpacker.blobs()
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
        await self._send(partition, records)
        await self._send(partition, [(key, None) for key in self._removable.get(partition, [])])
        self._removable[partition] = [key for key, _ in records[:-1]]
        return manifest_of(records)

    async def _send(self, partition: int, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Returns when all are acknowledged; their order is the idempotent producer's to keep."""
        sent = [await self._producer.send(STATE, value, key=key, partition=partition) for key, value in records]
        await asyncio.gather(*sent)
