"""The history behind one question: what happened to the entries it touches, in time order, who met whom, who else.

Pure: from events and findings, wherever they come from (ClickHouse, a recording). `build_history` selects what
belongs to the question itself, so that a caller may pass a whole recording.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Struct

from ..schemas.dimensions import MatchMode
from ..schemas.events import Create, Event, Hit, Invalidate, NodeStart, Resolve
from ..schemas.findings import Finding, Party, precedence
from .causes import GAP_CAUSES
from .comparing import Compared, Coverage, compare, coverage
from .incidents import Incident, fold_incidents
from .matching import match_hits

_NOTHING: Mapping[str, int] = MappingProxyType({})
_SHOWN = frozenset({"create", "hit", "expire", "invalidate", "commit", "node_start", "check"})


class Question(Struct, frozen=True, kw_only=True):
    """What was asked: about a request, a store key (in one store, or any), a finding, or a whole recording."""

    kind: Literal["request", "key", "finding", "recording"]
    value: str = ""
    store: str = ""


class Row(Struct, frozen=True, kw_only=True):
    """One event of the history.

    `creator`: for a hit, who created the instance it met; `matched` says how that is known. `finding`: the latest
    revision of the finding about this event. `asked`: the question is about this event. `received_us`: when the broker
    had it, where the time that the event gives cannot be; else 0.
    """

    event: Event
    creator: Party | None = None
    matched: Literal["finding", "ledger", ""] = ""
    finding: Finding | None = None
    asked: bool = False
    received_us: int = 0

    @property
    def time_us(self) -> int:
        """When it is shown to have happened."""
        return self.received_us or self.event.time_us


class Meeting(Struct, frozen=True, kw_only=True):
    """One hit the question is about, with both parties side by side."""

    hit: Party
    creator: Party | None
    finding: Finding | None
    dimensions: tuple[Compared, ...]


class History(Struct, frozen=True, kw_only=True):
    """Everything known about the question. `findings` touch it, loudest first, retracted ones last; `incidents` are
    their root causes with everything else those touched. `unseen` says in sentences what could not be read."""

    question: Question
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    meetings: tuple[Meeting, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.unseen

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """The findings that stand."""
        return tuple(finding for finding in self.findings if finding.status == "open")


def latest_revisions(findings: Iterable[Finding]) -> list[Finding]:
    """The last revision of each finding, in the order in which the findings first appeared."""
    last: dict[str, Finding] = {}
    for finding in findings:
        known = last.get(finding.id)
        if known is None or precedence(finding) > precedence(known):
            last[finding.id] = finding
    return list(last.values())


def party_of(event: Event) -> Party:
    """The party an event speaks for."""
    identity = event.identity
    return Party(
        event_id=event.id,
        time_us=event.time_us,
        tenant_id=identity.tenant_id if identity is not None else "",
        request_id=event.request_id,
        node=event.node,
        identity=identity.to_wire() if identity is not None else {},
    )


def in_time_order(events: Iterable[Event], received: Mapping[str, int] = _NOTHING) -> list[Event]:
    """Events once each, in time order; inside a lane `seq` decides, whatever its clock did. `received`: by event id,
    the time to go by instead of the event's own."""
    unique = {event.id: event for event in events}
    reached: dict[tuple[str, str, str], int] = {}
    placed: list[tuple[int, str, int, Event]] = []
    for event in sorted(unique.values(), key=lambda event: event.seq):
        lane = (event.node, event.incarnation, event.home)
        time_us = received.get(event.id, event.time_us)
        reached[lane] = max(time_us, reached.get(lane, time_us))
        placed.append((reached[lane], event.home, event.seq, event))
    return [event for _, _, _, event in sorted(placed, key=lambda item: item[:3])]


def build_history(
    question: Question,
    events: Iterable[Event],
    findings: Iterable[Finding],
    *,
    incidents: Iterable[Incident] | None = None,
    unseen: Iterable[str] = (),
    received: Mapping[str, int] = _NOTHING,
) -> History:
    """The history that answers `question`.

    `findings` may hold several revisions, and findings that do not touch the question (they mark rows and widen
    the blast radius). `incidents`: folded elsewhere over more findings than fit here; else folded from `findings`.
    `unseen`: what the caller knows to be missing. `received`: by event id, when the broker had an event whose own time
    cannot be.
    """
    ordered = _with_resolutions(in_time_order(events, received))
    known = latest_revisions(findings)
    touching = [finding for finding in known if _touches(question, finding)]
    selected = _select(question, ordered, touching)
    by_subject = {finding.subject: finding for finding in known if finding.subject}
    creates = {event.id: party_of(event) for event in selected if isinstance(event.body, Create)}
    matched = match_hits(selected)
    subjects = {finding.subject for finding in touching}
    rows = tuple(
        _row(event, by_subject.get(event.id), creates, matched, _asked(question, event, subjects)) for event in selected
    )
    if received:
        rows = tuple(msgspec.structs.replace(row, received_us=received.get(row.event.id, 0)) for row in rows)
    seen = {finding.id for finding in touching}
    touching += [row.finding for row in rows if row.asked and row.finding is not None and row.finding.id not in seen]
    touching.sort(key=_loudest_first)
    causes = {finding.cause_id for finding in touching if finding.status == "open"}
    folded = list(incidents) if incidents is not None else fold_incidents(known)
    meetings = _meetings(question, rows, touching)
    return History(
        question=question,
        rows=rows,
        findings=tuple(touching),
        incidents=tuple(incident for incident in folded if incident.cause_id in causes),
        meetings=meetings,
        coverage=coverage(
            (meeting.creator.identity, meeting.hit.identity) for meeting in meetings if meeting.creator is not None
        ),
        unseen=(*unseen, *_gaps(rows, known)),
    )


