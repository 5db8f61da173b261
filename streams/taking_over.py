"""What a sink has to know of a partition before its first batch: where it stands, a range that may be half stored, and
what is stored of the partition's lanes."""

import logging

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from ..schemas.config import SinkConfig
from ..schemas.topics import DEAD_LETTER, FACTS, FINDINGS, LIFECYCLE
from .batches import BEHIND, Cut
from .intake import DeadLettersIntake, FactsIntake, FindingsIntake, Intake, LifecycleIntake
from .lanes import StoredLanes
from .pending import decode_pending
from .refusals import WINDOW, RefusalLimit
from .writer import Writer

_log = logging.getLogger("kvtrail.streams.sink")


async def taken_over(
    tp: TopicPartition, group: str, config: SinkConfig, admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer,
    writer: Writer,
) -> tuple[Cut, int]:  # fmt: skip
    """The partition's batches, none yet, and the offset to read on from. Raises `KafkaError`, and `Interrupted` where
    the store does not answer and the worker stops."""
    found = (await admin.list_consumer_group_offsets(group, partitions=[tp])).get(tp)
    committed = found.offset if found is not None and found.offset >= 0 else None
    pending = decode_pending(found.metadata) if found is not None and committed is not None else None
    first = (await consumer.beginning_offsets([tp]))[tp]
    where = {"topic": tp.topic, "partition": tp.partition}
    if committed is not None and committed < first:
        _log.error(
            "records are gone from the log that were never stored",
            extra={**where, "first": committed, "last": first - 1},
        )
    position = committed if committed is not None else first
    cut = Cut(
        intake=await _intake(tp, position, writer),
        position=position,
        pending=pending,
        batch_rows=config.batch_rows,
        batch_wait_s=_wait_s(tp, config),
        limits=(
            await _limit(tp, position, "decode", config, writer),
            await _limit(tp, position, "insert", config, writer),
        ),
    )
    if pending is not None:
        _log.info("sending again", extra={**where, "range": pending})
    return cut, max(position, first)


def _wait_s(tp: TopicPartition, config: SinkConfig) -> float:
    if tp.topic != LIFECYCLE:
        return config.batch_wait_s
    return config.events_wait_s or BEHIND * config.batch_wait_s


async def _limit(tp: TopicPartition, position: int, stage: str, config: SinkConfig, writer: Writer) -> RefusalLimit:
    """The limit of refusals at a stage, with what was refused just before: a restart forgives nothing."""
    first = max(0, position - WINDOW)
    limit = RefusalLimit(
        f"{tp.topic}/{tp.partition}", "sink", in_a_row=config.refused_in_a_row, share=config.refused_share
    )
    refused = await writer.refused_offsets(tp.topic, tp.partition, first, position, stage)
    limit.recall(offset in refused for offset in range(first, position))
    return limit


async def _intake(tp: TopicPartition, position: int, writer: Writer) -> Intake:
    if tp.topic == FINDINGS:
        return FindingsIntake()
    if tp.topic == FACTS:
        return FactsIntake()
    if tp.topic == DEAD_LETTER:
        return DeadLettersIntake()
    return LifecycleIntake(StoredLanes(await writer.stored_lanes(tp.topic, tp.partition, position)))
