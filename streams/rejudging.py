"""History judged again: the exact bytes that are stored, in the order of the log, by today's rules. Writes nothing.

The fold is the detector's own. What it finds is compared with what is stored, finding by finding, over events of a span
of time; records before it are judged too, since a hit may be on an entry of long ago, and so are the records of one
horizon behind it, since what arrives late can change a verdict until then.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from ..judging.factbook import FactBook
from ..judging.judge import Judge
from ..schemas.config import Config
from ..schemas.errors import KvtrailError, StoreError
from ..schemas.facts import Tick
from ..schemas.findings import Finding
from ..schemas.reserved import is_own
from ..schemas.topics import LIFECYCLE
from ..store import queries
from ..store.client import Client
from . import retention
from .fold import Fold, JudgingFailed
from .records import Record

NOT_COMPARED = frozenset({retention.CAUSE, "KEY_DRIFT", "PREFIX_PROBING", "COMPONENT_MISSING"})
"""Causes that do not come from one partition's history alone."""
MOST_FINDINGS = 1_000_000


class EvidenceAltered(StoreError):
    """Stored bytes are not the bytes that were read from Kafka."""

    code = "evidence_altered"


class NotJudged(KvtrailError):
    """This build cannot judge a record that is stored."""

    code = "not_judged"


class Change(Struct, frozen=True, kw_only=True):
    """One finding that stored and judged again do not agree about. `gone`: judged again, there is none."""

    kind: Literal["new", "gone", "changed"]
    stored: Finding | None
    judged: Finding | None
    fields: tuple[str, ...] = ()

    @property
    def finding(self) -> Finding:
        """The side that there is; as judged again where there are both."""
        found = self.judged if self.judged is not None else self.stored
        assert found is not None
        return found


class Outcome(Struct, frozen=True, kw_only=True):
    """What judging again came to. `same` counts open findings that agree."""

    changes: tuple[Change, ...]
    same: int
    records: int
    events: int


class Span(Struct, frozen=True, kw_only=True):
    """Which events are compared, microseconds by their own clocks; `warm_up_us`: how much history before it is
    judged, 0 for all there is."""

    from_us: int
    to_us: int
    warm_up_us: int = 0


def rejudge(
    client: Client, config: Config, span: Span, *, causes: frozenset[str] = frozenset(),
    tell: Callable[[int], None] = lambda records: None,
) -> Outcome:  # fmt: skip
    """Judge stored history again and compare. `causes`: only findings that name one of them on either side; `tell`
    hears now and then how many records were judged. Raises `StoreError`, `EvidenceAltered` among them, `NotJudged`."""
    # Records stand in the order of their append, which may be long after their events: a spool, a backfill.
    [(_, first_us, last_us)] = queries.APPENDED_BETWEEN.run(client, since_us=span.from_us, until_us=span.to_us)
    since_us = first_us - span.warm_up_us if span.warm_up_us else queries.FAR_PAST_US
    until_us = max(last_us, span.to_us) + round((config.judging.horizon_s + config.judging.skew_s) * 1e6)
    book = FactBook()
    for append_us, fact in queries.FACTS_APPENDED.run(client):
        if not isinstance(fact.body, Tick):
            book.add(fact, append_us)
    judged: dict[str, Finding] = {}
    records = events = 0
    for place in queries.EVIDENCE_PLACES.run(client, topic=LIFECYCLE, since_us=since_us, until_us=until_us):
        judge = Judge(config.judging, config.deployment, book)
        fold = Fold(judge, 0)
        for page in _pages(client, place.partition, since_us, until_us):
            for finding in _judged(fold, page):
                if not is_own(finding):
                    judged[finding.id] = finding
            records += len(page)
            tell(records)
        events += sum(count for name, count in judge.counts.items() if name != "parts_left_out")
    stored = queries.FINDINGS_CURRENT.run(
        client, since_us=span.from_us, until_us=span.to_us, status="", limit=MOST_FINDINGS
    )
    inside = {finding.id: finding for finding in judged.values() if span.from_us <= finding.event_time_us <= span.to_us}
    changes, same = compare({finding.id: finding for finding in stored}, inside, causes)
    return Outcome(changes=tuple(changes), same=same, records=records, events=events)


def _judged(fold: Fold, page: list[Record]) -> list[Finding]:
    try:
        return fold.apply(page)
    except JudgingFailed as failure:
        record = failure.record
        raise NotJudged(
            f"cannot be judged: {type(failure.__cause__).__name__}.",
            field=f"{record.topic}/{record.partition}/{record.offset}",
            remedy="This build has a defect: judge again with another one.",
        ) from failure.__cause__


def _pages(client: Client, partition: int, since_us: int, until_us: int) -> Iterator[list[Record]]:
    offset = 0
    while True:
        found = queries.EVIDENCE_PAGE.run(
            client, topic=LIFECYCLE, partition=partition, from_offset=offset, since_us=since_us, until_us=until_us
        )
        if not found:
            return
        for one in found:
            if hashlib.sha256(one.raw).hexdigest() != one.sha256:
                raise EvidenceAltered(
                    "the stored bytes are not those that were read from Kafka.",
                    field=f"{LIFECYCLE}/{partition}/{one.offset}",
                    remedy="Find out who wrote to the store; restore it from a backup before judging from it.",
                )
        yield [
            Record(topic=LIFECYCLE, partition=partition, offset=one.offset, append_us=one.append_us, value=one.raw)
            for one in found
        ]
        offset = found[-1].offset + 1


def compare(
    stored: Mapping[str, Finding], judged: Mapping[str, Finding], causes: frozenset[str] = frozenset()
) -> tuple[list[Change], int]:
    """What differs, the loudest first, and how many open findings agree. Revisions are not compared: how often a
    finding was revised on its way depends on when things arrived."""
    changes: list[Change] = []
    same = 0
    for finding_id in stored.keys() | judged.keys():
        before, now = _open(stored.get(finding_id)), _open(judged.get(finding_id))
        named = {one.cause for one in (before, now) if one is not None}
        if not named or named & NOT_COMPARED or (causes and not named & causes):
            continue
        if before is None:
            changes.append(Change(kind="new", stored=stored.get(finding_id), judged=now))
        elif now is None:
            changes.append(Change(kind="gone", stored=before, judged=judged.get(finding_id)))
        elif fields := tuple(_differing(before, now)):
            changes.append(Change(kind="changed", stored=before, judged=now, fields=fields))
        else:
            same += 1
    return sorted(changes, key=_order), same


def _open(finding: Finding | None) -> Finding | None:
    return finding if finding is not None and finding.status == "open" else None


_COMPARED = (
    "rule", "cause", "severity", "title", "dimension", "cause_id", "store", "tier", "home", "key", "key_origin", "kind",
    "creator", "requester", "differing", "reused_tokens", "complete", "facts", "evidence",
)  # fmt: skip


def _differing(before: Finding, now: Finding) -> Iterable[str]:
    return (name for name in _COMPARED if getattr(before, name) != getattr(now, name))


def _order(change: Change) -> tuple[Any, ...]:
    kinds = ("new", "gone", "changed")
    finding = change.finding
    return kinds.index(change.kind), -finding.severity.rank, finding.event_time_us, finding.id
