"""Getting one batch into ClickHouse, whatever it takes."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from aiokafka import TopicPartition

from ..schemas.dead_letters import DeadLetter
from ..schemas.errors import BadInput, StoreRejected, StoreUnavailable
from ..store import queries
from ..store.client import Client
from ..store.rows import Rows, dead_letter_rows
from .batches import Batch
from .deadletters import DeadLetterTopic
from .intake import letter_of, letters_of
from .lanes import Lane

_T = TypeVar("_T")

_log = logging.getLogger("kvtrail.streams.sink")


class Interrupted(Exception):
    """The batch was given up before it was known to be stored; its pending range stands."""


class NotStorable(BadInput):
    """ClickHouse will never accept this record as it is."""

    code = "not_storable"


class Writer:
    """Writes batches. Transient failures are retried for ever; a rejected record becomes a dead letter and its
    neighbours are stored; a refusal (`StoreRefused`) is raised, since a person has to act."""

    def __init__(
        self, client: Client, letters: DeadLetterTopic, retry_cap_s: float, *, interrupted: Callable[[], bool]
    ) -> None:
        self._client = client
        self._letters = letters
        self._retry_cap_s = retry_cap_s
        self._interrupted = interrupted
        self._counts = {"batches": 0, "rows": 0, "dead_letters": 0, "retries": 0, "dropped": 0}

    def counts(self) -> dict[str, int]:
        """What was written since the start."""
        return dict(self._counts)

    async def stored_lanes(self, topic: str, partition: int, before: int) -> list[tuple[Lane, int, int]]:
        """The runs of `seq` that are stored of this partition's records below offset `before`."""
        found = await self._retrying(
            lambda: queries.LANE_INTERVALS.run(self._client, topic=topic, partition=partition, before_offset=before)
        )
        return [((run.node, run.incarnation, run.home), run.first, run.last) for run in found]

    async def write(self, tp: TopicPartition, batch: Batch) -> None:
        """Returns when everything of the batch is in ClickHouse, in the dead-letter topic, or both."""
        letters = letters_of(batch.items)
        letters += await self._store(tp, batch)
        if letters:
            placed = await self._letters.publish(letters)
            rows = await asyncio.to_thread(dead_letter_rows, placed)
            await self._insert(rows, batch.token(tp))
            self._counts["dead_letters"] += len(letters)
            for letter in letters:
                _log.warning(
                    "refused: %s: %s", letter.field, letter.message,
                    extra={"code": letter.code, "stage": letter.stage, "topic": letter.topic,
                           "partition": letter.partition, "offset": letter.offset, "index": letter.index},
                )  # fmt: skip
        self._counts["batches"] += 1
        self._counts["dropped"] += sum(len(item.drop) for item in batch.items)

    async def _store(self, tp: TopicPartition, batch: Batch) -> list[DeadLetter]:
        """The letters of what ClickHouse rejected."""
        rows = await asyncio.to_thread(batch.intake.rows, batch.items)
        try:
            await self._insert(rows, batch.token(tp))
            return []
        except StoreRejected as error:
            if len(batch.items) == 1:
                refusal = NotStorable(error.message, field=error.field or rows.table, remedy=error.remedy)
                return [letter_of(refusal, batch.items[0].record, "insert")]
            middle = len(batch.items) // 2
            letters: list[DeadLetter] = []
            for items in (batch.items[:middle], batch.items[middle:]):
                half = Batch(
                    first=items[0].record.offset, last=items[-1].record.offset, items=items, intake=batch.intake
                )
                letters += await self._store(tp, half)
            return letters

    async def _insert(self, rows: Rows, token: str) -> None:
        if rows.size:
            await self._retrying(lambda: self._client.insert(rows.table, rows.columns, token))
            self._counts["rows"] += rows.size

    async def _retrying(self, call: Callable[[], _T]) -> _T:
        pause = min(0.1, self._retry_cap_s)
        while True:
            try:
                return await asyncio.to_thread(call)
            except StoreUnavailable as error:
                self._counts["retries"] += 1
                _log.warning("the store is tried again: %s", error, extra={"pause_s": round(pause, 1)})
                if self._interrupted():
                    raise Interrupted from error
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._retry_cap_s)
