"""What arrived, as the tests look at it."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from aiokafka import AIOKafkaConsumer
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder
from kvtrail.schemas.events import Event
from kvtrail.schemas.identity import Identity
from kvtrail.schemas.topics import LIFECYCLE

TENANT = Identity(tenant_id="northwind")


def decode(records: Iterable[bytes]) -> list[Batch]:
    """Decoded records; none may hold a reject."""
    decoder = EnvelopeDecoder()
    batches = [decoder.decode(record) for record in records]
    assert [batch.rejects for batch in batches if batch.rejects] == []
    return batches


def runs(batches: Iterable[Batch]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(incarnation, home) -> the runs that arrived, in order of arrival."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for batch in batches:
        assert batch.first is not None and batch.last is not None
        found[batch.incarnation, batch.home].append((batch.first, batch.last))
    return dict(found)


def events(batches: Iterable[Batch]) -> list[Event]:
    """Every event, in order of arrival."""
    return list(itertools.chain.from_iterable(batch.events for batch in batches))


def first_arrivals(batches: Iterable[Batch]) -> list[Event]:
    """Events without those that arrived again: delivering one twice changes nothing."""
    seen: set[str] = set()
    return [event for event in events(batches) if not (event.id in seen or seen.add(event.id))]  # type: ignore[func-returns-value]  # add() as "remember it"


def gaps(found: list[tuple[int, int]]) -> int:
    """Numbers missing between the runs of a lane, which must follow each other."""
    missing, expected = 0, 1
    for first, last in found:
        assert first >= expected, f"run {first}-{last} goes back behind {expected}"
        missing += first - expected
        expected = last + 1
    return missing


def until(condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
    """Wait for a condition; the deadline is a failure, not a measurement."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.005)


def read_topic(kafka: KafkaConfig, topic: str = LIFECYCLE) -> list[tuple[int, bytes, bytes]]:
    """Everything in a topic: (partition, key, value), in order inside each partition."""

    async def read() -> list[tuple[int, bytes, bytes]]:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            ends = await consumer.end_offsets(consumer.assignment())
            found = []
            for partition, end in ends.items():
                consumer.seek(partition, 0)
                while await consumer.position(partition) < end:
                    for record in (await consumer.getmany(partition, timeout_ms=200)).get(partition, []):
                        found.append((record.partition, record.key, record.value))
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())
