"""A simulated fleet's log in a file, so that making it costs the measurement nothing; and what must come of it."""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from aiokafka.errors import KafkaError

from ..judging.factbook import FactBook
from ..judging.judge import Judge
from ..schemas.config import Config
from ..schemas.facts import Tick, decode_fact, encode_fact
from ..schemas.findings import Finding, decode_finding
from ..schemas.topics import FACTS, FINDINGS, LIFECYCLE
from ..simulator.delivery import DeliverySpec
from ..simulator.fleet import FleetSpec
from ..simulator.run import Run
from ..streams.fold import Fold
from ..streams.reader import TopicReader
from ..streams.records import Record

REQUEST_MS = 0.1
LINGER_US = 1_000_000
_SIZE = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
Revision = tuple[str, int]
"""A finding's id and its revision."""


class Frame(NamedTuple):
    """One record: a fact, or an envelope with so many events."""

    fact: bool
    key: str
    value: bytes
    events: int


class Part(NamedTuple):
    """A stretch of the log: frames `first` up to `end`, with so many events that were not there before."""

    first: int
    end: int
    events: int
    bytes: int


def write(
    path: Path, *, events: int, faults: int, seed: int, envelope: int, shares: Iterable[float]
) -> list[Part]:  # fmt: skip
    """A busy fleet's log in `path`, in consecutive parts that end at these shares of its events."""
    run = Run(
        seed=seed, events=events, faults=faults, fleet=FleetSpec(request_ms=REQUEST_MS),
        delivery=DeliverySpec(envelope_events=envelope, linger_us=LINGER_US),
    )  # fmt: skip
    ends = [share * events for share in shares]
    seen: set[tuple[str, str, str, int]] = set()
    parts: list[Part] = []
    first = known = size = number = 0
    with path.open("wb") as file:
        for number, item in enumerate(run.sent()):
            if ends[1:] and len(seen) >= ends[0]:
                parts.append(Part(first, number, len(seen) - known, size))
                first, known, size = number, len(seen), 0
                ends.pop(0)
            seen.update((event.node, event.incarnation, event.home, event.seq) for event in item.events)
            value = item.record if item.fact is None else encode_fact(item.fact)
            key = item.home if item.fact is None else item.fact.id
            data = _encode(Frame(item.fact is not None, key, value, len(item.events)))
            size += len(value)
            file.write(_SIZE.pack(len(data)) + data)
    parts.append(Part(first, number + 1, len(seen) - known, size))
    return parts


def read(path: Path, first: int, end: int) -> Iterator[Frame]:
    """Frames `first` up to `end`."""
    decoder = msgspec.msgpack.Decoder(Frame)
    with path.open("rb") as file:
        for number in range(end):
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            if number < first:
                file.seek(size, 1)
            else:
                yield decoder.decode(file.read(size))


class Expected(NamedTuple):
    """`origin`: the record, by partition and offset, that each revision of a finding came of; `final`: the newest
    revision of each finding. `judged_at`: when the broker got each revision from a detector, unix time."""

    origin: dict[Revision, tuple[int, int]]
    final: dict[str, Finding]
    judged_at: dict[Revision, float]


async def judge(config: Config) -> Expected:
    """What one undisturbed run over the topics, as they are, finds."""
    book = FactBook()
    for record in await topic_records(config, FACTS, 0):
        fact = decode_fact(record.value)
        if not isinstance(fact.body, Tick):
            book.add(fact, record.append_us)
    origin: dict[Revision, tuple[int, int]] = {}
    final: dict[str, Finding] = {}
    for partition in range(config.kafka.partitions):
        fold = Fold(Judge(config.judging, config.deployment, book), 0)
        for record in await topic_records(config, LIFECYCLE, partition):
            for finding in fold.apply([record]):
                origin[finding.id, finding.revision] = partition, record.offset
                if finding.id not in final or final[finding.id].revision <= finding.revision:
                    final[finding.id] = finding
    judged_at: dict[Revision, float] = {}
    for partition in range(config.kafka.partitions):
        for record in await topic_records(config, FINDINGS, partition):
            finding = decode_finding(record.value)
            judged_at.setdefault((finding.id, finding.revision), record.append_us / 1e6)
    return Expected(origin, final, judged_at)


async def topic_records(config: Config, topic: str, partition: int) -> list[Record]:
    """Everything that a partition holds now."""
    reader = TopicReader(config.kafka, topic, f"bench-{topic}-{partition}")
    await reader.start()
    try:
        first, end = await reader.bounds(partition)
        return [record async for records in reader.read(partition, first, end) for record in records]
    except KafkaError as error:
        raise RuntimeError(f"{topic} cannot be read") from error
    finally:
        await reader.stop()
