"""Where history can be read again: as the sink stored it, or as the log still has it. Both give the exact bytes, in the
order of the log, and the facts with the time of their append."""

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from ..schemas.config import KafkaConfig
from ..schemas.errors import BadInput, BrokerError, StoreError
from ..schemas.facts import Fact, decode_fact
from ..schemas.topics import FACTS, LIFECYCLE
from ..store import queries
from ..store.client import Client
from .clients import reader, unreachable
from .records import Record, from_kafka
from .topics import verify_topics

_MOST_REFUSED = 100_000
_AT_ONCE = 500
_QUIET = 20
"""Half seconds without a record, where one must come."""


class EvidenceAltered(StoreError):
    """Stored bytes are not the bytes that were read from Kafka."""

    code = "evidence_altered"


class History(Protocol):
    """The records of the lifecycle topic that were appended between two times, microseconds, both included."""

    def facts(self) -> Iterator[tuple[int, Fact]]:
        """Every fact and when it was appended, in that order."""
        ...

    def partitions(self, since_us: int, until_us: int) -> list[int]:
        """Those that have records of that time."""
        ...

    def pages(self, partition: int, since_us: int, until_us: int) -> Iterator[list[Record]]:
        """One partition's records of that time, in order."""
        ...

    def whole(self) -> bool:
        """Whether every partition is there from its first record on."""
        ...


class StoredHistory:
    """What ClickHouse has: years of it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def facts(self) -> Iterator[tuple[int, Fact]]:
        yield from queries.FACTS_APPENDED.run(self._client)

    def partitions(self, since_us: int, until_us: int) -> list[int]:
        found = queries.EVIDENCE_PLACES.run(self._client, topic=LIFECYCLE, since_us=since_us, until_us=until_us)
        return [place.partition for place in found]

    def pages(self, partition: int, since_us: int, until_us: int) -> Iterator[list[Record]]:
        """Raises `EvidenceAltered` for bytes that are not those whose hash was noted."""
        offset = 0
        while True:
            found = queries.EVIDENCE_PAGE.run(
                self._client, topic=LIFECYCLE, partition=partition, from_offset=offset, since_us=since_us,
                until_us=until_us,
            )  # fmt: skip
            if not found:
                return
            for one in found:
                if hashlib.sha256(one.raw).hexdigest() != one.sha256:
                    raise EvidenceAltered(
                        "the stored bytes are not those that were read from Kafka.",
                        field=f"{LIFECYCLE}/{partition}/{one.offset}",
                        remedy="Find out who wrote to the store; restore it from a backup before judging from it.",
                    )
            yield [
                Record(topic=LIFECYCLE, partition=partition, offset=one.offset, append_us=one.append_us, value=one.raw)
                for one in found
            ]
            offset = found[-1].offset + 1

    def whole(self) -> bool:
        for place in queries.EVIDENCE_PLACES.run(
            self._client, topic=LIFECYCLE, since_us=queries.FAR_PAST_US, until_us=queries.FAR_FUTURE_US
        ):
            first = place.first_offset
            if first > _MOST_REFUSED or (first and self._refused(place.partition, first) < first):
                return False
        return True

    def _refused(self, partition: int, before: int) -> int:
        """Records that are no evidence, since they could not be decoded."""
        return len(
            queries.REFUSED_OFFSETS.run(
                self._client, topic=LIFECYCLE, partition=partition, from_offset=0, before_offset=before, stage="decode"
            )
        )


class LoggedHistory:
    """What the broker still has: days of it, up to the moment of opening. Belongs to no group, so nobody is disturbed.

    A context manager, with an event loop of its own. Raises `BrokerError`.
    """

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._runner = asyncio.Runner()
        self._consumer: AIOKafkaConsumer
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}

    def __enter__(self) -> "LoggedHistory":
        try:
            self._runner.run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_consumer"):
            self._runner.run(self._consumer.stop())
        self._runner.close()

    async def _open(self) -> None:
        await verify_topics(self._kafka)
        self._consumer = reader(self._kafka, "kvtrail-replay")
        try:
            await self._consumer.start()
            places = [TopicPartition(FACTS, 0)]
            places += [TopicPartition(LIFECYCLE, each) for each in range(self._kafka.partitions)]
            firsts = await self._consumer.beginning_offsets(places)
            ends = await self._consumer.end_offsets(places)
        except KafkaError as error:
            raise unreachable(self._kafka, error) from error
        self._bounds = {place: (firsts[place], ends[place]) for place in places}

    def facts(self) -> Iterator[tuple[int, Fact]]:
        for page in self._read(TopicPartition(FACTS, 0), queries.FAR_PAST_US):
            for record in page:
                try:
                    yield record.append_us, decode_fact(record.value)
                except BadInput:
                    continue  # a dead letter, for every worker

    def partitions(self, since_us: int, until_us: int) -> list[int]:
        places = [place for place in self._bounds if place.topic == LIFECYCLE]
        return [place.partition for place in places if self._bounds[place][0] < self._bounds[place][1]]

    def pages(self, partition: int, since_us: int, until_us: int) -> Iterator[list[Record]]:
        for page in self._read(TopicPartition(LIFECYCLE, partition), since_us):
            inside = [record for record in page if since_us <= record.append_us <= until_us]
            if inside:
                yield inside

    def whole(self) -> bool:
        return all(first == 0 for place, (first, _) in self._bounds.items() if place.topic == LIFECYCLE)

    def _read(self, place: TopicPartition, since_us: int) -> Iterator[list[Record]]:
        first, end = self._bounds[place]
        if first >= end:
            return
        try:
            at = self._runner.run(self._begin(place, first, since_us))
            quiet = 0
            while at < end:
                page, at = self._runner.run(self._page(place))
                quiet = 0 if page else quiet + 1
                if quiet > _QUIET:
                    raise BrokerError(
                        "records of the log are not delivered.", field=f"{place.topic}/{place.partition}",
                        remedy="Check the broker, then run it again.",
                    )  # fmt: skip
                yield [record for record in page if record.offset < end]
        except KafkaError as error:
            raise unreachable(self._kafka, error) from error

    async def _begin(self, place: TopicPartition, first: int, since_us: int) -> int:
        self._consumer.assign([place])
        at = first
        if since_us > 0:
            found = await self._consumer.offsets_for_times({place: since_us // 1000})
            known = found[place]
            at = max(first, known.offset) if known is not None else self._bounds[place][1]
        self._consumer.seek(place, at)
        return at

    async def _page(self, place: TopicPartition) -> tuple[list[Record], int]:
        chunks = await self._consumer.getmany(place, timeout_ms=500, max_records=_AT_ONCE)
        return [from_kafka(record) for record in chunks.get(place, [])], await self._consumer.position(place)
