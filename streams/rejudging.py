"""History judged again: exact bytes, in the order of the log, by today's rules. Writes nothing.

The fold is the detector's own, and the fleet worker's for what compares several homes. What they find is compared with
what is stored, finding by finding, over events of a span of time; records before it are judged too, since a hit may be
on an entry of long ago, and so are the records of one horizon behind it, since what arrives late can change a verdict
until then.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from ..judging.factbook import FactBook
from ..judging.judge import Judge
from ..schemas.config import Config
from ..schemas.errors import KvtrailError
from ..schemas.facts import Tick
from ..schemas.findings import Finding, precedence
from ..schemas.reserved import is_own
from ..store import queries
from ..store.client import Client
from . import refolding, retention
from .fold import Fold, JudgingFailed
from .history import History, StoredHistory
from .records import Record

NOT_COMPARED = frozenset({retention.CAUSE})
"""Causes that do not come from history alone."""
MOST_FINDINGS = 1_000_000


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


class LeftOut(Struct, frozen=True, kw_only=True):
    """Causes that were asked for and are not compared."""

    causes: tuple[str, ...]
    reason: str


class Outcome(Struct, frozen=True, kw_only=True):
    """What judging again came to. `same` counts open findings that agree. `whole`: history was there from the first
    record on; otherwise what was created before it is not known."""

    changes: tuple[Change, ...]
    same: int
    records: int
    events: int
    left_out: tuple[LeftOut, ...] = ()
    whole: bool = True


class Span(Struct, frozen=True, kw_only=True):
    """Which events are compared, microseconds by their own clocks; `warm_up_us`: how much history before it is
    judged, 0 for all there is."""

    from_us: int
    to_us: int
    warm_up_us: int = 0


def rejudge(
    client: Client, config: Config, span: Span, *, causes: frozenset[str] = frozenset(),
    history: History | None = None, tell: Callable[[int], None] = lambda records: None,
) -> Outcome:  # fmt: skip
    """Judge history again, as it is stored or as `history` has it, and compare with the findings that are stored.
    `causes`: only findings that name one of them on either side; `tell` hears now and then how many records were
    judged. Raises `StoreError`, `EvidenceAltered` among them, `NotJudged`, and what `history` raises."""
    history = StoredHistory(client) if history is None else history
    # Records stand in the order of their append, which may be long after their events: a spool, a backfill.
    [(_, first_us, last_us)] = queries.APPENDED_BETWEEN.run(client, since_us=span.from_us, until_us=span.to_us)
    since_us = first_us - span.warm_up_us if span.warm_up_us else queries.FAR_PAST_US
    until_us = max(last_us, span.to_us) + round((config.judging.horizon_s + config.judging.skew_s) * 1e6)
    book = FactBook()
    for append_us, fact in history.facts():
        if not isinstance(fact.body, Tick):
            book.add(fact, append_us)
    whole = history.whole()
    left_out = [one for one in _left_out(config, span, whole) if not causes or causes & set(one.causes)]
    not_compared = {cause for one in left_out for cause in one.causes}
    observe = bool(refolding.CAUSES - not_compared and (not causes or causes & refolding.CAUSES))
    judged: dict[str, Finding] = {}
    records = events = 0

    def note(findings: Iterable[Finding]) -> None:
        for finding in findings:
            known = judged.get(finding.id)
            if not is_own(finding) and (known is None or precedence(finding) > precedence(known)):
                judged[finding.id] = finding

    with refolding.Refold(config) as refold:
        for partition in history.partitions(since_us, until_us):
            judge = Judge(config.judging, config.deployment, book, observe=observe)
            fold = Fold(judge, 0)
            for page in history.pages(partition, since_us, until_us):
                note(_judged(fold, page))
                refold.keep(partition, fold.observed)
                fold.observed.clear()
                records += len(page)
                tell(records)
            events += sum(count for name, count in judge.counts.items() if name != "parts_left_out")
        if observe:
            note(refold.findings(min(until_us, time.time_ns() // 1000)))
    stored = queries.FINDINGS_CURRENT.run(
        client, since_us=span.from_us, until_us=span.to_us, status="", limit=MOST_FINDINGS
    )
    inside = {finding.id: finding for finding in judged.values() if span.from_us <= finding.event_time_us <= span.to_us}
    changes, same = compare({finding.id: finding for finding in stored}, inside, causes, not_compared)
    return Outcome(
        changes=tuple(changes), same=same, records=records, events=events, left_out=tuple(left_out),
        whole=whole and not span.warm_up_us,
    )  # fmt: skip


def _left_out(config: Config, span: Span, whole: bool) -> Iterable[LeftOut]:
    """What this history cannot say."""
    yield LeftOut(causes=(*NOT_COMPARED,), reason="it comes of what the sink is configured to keep, not of the log")
    if not config.fleet.enabled:
        yield LeftOut(causes=(*sorted(refolding.CAUSES),), reason="fleet.enabled is false: nobody looks for them")
    elif span.warm_up_us:
        short = span.warm_up_us < config.fleet.request_s * 1e6
        causes = refolding.CAUSES if short else refolding.OF_ALL_HISTORY
        yield LeftOut(causes=(*sorted(causes),), reason="they need all of history, and --warm-up leaves out a part")
    elif not whole:
        yield LeftOut(
            causes=(*sorted(refolding.OF_ALL_HISTORY),), reason="they need all of history, and its beginning is gone"
        )


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


def compare(
    stored: Mapping[str, Finding], judged: Mapping[str, Finding], causes: frozenset[str] = frozenset(),
    not_compared: Collection[str] = NOT_COMPARED,
) -> tuple[list[Change], int]:  # fmt: skip
    """What differs, the loudest first, and how many open findings agree. Revisions are not compared: how often a
    finding was revised on its way depends on when things arrived."""
    changes: list[Change] = []
    same = 0
    for finding_id in stored.keys() | judged.keys():
        before, now = _open(stored.get(finding_id)), _open(judged.get(finding_id))
        named = {one.cause for one in (before, now) if one is not None}
        if not named or named.intersection(not_compared) or (causes and not named & causes):
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
