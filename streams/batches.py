"""Cutting a partition's records into batches, and the order of steps that makes a batch exact.

    write the range down -> store -> commit

A crash before the first step leaves nothing; after it, the range is stored again, exactly, before anything newer;
after the last, it is never read again. The range is the metadata of a commit whose offset does not move.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from aiokafka import TopicPartition
from msgspec import Struct

from .intake import Intake, Item
from .pending import encode_pending
from .records import Record
from .refusals import RefusalLimit

BEHIND, BEHIND_MOST_S = 5, 5.0
"""Where the log holds more, or the store has other batches in hand, a batch that is not full waits so many times as
long, but not beyond this by that."""


class Batch(Struct, frozen=True, kw_only=True):
    """Items with offsets `first`..`last`, both included, and the intake that makes rows of them."""

    first: int
    last: int
    items: list[Item]
    intake: Intake
    limit: RefusalLimit | None = None
    """Of records that the store rejects."""
    again: bool = False
    """Somebody may have stored all or some of it before: this is a pending range."""

    @property
    def metadata(self) -> str:
        return encode_pending(self.first, self.last)

    def token(self, tp: TopicPartition) -> str:
        """Names the content of the insert."""
        return f"{tp.topic}/{tp.partition}/{self.first}-{self.last}"


class Cut:
    """One partition's records that wait, decoded in order, and how they are cut into batches."""

    def __init__(
        self,
        *,
        intake: Intake,
        position: int,
        pending: tuple[int, int] | None,
        batch_rows: int,
        batch_wait_s: float,
        limits: tuple[RefusalLimit, RefusalLimit] | None = None,
    ) -> None:
        """`limits`: of records that do not decode, and of records that the store rejects."""
        self.position = position
        self.pending = pending
        self._intake = intake
        self._batch_rows = batch_rows
        self._batch_wait_s = batch_wait_s
        self._items: deque[Item] = deque()
        self._times: deque[float] = deque()
        self._rows = 0
        self._end = position
        self.behind = False
        """Whether the log holds more than was added: full batches are worth waiting for then, a part of ClickHouse's
        costs much the same however few rows it has."""
        self.busy = False
        """Whether the store has other batches of ours in hand: small pieces beside them would keep it so."""
        self._decode_limit = limits[0] if limits is not None else None
        self._store_limit = limits[1] if limits is not None else None

    def add(self, records: Iterable[Record], now: float) -> None:
        """Records as fetched; `now` is any monotonic clock. Raises `TooManyRefused`."""
        for record in records:
            if record.offset < self._end:
                continue
            item = self._intake.take(record)
            if self._decode_limit is not None:
                self._decode_limit.take(item.refused)
            self._items.append(item)
            self._times.append(now)
            self._rows += item.size
            self._end = record.offset + 1

    @property
    def end(self) -> int:
        """The offset of the next record to add."""
        return self._end

    @property
    def full(self) -> bool:
        """Whether a batch has all it may have. Nothing more should be added before it is stored."""
        return self._end > self.pending[1] if self.pending is not None else self._rows >= self._batch_rows

    def wait_s(self, now: float) -> float | None:
        """Seconds until the oldest record has waited long enough; None where nothing waits, or only for more."""
        if not self._items or self.pending is not None:
            return None
        return max(0.0, self._times[0] + self._patience_s() - now)

    def due(self, now: float) -> bool:
        """Whether a batch can be cut now. A pending range must be complete first."""
        if not self._items:
            return False
        return self.full or (self.pending is None and now - self._times[0] >= self._patience_s())

    def _patience_s(self) -> float:
        wait_s = self._batch_wait_s
        return max(wait_s, min(wait_s * BEHIND, BEHIND_MOST_S)) if self.behind or self.busy else wait_s

    def next(self) -> Batch:
        """The pending range exactly, else as many whole records as fill a batch."""
        items: list[Item] = []
        size = 0
        for item in self._items:
            if self.pending is not None:
                if item.record.offset > self.pending[1]:
                    break
            elif items and size + item.size > self._batch_rows:
                break
            items.append(item)
            size += item.size
        first, last = self.pending or (items[0].record.offset, items[-1].record.offset)
        return Batch(
            first=first, last=last, items=items, intake=self._intake, limit=self._store_limit,
            again=self.pending is not None,
        )  # fmt: skip

    async def flush(
        self, commit: Callable[[int, str], Awaitable[None]], store: Callable[[Batch], Awaitable[None]]
    ) -> Batch:
        """Store the next batch. `commit(offset, metadata)` commits for the group. What either raises leaves the
        range standing: this object must then be given up, since the log is read again from the committed offset."""
        batch = self.next()
        if self.pending is None:
            await commit(self.position, batch.metadata)
        await store(batch)
        await commit(batch.last + 1, "")
        for item in batch.items:
            self._items.popleft()
            self._times.popleft()
            self._rows -= item.size
        self.position = batch.last + 1
        self.pending = None
        return batch