def _loudest_first(finding: Finding) -> tuple[bool, int, int, str]:
    return (finding.status != "open", -finding.severity.rank, finding.event_time_us, finding.id)


def _touches(question: Question, finding: Finding) -> bool:
    if question.kind == "request":
        parties = (finding.requester, finding.creator)
        return any(party is not None and party.request_id == question.value for party in parties)
    if question.kind == "key":
        return finding.key == question.value and question.store in ("", finding.store)
    return question.kind == "recording" or finding.id == question.value


def _asked(question: Question, event: Event, subjects: set[str]) -> bool:
    if question.kind == "request":
        return event.request_id == question.value
    if question.kind == "finding":
        return event.id in subjects
    return isinstance(event.body, Hit)


def _select(question: Question, events: Sequence[Event], touching: Sequence[Finding]) -> list[Event]:
    if question.kind == "recording":
        return [event for event in events if event.type in _SHOWN]
    entries = {(finding.store, finding.key) for finding in touching if finding.key}
    evidence = {event for finding in touching for event in (finding.subject, *finding.evidence)}
    evidence |= {p.event_id for f in touching for p in (f.creator, f.requester) if p is not None}
    for event in events:
        if event.key and (
            (question.kind == "request" and event.request_id == question.value)
            or (question.kind == "key" and event.key == question.value and question.store in ("", event.store))
        ):
            entries.add((event.store, event.key))
    homes = {event.home for event in events if (event.store, event.key) in entries}

    def belongs(event: Event) -> bool:
        if event.key and (event.store, event.key) in entries:
            return True
        if event.id in evidence or (question.kind == "request" and event.request_id == question.value):
            return True
        if isinstance(event.body, Invalidate):
            return event.body.scope != "entry" and event.home in homes
        return isinstance(event.body, NodeStart) and event.home in homes

    return [event for event in events if event.type in _SHOWN and belongs(event)]


def _with_resolutions(events: list[Event]) -> list[Event]:
    late = {
        event.body.event_id: event.identity
        for event in events
        if isinstance(event.body, Resolve) and event.identity is not None
    }
    if not late:
        return events
    return [
        msgspec.structs.replace(event, identity=late[event.id])
        if event.identity is None and event.id in late
        else event
        for event in events
    ]


def _row(
    event: Event, finding: Finding | None, creates: dict[str, Party], matched: dict[str, Event], asked: bool
) -> Row:
    if not isinstance(event.body, Hit):
        return Row(event=event, finding=finding, asked=asked)
    if finding is not None and finding.creator is not None:
        said = finding.creator
        return Row(
            event=event, creator=creates.get(said.event_id, said), matched="finding", finding=finding, asked=asked
        )
    create = matched.get(event.id)
    if create is None:
        return Row(event=event, finding=finding, asked=asked)
    return Row(event=event, creator=creates[create.id], matched="ledger", finding=finding, asked=asked)


def _meetings(question: Question, rows: Sequence[Row], touching: Sequence[Finding]) -> tuple[Meeting, ...]:
    met = [
        _meeting(party_of(row.event), row.creator, row.finding, row.event.kind, row.event.body.match_mode)
        for row in rows
        if row.asked and isinstance(row.event.body, Hit)
    ]
    seen = {meeting.hit.event_id for meeting in met}
    if question.kind != "recording":  # a finding's parties outlive the retention of their events
        met += [
            _meeting(finding.requester, finding.creator, finding, finding.kind or "kv")
            for finding in touching
            if finding.requester is not None and finding.subject not in seen
        ]
    return tuple(met)


def _meeting(
    hit: Party, creator: Party | None, finding: Finding | None, kind: str, mode: MatchMode = "exact"
) -> Meeting:
    dimensions = compare(creator.identity, hit.identity, finding, kind=kind, mode=mode) if creator is not None else ()
    return Meeting(hit=hit, creator=creator, finding=finding, dimensions=dimensions)


def _gaps(rows: Sequence[Row], known: Sequence[Finding]) -> list[str]:
    homes = {row.event.home for row in rows}
    return [
        f"Events are missing in the stream of {finding.home}: {finding.title or finding.cause}."
        for finding in known
        if finding.status == "open" and finding.cause in GAP_CAUSES and finding.home in homes
    ]
