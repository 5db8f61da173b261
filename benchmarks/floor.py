"""The floor under the pipeline: the same topic, the same rows in the same batches, and nothing else.

No group, no commits, no pending ranges, no duplicates looked for, no judging: what is left is reading the log, decoding
it and inserting, one task a partition, so that reading and inserting overlap.
"""

import asyncio
import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from ..schemas.config import Config, load_config
from ..schemas.envelope import EnvelopeDecoder
from ..schemas.topics import LIFECYCLE
from ..store import rows
from ..store.client import Client, connect, only_lists
from ..streams.intake import source_of
from ..streams.reader import TopicReader
from ..streams.records import Record
from .rig import Use, used


class Floor(Struct):
    """Unix times of begin and end, processor time in between, and rows of events inserted."""

    began: float
    ended: float
    cpu_s: float
    peak_mb: float
    events: int


def main(out: str) -> None:
    """Store the whole topic; the account goes to `out`."""
    config = load_config()
    only_lists()
    with connect(config.clickhouse) as client:
        floor = asyncio.run(_floor(config, client))
    Path(out).write_bytes(msgspec.msgpack.encode(floor))


def account(path: Path) -> Floor:
    """What a floor wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Floor)


async def _floor(config: Config, client: Client) -> Floor:
    before, began = _used(), time.time()
    counts = await asyncio.gather(*(_partition(config, client, each) for each in range(config.kafka.partitions)))
    after = _used()
    return Floor(began, time.time(), after.cpu_s - before.cpu_s, after.peak_mb, sum(counts))


def _used() -> Use:
    return used(os.getpid())


async def _partition(config: Config, client: Client, partition: int) -> int:
    reader = TopicReader(config.kafka, LIFECYCLE, f"bench-floor-{partition}")
    await reader.start()
    decoder = EnvelopeDecoder()
    waiting: list[rows.Record] = []
    size = stored = 0

    async def insert() -> None:
        made = await asyncio.to_thread(rows.record_rows, waiting)
        first, last = waiting[0].source.offset, waiting[-1].source.offset
        token = f"{LIFECYCLE}/{partition}/{first}-{last}"
        await asyncio.to_thread(client.insert, made.table, made.columns, token)

    def decoded(record: Record) -> rows.Record:
        return rows.Record(source_of(record), record.value, decoder.decode(record.value))

    try:
        first, end = await reader.bounds(partition)
        async for records in reader.read(partition, first, end):
            for record in map(decoded, records):
                size_of = 1 + len(record.batch.events)
                if waiting and size + size_of > config.sink.batch_rows:
                    await insert()
                    waiting, size = [], 0
                waiting.append(record)
                size, stored = size + size_of, stored + len(record.batch.events)
        if waiting:
            await insert()
    finally:
        await reader.stop()
    return stored
