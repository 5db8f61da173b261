"""Watching the pipeline from outside: when everything is queryable, and how long each finding took."""

import asyncio
import time
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from ..cli.local.processes import Child
from ..producers.kafka_client import connection
from ..schemas.config import Config
from ..schemas.topics import FACTS, FINDINGS, LIFECYCLE
from ..store.client import Client
from ..streams.detector import GROUP as DETECTORS
from ..streams.sink import GROUP as SINKS
from .feed import Fed
from .rig import READY_S, Rig
from .traffic import Expected, Revision

LOOK_S = 0.25
STUCK_S = 120.0


class Progress:
    """Where the groups stand, by what they have committed."""

    def __init__(self, config: Config) -> None:
        self._partitions = config.kafka.partitions
        self._consumer = AIOKafkaConsumer(**connection(config.kafka), group_id=None, enable_auto_commit=False)
        self._admin = AIOKafkaAdminClient(**connection(config.kafka))

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        await self._admin.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._consumer.stop()
        await self._admin.close()

    async def follow(self, rig: Rig, client: Client, events: int, *, feeder: Child) -> float:
        """Returns when so many events are stored and nothing is left to judge or to store: the unix time at which a
        query returned something new for the last time. The store is asked only once the sinks have the events behind
        them: a question costs it what hundreds of events do. Raises `RuntimeError` where nothing moves any more,
        `StackError` where a process has died."""
        stored, counted = 0, (0, 0)
        changed = moved = time.time()
        while True:
            rig.check()
            before = stored, counted
            stored = sum(found.offset for found in (await self._admin.list_consumer_group_offsets(SINKS)).values())
            if feeder.returncode == 0 and await self.committed(SINKS, LIFECYCLE):
                now = await asyncio.to_thread(_counts, client)
                if now != counted:
                    counted, changed = now, time.time()
            if (stored, counted) != before:
                moved = time.time()
            elif time.time() - moved > STUCK_S:
                raise RuntimeError(f"nothing has moved for {STUCK_S:g} s: {counted[0]} of {events} events are stored")
            elif counted[0] >= events and await self._done():
                return changed
            await asyncio.sleep(LOOK_S)

    async def _done(self) -> bool:
        # Detectors first: what they find is then part of what the sinks have to store.
        return await self.committed(DETECTORS, LIFECYCLE) and all(
            [await self.committed(SINKS, topic) for topic in (LIFECYCLE, FINDINGS, FACTS)]
        )

    async def end(self, topic: str, partition: int = 0) -> int:
        """The offset of the partition's next record."""
        tp = TopicPartition(topic, partition)
        found: int = (await self._consumer.end_offsets([tp]))[tp]
        return found

    async def committed(self, group: str, topic: str) -> bool:
        """Whether a group has committed everything that the topic holds now."""
        tps = [TopicPartition(topic, each) for each in range(1 if topic == FACTS else self._partitions)]
        ends = await self._consumer.end_offsets(tps)
        found = await self._admin.list_consumer_group_offsets(group, partitions=tps)
        return all(end == 0 or (tp in found and found[tp].offset >= end) for tp, end in ends.items())


def _counts(client: Client) -> tuple[int, int]:
    [row] = client.query("SELECT (SELECT count() FROM events) AS events, (SELECT count() FROM findings) AS findings")
    return int(row["events"]), int(row["findings"])


class Latency:
    """Notes when a query returns each revision of a finding for the first time."""

    def __init__(self, client: Client) -> None:
        self.fed: Fed | None = None
        self.cores: dict[str, float] = {}
        """Cores that each process used meanwhile."""
        self._client = client
        self._seen: dict[Revision, float] = {}
        self._inserted: dict[Revision, float] = {}
        self._since = "1970-01-01 00:00:00"
        self._stopping = False
        self._take()
        self._before = set(self._seen)

    async def look(self) -> None:
        """Until `stop`."""
        while not self._stopping:
            await asyncio.to_thread(self._take)
            await asyncio.sleep(LOOK_S / 5)

    async def stop(self, looking: "asyncio.Task[None]") -> None:
        """One last look."""
        self._stopping = True
        await looking
        self._take()

    def _take(self) -> None:
        rows = self._client.query(
            "SELECT id, revision, toString(inserted_at - 1) AS since, toUnixTimestamp64Milli(inserted_at) AS at_ms "
            "FROM findings "
            "WHERE inserted_at > toDateTime64({since:String}, 3, 'UTC') ORDER BY inserted_at",
            {"since": self._since},
        )
        now = time.time()
        for row in rows:
            revision = str(row["id"]), int(row["revision"])
            self._seen.setdefault(revision, now)
            self._inserted.setdefault(revision, int(row["at_ms"]) / 1000)
            self._since = str(row["since"])

    def of(self, expected: Expected) -> list[tuple[float, float, float]]:
        """For each revision, seconds from sending the record that it came of to its being in the findings topic, to
        its being inserted, and to its being returned by a query."""
        assert self.fed is not None
        sent = {(partition, offset): at for partition, offset, at in self.fed.sent}
        return [
            (expected.judged_at[revision] - began, self._inserted[revision] - began, at - began)
            for revision, at in self._seen.items()
            if revision not in self._before
            and revision in expected.judged_at
            and (began := sent.get(expected.origin.get(revision, (-1, -1)), 0.0))
        ]


async def settled(rig: Rig, detectors: list[str]) -> None:
    """Return once the partitions are spread over all of these workers. Raises `RuntimeError` in time."""
    end = time.monotonic() + READY_S
    while True:
        owned: list[set[object]] = []
        for name in detectors:
            assigned = [line["partitions"] for line in rig.lines(name) if line["message"] == "assigned"]
            owned.append(set(assigned[-1]) if assigned and isinstance(assigned[-1], list) else set())
        if all(owned) and sum(map(len, owned)) == rig.config.kafka.partitions == len(set().union(*owned)):
            return
        if time.monotonic() > end:
            raise RuntimeError(f"the partitions were not spread over {', '.join(detectors)} in time")
        await asyncio.sleep(0.2)
