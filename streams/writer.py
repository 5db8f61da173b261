"""Getting one batch into ClickHouse, whatever it takes."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from aiokafka import TopicPartition

from ..schemas.dead_letters import DeadLetter
from ..schemas.errors import BadInput, StoreError, StoreRejected, StoreUnavailable
from ..schemas.findings import Finding
from ..schemas.topics import LIFECYCLE
from ..store import queries
from ..store.client import Client
from ..store.rows import Rows, dead_letter_rows
from . import resending
from .batches import Batch
from .bisecting import NOBODYS_FAULT, store_singly
from .deadletters import DeadLetterTopic
from .intake import Item, letter_of, letters_of
from .lanes import Lane
from .metrics import Registry

_T = TypeVar("_T")

_log = logging.getLogger("kvtrail.streams.sink")
_TRUSTED_S = 10.0
_PROBE_S = 3.0


class Interrupted(Exception):
    """The batch was given up before it was known to be stored; its pending range stands."""


class NotStorable(BadInput):
    """ClickHouse will never accept this record as it is."""

    code = "not_storable"


class Writer:
    """Writes batches. Transient failures are retried for ever; a rejected event or record becomes a dead letter and
    its neighbours are stored; what a person has to mend is raised: `StoreRefused`, a database or table that is not
    there."""

    def __init__(
        self,
        client: Client,
        letters: DeadLetterTopic,
        retry_cap_s: float,
        *,
        interrupted: Callable[[], bool],
        metrics: Registry | None = None,
    ) -> None:
        self._client = client
        self._letters = letters
        self._retry_cap_s = retry_cap_s
        self._interrupted = interrupted
        self._metrics = metrics if metrics is not None else Registry()
        self.tried_at = time.monotonic()
        """When an attempt at the store last ended, well or not, by the monotonic clock."""
        self._reached_at = 0.0
        self._away_since = 0.0
        self._problem = ""
        self._probe: asyncio.Task[str] | None = None
        self._counts = {"batches": 0, "rows": 0, "dead_letters": 0, "retries": 0, "dropped": 0}

    def counts(self) -> dict[str, int]:
        """What was written since the start."""
        return dict(self._counts)

    @property
    def away_s(self) -> float:
        """Since when every attempt at the store has failed, seconds; 0 while it answers."""
        return time.monotonic() - self._away_since if self._away_since else 0.0

    async def problem(self) -> str:
        """Why the store cannot be used now, empty where it can. Asks it, where nothing else has lately."""
        now = time.monotonic()
        if self._problem and now - self.tried_at < _TRUSTED_S + 2 * self._retry_cap_s:
            return self._problem
        if not self._problem and now - self._reached_at < _TRUSTED_S:
            return ""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask())
        try:
            return await asyncio.wait_for(asyncio.shield(self._probe), _PROBE_S)
        except TimeoutError:
            return "the store does not answer"

    async def _ask(self) -> str:
        try:
            await asyncio.to_thread(queries.STORED_UNTIL.run, self._client, topic=LIFECYCLE, partition=0)
        except StoreError as error:
            return f"the store cannot be used: {error}"
        self._reached_at, self._problem = time.monotonic(), ""
        return ""

    async def stored_lanes(self, topic: str, partition: int, before: int) -> list[tuple[Lane, int, int]]:
        """The runs of `seq` that are stored of this partition's records below offset `before`."""
        found = await self._retrying(
            lambda: queries.LANE_INTERVALS.run(self._client, topic=topic, partition=partition, before_offset=before)
        )
        return [((run.node, run.incarnation, run.home), run.first, run.last) for run in found]

    async def refused_offsets(self, topic: str, partition: int, first: int, before: int, stage: str) -> set[int]:
        """Offsets in `first` up to `before` of records that were refused at this stage."""
        found = await self._retrying(
            lambda: queries.REFUSED_OFFSETS.run(
                self._client, topic=topic, partition=partition, from_offset=first, before_offset=before, stage=stage
            )
        )
        return set(found)

    async def known(self, finding_id: str) -> Finding | None:
        """The newest revision of a finding, None where the store has none."""
        found = await self._retrying(lambda: queries.FINDING_REVISIONS.run(self._client, finding_id=finding_id))
        return found[-1] if found else None

    async def open_findings(self, cause: str) -> list[Finding]:
        """The open findings of one cause."""
        return await self._retrying(lambda: queries.FINDINGS_CURRENT.run(self._client, cause=cause))

    async def write(self, tp: TopicPartition, batch: Batch) -> None:
        """Returns when everything of the batch is in ClickHouse, in the dead-letter topic, or both. Raises
        `TooManyRefused`, with nothing of the batch in the dead-letter topic, and `BrokerError` where the batch is sent
        again and the log now holds other records."""
        if batch.again and tp.topic == LIFECYCLE:
            await self._compare(tp, batch)
        letters = letters_of(batch.items)
        letters += await self._store(tp, batch)
        if letters:
            placed = await self._letters.publish(letters)
            rows = await asyncio.to_thread(dead_letter_rows, placed)
            # A token of their own: the batch itself may be rows of the same table.
            await self._insert(rows, f"{batch.token(tp)}/letters")
            self._counts["dead_letters"] += len(letters)
            for letter in letters:
                _log.warning(
                    "refused: %s: %s", letter.field, letter.message,
                    extra={"code": letter.code, "stage": letter.stage, "topic": letter.topic,
                           "partition": letter.partition, "offset": letter.offset, "index": letter.index},
                )  # fmt: skip
        self._counts["batches"] += 1
        self._counts["dropped"] += sum(len(item.drop) for item in batch.items)

    async def _compare(self, tp: TopicPartition, batch: Batch) -> None:
        """Before a pending range goes again: rows that differ from those stored under its token would be dropped."""
        stored = await self._retrying(
            lambda: queries.BATCHES_WITHIN.run(
                self._client, topic=tp.topic, partition=tp.partition, first_offset=batch.first, last_offset=batch.last
            )
        )
        verdict = resending.compare(batch.items, stored)
        if verdict == "other records":
            raise resending.other_log(f"{tp.topic}/{tp.partition}", batch.first, batch.last)
        if verdict == "decoded otherwise":
            self._metrics.add("kvtrail_sink_changed_batches_total")
            _log.error(
                "a batch sent again decodes otherwise than what is stored of it; tables that have it keep the old rows",
                extra={"topic": tp.topic, "partition": tp.partition, "first": batch.first, "last": batch.last},
            )

    async def _store(self, tp: TopicPartition, batch: Batch) -> list[DeadLetter]:
        """The letters of what ClickHouse rejected."""
        rows = await asyncio.to_thread(batch.intake.rows, batch.items)
        try:
            await self._insert(rows, batch.token(tp))
            if batch.limit is not None:
                batch.limit.recall([False] * len(batch.items))
            return []
        except NOBODYS_FAULT:
            raise  # no row is at fault
        except StoreRejected as error:
            if len(batch.items) == 1:
                return await self._store_one(tp, batch, batch.items[0], error)
            middle = len(batch.items) // 2
            letters: list[DeadLetter] = []
            for items in (batch.items[:middle], batch.items[middle:]):
                half = Batch(
                    first=items[0].record.offset, last=items[-1].record.offset, items=items, intake=batch.intake,
                    limit=batch.limit,
                )  # fmt: skip
                letters += await self._store(tp, half)
            return letters

    async def _store_one(self, tp: TopicPartition, batch: Batch, item: Item, error: StoreRejected) -> list[DeadLetter]:
        """What can be stored of a record that was rejected as a whole; the letters of the rest."""
        rejected = None
        if item.batch is not None:
            try:
                rejected = await store_singly(item, batch.token(tp), self._insert)
            except NOBODYS_FAULT:
                raise
            except StoreRejected as own:
                # Its events are stored, so their numbers stay seen.
                return [letter_of(_not_storable(own), item.record, "insert")]
        if item.batch is not None and rejected is not None:
            if batch.limit is not None:
                batch.limit.take(2 * len(rejected) >= len(item.batch.events))
            lane, first = (item.batch.node, item.batch.incarnation, item.batch.home), item.batch.first or 0
            return [
                letter_of(_not_storable(why), item.record, "insert", lane=lane, seq=one.seq, index=one.seq - first)
                for one, why in rejected
            ]
        if batch.limit is not None:
            batch.limit.take(True)
        batch.intake.forget(item)
        return [letter_of(_not_storable(error), item.record, "insert")]

    async def _insert(self, rows: Rows, token: str) -> None:
        if rows.size:
            took_s = await self._retrying(lambda: self._timed_insert(rows, token))
            self._metrics.observe("kvtrail_sink_insert_seconds", took_s)
            self._counts["rows"] += rows.size

    def _timed_insert(self, rows: Rows, token: str) -> float:
        started = time.monotonic()
        self._client.insert(rows.table, rows.columns, token)
        return time.monotonic() - started

    async def _retrying(self, call: Callable[[], _T]) -> _T:
        pause = min(0.1, self._retry_cap_s)
        while True:
            try:
                answer = await asyncio.to_thread(call)
            except StoreUnavailable as error:
                self._away_since = self._away_since or time.monotonic()
                self.tried_at, self._problem = time.monotonic(), f"the store is tried again: {error}"
                self._counts["retries"] += 1
                _log.warning("the store is tried again: %s", error, extra={"pause_s": round(pause, 1)})
                if self._interrupted():
                    raise Interrupted from error
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._retry_cap_s)
            else:
                self.tried_at = self._reached_at = time.monotonic()
                self._problem, self._away_since = "", 0.0
                return answer


def _not_storable(error: StoreRejected) -> NotStorable:
    return NotStorable(error.message, field=error.field, remedy=error.remedy)
