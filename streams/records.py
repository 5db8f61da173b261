"""One record of a topic, as the stream tier sees it: whoever delivered it, only these fields are trusted."""

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """`append_us` is the broker's append time in microseconds; a record without a value has empty bytes."""

    topic: str
    partition: int
    offset: int
    append_us: int
    value: bytes


def from_kafka(record: "ConsumerRecord[bytes | None, bytes | None]") -> Record:
    """The record that an aiokafka consumer returned."""
    return Record(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        append_us=record.timestamp * 1000,
        value=record.value or b"",
    )
