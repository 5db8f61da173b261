"""The verdict of a history, in words a person can act on. Unknown is said to be unknown, never innocent."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from ..schemas.dimensions import Severity
from ..schemas.events import Check, Create, Hit
from ..schemas.findings import Finding, Party
from .causes import HARMLESS, IDENTITY_CAUSES, Advice, advice, cause_name
from .checked import CHECK_CAUSES, check_sentences, entry_of, failed_checks
from .comparing import DECISIVE, decided, differing_titles
from .history import History, Meeting
from .incidents import CHOSEN_KEYS, Incident
from .wording import listing, moment, name, number, person_key, plural, sentence, span


class Outcome(StrEnum):
    """What the history says about the cache."""

    IMPLICATED = "implicated"
    """A request was answered from a wrong entry."""
    AT_RISK = "at_risk"
    """Nobody was answered wrongly as far as is known, but a finding says that it can happen or went unseen."""
    CLEARED = "cleared"
    """Every reuse in question is attributed, and what decides about it is known on both sides and equal."""
    UNKNOWN = "unknown"
    """No finding, and not enough known to clear the cache."""


class Verdict(Struct, frozen=True, kw_only=True):
    """`happened` in sentences, what to do now, what is not known, and the ids it rests on."""

    outcome: Outcome
    headline: str
    happened: tuple[str, ...]
    steps: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    severity: Severity | None = None
    cause: str = ""
    uncovered: tuple[str, ...] = ()


def reach_verdict(history: History) -> Verdict:
    """What this history says, about the loudest of its standing findings first."""
    loud = [finding for finding in history.open_findings if finding.severity.rank >= Severity.MEDIUM.rank]
    served = [finding for finding in loud if was_served(history, finding)]
    if served or loud:
        return _guilty(history, (served or loud)[0], served=bool(served))
    return _not_guilty(history)


def was_served(history: History, finding: Finding) -> bool:
    """Whether the finding is about a hit: somebody was answered from the entry."""
    for row in history.rows:
        if row.event.id == finding.subject:
            return isinstance(row.event.body, Hit | Check) and finding.cause not in HARMLESS
    reused = finding.reused_tokens > 0 or finding.cause in CHECK_CAUSES
    return finding.requester is not None and reused and finding.cause not in HARMLESS


def _guilty(history: History, finding: Finding, *, served: bool) -> Verdict:
    told = advice(finding.cause, served)
    fields = _fields(history, finding)
    incident = next((one for one in history.incidents if one.cause_id == finding.cause_id), None)
    happened = [told.happened.format_map(fields), *_details(finding, served), *check_sentences(history)]
    if incident is not None and served:
        happened.append(_reach(incident))
    question, asked = history.question, finding.requester
    if question.kind == "request" and (asked is None or asked.request_id != question.value):
        happened.insert(0, "The request asked about made the entry; it was not itself answered wrongly.")
    others = [one for one in history.open_findings if one.cause_id != finding.cause_id]
    if others:
        happened.append(f"Also found here: {listing(_distinct(cause_name(other) for other in others))}.")
    what = "the cache is implicated" if served else "the cache is at risk"
    return Verdict(
        outcome=Outcome.IMPLICATED if served else Outcome.AT_RISK,
        headline=f"{what}: {cause_name(finding)}",
        happened=tuple(happened),
        steps=_steps(told, fields),
        unknown=(*_unknown_sides(history, finding), *_incomplete(history, finding)),
        evidence=_evidence(finding),
        severity=finding.severity,
        cause=finding.cause,
        uncovered=tuple(difference.dimension for difference in finding.differing),
    )


def _fields(history: History, finding: Finding) -> dict[str, str]:
    entry = entry_of(history, finding)

    def tenant(party: Party | None) -> str:
        return name(party.tenant_id if party is not None else "")

    return {
        "requester": tenant(finding.requester),
        "creator": tenant(finding.creator),
        "key": person_key(finding.key if entry is None else entry.event.key) or "(unknown)",
        "store": name(finding.store if entry is None else entry.event.store, "(unnamed)"),
        "dimensions": differing_titles(finding) or "nothing that is known",
        "node": name(finding.requester.node if finding.requester is not None else "", "the node"),
        "cause": finding.cause,
    }


def _details(finding: Finding, served: bool) -> list[str]:
    told: list[str] = []
    asked, made = finding.requester, finding.creator
    if served and asked is not None:
        request = f"request {name(asked.request_id)}" if asked.request_id else "a request without an id"
        reused = f", {plural(finding.reused_tokens, 'token')} of it" if finding.reused_tokens else ""
        told.append(f"It was {request}, at {moment(asked.time_us or finding.event_time_us)}{reused}.")
    if made is not None and made.time_us:
        age = (finding.event_time_us - made.time_us) / 1e6
        by = f" by request {name(made.request_id)}" if made.request_id else ""
        before = f", {span(age)} before" if age >= 1 and served else ""
        told.append(f"The entry was created for {name(made.tenant_id)} at {moment(made.time_us)}{by}{before}.")
    covered = differing_titles(finding)
    if covered and finding.cause in IDENTITY_CAUSES:
        if finding.key_origin in CHOSEN_KEYS:
            chosen = "by a client" if finding.key_origin == "client" else "by the application"
            told.append(f"Key {person_key(finding.key)} is chosen {chosen} and does not cover {covered}.")
        else:
            told.append(f"Key {person_key(finding.key)} is the same on both sides although {covered} differ.")
    elif finding.title and not covered:
        told.append(f"{sentence(finding.title)}.")
    return told


def _reach(incident: Incident) -> str:
    if incident.findings == 1:
        return "No other hit with this root cause is known."
    who = f" ({listing(name(tenant) for tenant in incident.tenants)})" if incident.tenants else ""
    where = f" in store {name(incident.store)}" if incident.store else ""
    return (
        f"Same root cause{where}, since {moment(incident.first_us)}: {plural(incident.findings, 'hit')} of "
        f"{plural(incident.requests, 'request')} by {plural(len(incident.tenants), 'tenant')}{who} on "
        f"{plural(incident.entries, 'entry', 'entries')}; the last at {moment(incident.last_us)}."
    )


def _steps(told: Advice, fields: dict[str, str]) -> tuple[str, ...]:
    return tuple(step.format_map(fields) for step in told.steps)


def _unknown_sides(history: History, finding: Finding) -> tuple[str, ...]:
    meeting = next((one for one in history.meetings if one.finding is not None and one.finding.id == finding.id), None)
    if meeting is None or meeting.creator is None:
        return ("The creator of the entry is unknown.",) if finding.creator is None and finding.requester else ()
    halves = [
        side.title
        for side in meeting.dimensions
        if side.relation == "unknown" and (side.created is None) != (side.requested is None)
    ]
    if not halves:
        return ()
    return (f"Known on one side only, so not compared: {listing(halves, 8)}.",)


def _incomplete(history: History, finding: Finding) -> tuple[str, ...]:
    if not finding.complete:
        return ("The finding rests on a history with gaps; it is judged again when the missing events arrive.",
                *history.unseen)  # fmt: skip
    return history.unseen


def _evidence(finding: Finding) -> tuple[str, ...]:
    parties = [party.event_id for party in (finding.creator, finding.requester) if party is not None]
    events = [event for event in (*parties, finding.subject, *finding.evidence) if event]
    return tuple(
        dict.fromkeys(
            [
                f"finding {finding.id} revision {finding.revision} (rule {finding.rule})",
                *(f"event {event}" for event in events),
                *(f"fact {fact}" for fact in finding.facts),
            ]
        )
    )


def _not_guilty(history: History) -> Verdict:
    subject = {"request": "this request", "key": "this key", "finding": "this history"}.get(
        history.question.kind, "this recording"
    )
    retracted = [finding for finding in history.findings if finding.status == "retracted"]
    quiet = history.open_findings
    happened = [f"No finding of medium severity or above touches {subject}." if quiet else
                f"No {'open ' if retracted else ''}finding touches {subject}."]  # fmt: skip
    happened += [
        f"{sentence(cause_name(one))} was retracted: {one.reason or 'no reason given'}." for one in retracted[:3]
    ]
    happened += [f"Noted: {cause_name(one)} ({one.severity})." for one in quiet[:3]]
    touched = {one.id for one in history.findings}
    beside = [row.finding for row in history.rows if row.finding is not None and row.finding.id not in touched]
    happened += [
        f"Another request was served the same entry wrongly: {cause_name(one)} (finding {one.id})."
        for one in beside[:1]
        if one.status == "open" and one.requester is not None
    ]
    evidence = tuple(dict.fromkeys(line for one in (*retracted, *quiet) for line in _evidence(one)))
    happened += check_sentences(history)
    doubts = [*_doubts(history), *history.unseen]
    if history.meetings:
        happened.append(_coverage_sentence(history))
        happened += _coverage_gaps(history.meetings)
    else:
        happened.append("No hit is part of it: what was asked for was computed, not reused.")
        if any(_reports_reuse(row.event.body) for row in history.rows if row.asked):
            doubts.append("A create reports reused tokens, but no hit event says what was reused.")
    if doubts:
        return Verdict(
            outcome=Outcome.UNKNOWN,
            headline="nothing found, but not enough is known to clear the cache",
            happened=tuple(happened),
            steps=_what_to_send(history),
            unknown=tuple(doubts),
            evidence=evidence,
        )
    return Verdict(
        outcome=Outcome.CLEARED,
        headline="the cache is not implicated",
        happened=tuple(happened),
        steps=("Look at the prompt itself: its documents, tools and template are what the answer rests on.",),
        evidence=evidence,
    )


def _doubts(history: History) -> list[str]:
    hits = len(history.meetings)
    alone = sum(meeting.creator is None for meeting in history.meetings)
    met = [meeting for meeting in history.meetings if meeting.creator is not None]
    undecided = sum(not decided(meeting.creator.identity, meeting.hit.identity) for meeting in met if meeting.creator)
    differing = _distinct(side.title for one in met for side in one.dimensions if side.relation == "differs")
    doubts: list[str] = []
    if failed := failed_checks(history):
        doubts.append(f"{plural(len(failed), 'check')} failed, and no finding of it stands.")
    if alone:
        doubts.append(f"The creator is unknown for {number(alone)} of {plural(hits, 'hit')}.")
    if differing:
        doubts.append(
            f"Creator and requester differ in {listing(differing, 8)}, and no finding judges it: "
            "the detector may not have got there yet, or it was retracted."
        )
    elif undecided:
        groups = " and ".join(" or ".join(group).replace("_digest", "").replace("_", " ") for group in DECISIVE)
        doubts.append(f"For {number(undecided)} of {plural(hits, 'hit')} the digests of {groups} are not both known.")
    return doubts


def _coverage_sentence(history: History) -> str:
    hits = len(history.meetings)
    known = [side.title for side in history.coverage if side.known == side.hits and side.hits]
    partly = [f"{side.title} ({side.known} of {side.hits})" for side in history.coverage if 0 < side.known < side.hits]
    told = f"Coverage over {plural(hits, 'hit')}: known on both sides: {listing(known, 60) or 'nothing'}"
    return told + (f"; partly: {listing(partly, 6)}." if partly else ".")


def _coverage_gaps(meetings: Sequence[Meeting]) -> list[str]:
    halves = _distinct(
        side.title
        for meeting in meetings
        for side in meeting.dimensions
        if side.relation == "unknown" and (side.created is None) != (side.requested is None)
    )
    return [f"Known on one side only: {listing(halves, 8)}."] if halves else []


def _what_to_send(history: History) -> tuple[str, ...]:
    steps: list[str] = []
    if any(meeting.creator is None for meeting in history.meetings) or history.unseen:
        steps.append("Let every writer of the store publish its creates, and find what is missing in the stream.")
    if any(meeting.creator is not None and not _decided(meeting) for meeting in history.meetings):
        steps.append("Let gateway and engine send the digests of weights and token ids with every create and hit.")
    steps.append("Ask the same with and without the cache: `kvtrail bypass-diff URL --about REQUEST`.")
    return tuple(steps)


def _decided(meeting: Meeting) -> bool:
    return meeting.creator is not None and decided(meeting.creator.identity, meeting.hit.identity)


def _reports_reuse(body: object) -> bool:
    if not isinstance(body, Create):
        return False
    computed = body.tokens if body.computed_tokens is None else body.computed_tokens
    return bool(body.reported_tokens) or computed < body.tokens


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
