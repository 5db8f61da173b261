"""Reading a range of a topic ourselves: `assign`, `seek`, and no group whose offsets would have to be trusted."""

from collections.abc import AsyncIterator, Iterable

from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from ..schemas.config import KafkaConfig
from ..schemas.errors import BrokerError
from .clients import reader
from .records import Record, from_kafka


class TopicReader:
    """Reads partitions of one topic from explicit offsets. One range at a time."""

    def __init__(self, kafka: KafkaConfig, topic: str, client: str) -> None:
        self._topic = topic
        self._consumer = reader(kafka, client)

    async def start(self) -> None:
        await self._consumer.start()

    async def stop(self) -> None:
        await self._consumer.stop()

    async def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset the log still has, and the one its next record will get."""
        tp = TopicPartition(self._topic, partition)
        starts = await self._consumer.beginning_offsets([tp])
        ends = await self._consumer.end_offsets([tp])
        return starts[tp], ends[tp]

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """The offset that each partition's next record will get."""
        found = await self._consumer.end_offsets([TopicPartition(self._topic, each) for each in partitions])
        return {tp.partition: end for tp, end in found.items()}

    async def read(self, partition: int, first: int, end: int) -> AsyncIterator[list[Record]]:
        """Every record with `first <= offset < end`, in order, in chunks. Holes in the offsets (compaction,
        transaction markers) are passed over. Raises `BrokerError` where `first` is gone from the log."""
        if first >= end:
            return
        tp = TopicPartition(self._topic, partition)
        self._consumer.assign([tp])
        self._consumer.seek(tp, first)
        while True:
            try:
                chunks = await self._consumer.getmany(tp, timeout_ms=500, max_records=500)
            except OffsetOutOfRangeError:
                raise BrokerError(
                    "records that have not been judged are gone from the log.",
                    field=f"{self._topic}/{partition}",
                    remedy="Raise the topic's retention above the longest outage.",
                ) from None
            wanted = [from_kafka(record) for record in chunks.get(tp, []) if record.offset < end]
            if wanted:
                yield wanted
            if await self._consumer.position(tp) >= end:
                return
