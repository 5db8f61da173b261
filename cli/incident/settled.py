"""When detectors and sink have read everything: only then does "no finding" mean anything."""

import asyncio
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from ...producers.kafka_client import connection
from ...schemas.config import Config
from ...schemas.errors import StackError
from ...schemas.topics import FINDINGS, LIFECYCLE
from ..alive import GROUPS

POLL_S = 0.05


async def settled(config: Config, deadline_s: float) -> None:
    """Returns once the detectors have judged every event that is in Kafka now, and the sink has stored every event
    and every finding. Raises `StackError` when they have not by the deadline."""
    until = time.monotonic() + deadline_s
    admin = AIOKafkaAdminClient(**connection(config.kafka))
    consumer = AIOKafkaConsumer(**connection(config.kafka), group_id=None)
    try:
        await admin.start()
        await consumer.start()
        # Findings are in their topic before their events are acknowledged, so this order misses none.
        for worker, topics in (("detect", [LIFECYCLE]), ("sink", [LIFECYCLE, FINDINGS])):
            places = [TopicPartition(t, p) for t in topics for p in range(config.kafka.partitions)]
            ends = await consumer.end_offsets(places)
            while True:
                read = await admin.list_consumer_group_offsets(GROUPS[worker])
                if all(end == 0 or (at in read and read[at].offset >= end) for at, end in ends.items()):
                    break
                if time.monotonic() > until:
                    raise StackError(
                        f"{worker} has not read everything in time.", remedy="See its log in the stack's folder."
                    )
                await asyncio.sleep(POLL_S)
    finally:
        await consumer.stop()
        await admin.close()
