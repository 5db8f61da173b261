"""A partition's state made anew: the newest snapshot where it can be used, else the log from its beginning."""

import asyncio
import logging

from ..judging.errors import SnapshotError
from ..judging.judge import Judge
from ..schemas.envelope import EnvelopeDecoder
from ..schemas.errors import BrokerError
from ..schemas.topics import LIFECYCLE
from .fold import Fold
from .reader import TopicReader
from .refusals import RefusalLimit, refused
from .services import Services
from .snapshots import Manifest, SnapshotUnusable, manifest_key

_log = logging.getLogger("kvtrail.streams.detector")


async def restore(partition: int, services: Services, reader: TopicReader) -> tuple[Fold, bool]:
    """The saved state, and True; the log's beginning, and False, where none was saved, or where the log still begins
    and none can be used. Raises `BrokerError` where going on would lose history in silence."""
    start, end = await reader.bounds(partition)
    where = {"partition": partition}
    try:
        fold = await _from_snapshot(partition, services, reader, start, end)
    except (SnapshotUnusable, SnapshotError) as error:
        if start > 0:
            raise _unusable(partition, f"cannot be used ({error})") from error
        _log.warning("the saved state cannot be used (%s): judging the whole log again", error, extra=where)
    else:
        if fold is not None:
            _log.info("restored", extra={**where, "next": fold.next})
            return fold, True
        if start > 0:
            _log.warning("the log's beginning is gone and no state was saved: starting cold", extra=where)
    config = services.config
    judge = Judge(config.judging, config.deployment, services.facts.book, observe=config.fleet.enabled)
    return Fold(judge, start, limit=await _limit(partition, services, reader, start)), False


def load(services: Services, state: bytes) -> Judge:
    """A judge from the bytes that one was frozen to."""
    config = services.config
    return Judge.load(state, config.judging, config.deployment, services.facts.book, observe=config.fleet.enabled)


async def _from_snapshot(
    partition: int, services: Services, reader: TopicReader, start: int, end: int
) -> Fold | None:  # fmt: skip
    snapshot = await services.state.restore(partition)
    if snapshot is None:
        return None
    manifest = snapshot.manifest
    if manifest.next < start:
        raise _unusable(partition, "ends before the log begins: the records between are lost.")
    if manifest.next > end or await _is_another_log(partition, reader, manifest, start):
        raise _unusable(partition, "belongs to another log: the topic is not the one it was folded from.")
    judge = await asyncio.to_thread(load, services, snapshot.state)
    limit = await _limit(partition, services, reader, manifest.next, start, frozenset(manifest.unjudged))
    fold = Fold(judge, manifest.next, manifest.last_append_us, limit)
    fold.unjudged = [*manifest.unjudged]
    return fold


async def _limit(
    partition: int,
    services: Services,
    reader: TopicReader,
    reached: int,
    start: int | None = None,
    unjudged: frozenset[int] = frozenset(),
) -> RefusalLimit:
    """The limit of refusals, with what was refused just before `reached`: a restart forgives nothing."""
    section = services.config.detector
    limit = RefusalLimit(
        f"{LIFECYCLE}/{partition}", "detector", in_a_row=section.refused_in_a_row, share=section.refused_share
    )
    first = max(reached - section.refused_in_a_row, reached if start is None else start)
    decoder = EnvelopeDecoder()
    async for records in reader.read(partition, first, reached):
        limit.recall(record.offset in unjudged or refused(decoder.decode(record.value)) for record in records)
    return limit


async def _is_another_log(partition: int, reader: TopicReader, manifest: Manifest, start: int) -> bool:
    """Offsets start again where a topic was deleted and made anew; append times do not."""
    last = manifest.next - 1
    if last < start or not manifest.last_append_us:
        return False
    async for records in reader.read(partition, last, manifest.next):
        return records[0].append_us != manifest.last_append_us
    return False


def _unusable(partition: int, why: str) -> BrokerError:
    return BrokerError(
        f"the saved state {why}",
        field=f"{LIFECYCLE}/{partition}",
        remedy=f"Restore the topic, or write a tombstone for {manifest_key(partition).decode()} to "
        "kvtrail.state: the partition then starts with a hole in its history.",
    )
