"""The floor under the pipeline: the same topic, the same rows in the same batches, and nothing else.

No group, no commits, no pending ranges, no duplicates looked for, no judging: what is left is reading the log, decoding
it and inserting, one task a partition, so that reading and inserting overlap. What the pipeline was warmed up with
warms the floor up too, unmeasured.
"""

import asyncio
import json
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
from .rig import used


class Floor(Struct):
    """Unix times of begin and end, processor time in between, the store's meanwhile, and events inserted."""

    began: float
    ended: float
    cpu_s: float
    store_cpu_s: float
    peak_mb: float
    events: int


def main(out: str, warm: str, store: str) -> None:
    """Store the whole topic, measured from the offsets `warm` on (JSON, one a partition); `store` is the store's
    process. The account goes to `out`."""
    config = load_config()
    only_lists()
    with connect(config.clickhouse) as client:
        floor = asyncio.run(_floor(config, client, json.loads(warm), int(store)))
    Path(out).write_bytes(msgspec.msgpack.encode(floor))


def account(path: Path) -> Floor:
    """What a floor wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Floor)


async def _floor(config: Config, client: Client, warm: list[int], store: int) -> Floor:
    await asyncio.gather(*(_partition(config, client, each, 0, end) for each, end in enumerate(warm)))
    before, store_before, began = used(os.getpid()), used(store), time.time()
    counts = await asyncio.gather(*(_partition(config, client, each, first) for each, first in enumerate(warm)))
    after, store_after = used(os.getpid()), used(store)
    return Floor(
        began, time.time(), after.cpu_s - before.cpu_s, store_after.cpu_s - store_before.cpu_s, after.peak_mb,
        sum(counts),
    )  # fmt: skip


async def _partition(config: Config, client: Client, partition: int, first: int, end: int | None = None) -> int:
    reader = TopicReader(config.kafka, LIFECYCLE, f"bench-floor-{partition}")
    await reader.start()
    decoder = EnvelopeDecoder()
    waiting: list[rows.Record] = []
    size = stored = 0

    async def insert() -> None:
        made = await asyncio.to_thread(rows.record_rows, waiting)
        token = f"{LIFECYCLE}/{partition}/{waiting[0].source.offset}-{waiting[-1].source.offset}"
        await asyncio.to_thread(client.insert, made.table, made.columns, token)

    def decoded(record: Record) -> rows.Record:
        return rows.Record(source_of(record), record.value, decoder.decode(record.value))

    try:
        if end is None:
            _, end = await reader.bounds(partition)
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
