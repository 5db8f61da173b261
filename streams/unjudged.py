"""A record that cannot be judged: a defect of this build, met again and again, must not stop the records behind it.

The state is half changed when judging a record raises, so it is rebuilt from what was saved and the log, and the record
is judged once more. Where that fails in the same way, the record is left out and becomes a dead letter.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from ..schemas.dead_letters import DeadLetter
from ..schemas.envelope import EnvelopeDecoder
from ..schemas.errors import BadInput
from ..schemas.findings import Finding
from .fold import Fold, Judging, JudgingFailed
from .intake import letter_of
from .records import Record

_log = logging.getLogger("kvtrail.streams.detector")


class NotJudgeable(BadInput):
    """Judging the record raises. The record may be in order; this build is not."""

    code = "not_judgeable"


class Outcome(Struct, frozen=True):
    """What became of the record: its findings, or the letter that says that it was left out."""

    findings: list[Finding]
    letter: DeadLetter | None = None


async def judge_again(
    fold: Fold, failure: JudgingFailed, rebuild: Callable[[int], Awaitable[Fold]], load: Callable[[bytes], Judging]
) -> Outcome:
    """Bring `fold` to just behind the record at which it failed. `rebuild` makes a fold of the log up to an offset,
    `load` a judge from the bytes that one was frozen to. Raises `JudgingFailed` where it fails otherwise than before,
    and `TooManyRefused`, before anything is said of the record."""
    record = failure.record
    _log.error(
        "judging a record has failed; trying it once more on a state made anew", exc_info=failure.__cause__,
        extra={"partition": record.partition, "offset": record.offset},
    )  # fmt: skip
    rebuilt = await rebuild(record.offset)
    if rebuilt.next > record.offset:
        fold.become(rebuilt)  # saved by a worker that could
        return Outcome([])
    state = await asyncio.to_thread(rebuilt.judge.freeze().encode)
    try:
        findings = rebuilt.apply([record])
    except JudgingFailed as again:
        if not again.like(failure):
            raise
        fold.become(rebuilt, await asyncio.to_thread(load, state))
        fold.leave_out(record)
        return Outcome([], _letter(record, failure))
    fold.become(rebuilt)
    return Outcome(findings)


def _letter(record: Record, failure: JudgingFailed) -> DeadLetter:
    error = NotJudgeable(
        f"cannot be judged: {type(failure.__cause__).__name__}, twice.",
        field="record",
        remedy="This build has a defect, see the detector's log: upgrade or roll back, then "
        "`kvtrail dead-letter replay`. Until then its events are missing from every verdict.",
    )
    try:
        batch = EnvelopeDecoder().decode(record.value)
    except Exception:  # decoding is what failed
        return letter_of(error, record, "judge")
    return letter_of(error, record, "judge", lane=(batch.node, batch.incarnation, batch.home))
