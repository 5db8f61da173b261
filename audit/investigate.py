"""An investigation in ClickHouse: from a request id, key or finding id to everything its history is made of.

Few lookups by id, each bounded: the events of the request, the life of the entries it touched, what ended entries
without naming them, identities that came later, findings, and what is known to be missing.
"""

from collections.abc import Callable, Iterable, Sequence

from ..schemas.clocks import plausible_us
from ..schemas.events import Event
from ..schemas.findings import Finding
from ..store import queries
from ..store.client import Client
from ..store.results import StoredEvent
from .archive import AmbiguousQuestion, NothingFound
from .causes import GAP_CAUSES
from .history import History, Question, build_history
from .incidents import Incident
from .wording import moment, number

EVENTS_A_KEY = 5_000
"""Events of one key that are read one by one; of a busier key, its hits are read in part, its life in full."""
KEYS = 50
"""Entries of one request that are followed."""
BEFORE_US = 3_600_000_000
CANDIDATES = 10
_SHORTEST_PREFIX = 4


def gather(client: Client, question: Question, incident: Callable[[str], Incident | None]) -> History:
    """The history of the question; `incident` gives the whole extent of a root cause.

    Raises `NothingFound` saying what was searched, or `AmbiguousQuestion` with candidates.
    """
    read = _Reading()
    question, events, findings = _START[question.kind](client, question, read)
    unseen: list[str] = []
    entries = _entries(question, events, findings)
    if len(entries) > KEYS:
        unseen.append(f"Of {number(len(entries))} entries this touches, {KEYS} were followed.")
    for store, key in entries[:KEYS]:
        events += _life(client, store, key, unseen, read)
        findings += queries.FINDINGS_BY_KEY.run(client, key=key, store=store)
    events = _unique(events)
    known = {event.id for event in events}
    named = _named_events(question, findings) - known
    if named:
        events += read(queries.EVENTS_BY_ID.run(client, ids=sorted(named)))
    events += _barriers(client, events, read)
    events += _late_identities(client, events)
    findings += _gaps(client, events)
    unseen += _refused(client, events)
    touched = build_history(question, events, findings, unseen=unseen, received=read.odd)
    causes = dict.fromkeys(finding.cause_id for finding in touched.open_findings)
    incidents = [found for cause in causes if (found := incident(cause)) is not None]
    return build_history(question, events, findings, incidents=incidents, unseen=unseen, received=read.odd)


def has_request(client: Client, request_id: str) -> bool:
    """Whether any event or finding carries this request id."""
    return bool(
        queries.EVENTS_BY_REQUEST.run(client, request_id=request_id, limit=1)
        or queries.FINDINGS_BY_REQUEST.run(client, request_id=request_id)
    )


def has_finding(client: Client, finding_id: str) -> bool:
    """Whether there is a finding of exactly this id."""
    return bool(queries.FINDING_REVISIONS.run(client, finding_id=finding_id))


def key_candidates(client: Client, prefix: str, store: str = "") -> list[Question]:
    """Keys that begin like this, one more than are shown."""
    rows = queries.KEYS_BY_PREFIX.run(client, prefix=prefix, store=store, limit=CANDIDATES + 1)
    return [Question(kind="key", value=row.key, store=row.store) for row in rows]


class _Reading:
    """Turns stored events into events. `odd`: by id, when the broker had those whose own time cannot be."""

    def __init__(self) -> None:
        self.odd: dict[str, int] = {}

    def __call__(self, stored: Iterable[StoredEvent]) -> list[Event]:
        found: list[Event] = []
        for one in stored:
            found.append(one.event)
            shown_us = plausible_us(one.event.time_us, one.append_us)
            if shown_us != one.event.time_us:
                self.odd[one.event.id] = shown_us
        return found


Start = tuple[Question, list[Event], list[Finding]]


def _of_request(client: Client, question: Question, read: _Reading) -> Start:
    events = read(queries.EVENTS_BY_REQUEST.run(client, request_id=question.value))
    findings = queries.FINDINGS_BY_REQUEST.run(client, request_id=question.value)
    if events or findings:
        return question, events, findings
    traced = dict.fromkeys(
        stored.event.request_id for stored in queries.EVENTS_BY_TRACE.run(client, trace_id=question.value, limit=100)
    )
    candidates = [Question(kind="request", value=request) for request in traced if request]
    if candidates:
        raise AmbiguousQuestion(
            "no request has this id, but it is a trace id of these.", tuple(candidates[:CANDIDATES]),
            more=len(candidates) > CANDIDATES, remedy="Ask for one of them.",
        )  # fmt: skip
    raise NothingFound(
        "no event and no finding carries this request id, and no event has it as its trace id.",
        field="request",
        remedy=f"{_newest(client)} Ids are compared whole, and only requests that touched a cache leave events.",
    )


def _of_key(client: Client, question: Question, read: _Reading) -> Start:
    if queries.PROVENANCE.run(client, key=question.value, store=question.store):
        return question, [], []
    candidates = (
        key_candidates(client, question.value, question.store) if len(question.value) >= _SHORTEST_PREFIX else []
    )
    if len(candidates) == 1:
        return candidates[0], [], []
    if candidates:
        raise AmbiguousQuestion(
            "more than one key begins like this.", tuple(candidates[:CANDIDATES]), more=len(candidates) > CANDIDATES,
            remedy="Give more of the key.",
        )  # fmt: skip
    where = "in this store" if question.store else "in any store"
    raise NothingFound(
        f"no entry has this key {where}, and none begins like it.",
        field="key",
        remedy=f"{_newest(client)} A beginning of at least {_SHORTEST_PREFIX} characters is enough.",
    )


def _of_finding(client: Client, question: Question, read: _Reading) -> Start:
    findings = queries.FINDING_REVISIONS.run(client, finding_id=question.value)
    if not findings and len(question.value) >= _SHORTEST_PREFIX:
        ids = queries.FINDING_IDS_BY_PREFIX.run(client, prefix=question.value, limit=CANDIDATES + 1)
        if len(ids) > 1:
            raise AmbiguousQuestion(
                "more than one finding's id begins like this.",
                tuple(Question(kind="finding", value=one) for one in ids[:CANDIDATES]),
                more=len(ids) > CANDIDATES,
                remedy="Give more of the id.",
            )
        if ids:
            question = Question(kind="finding", value=ids[0])
            findings = queries.FINDING_REVISIONS.run(client, finding_id=ids[0])
    if not findings:
        raise NothingFound(
            "no finding has this id, and none begins like it.",
            field="finding",
            remedy=f"{_newest(client)} `kvtrail findings` lists them.",
        )
    events = read(queries.EVENTS_OF_FINDING.run(client, finding_id=question.value))
    return question, events, findings


_START: dict[str, Callable[[Client, Question, _Reading], Start]] = {
    "request": _of_request,
    "key": _of_key,
    "finding": _of_finding,
}


def _newest(client: Client) -> str:
    (fresh,) = queries.FRESHNESS.run(client)
    if not fresh.events:
        return "The store is empty: does a publisher send, and does `kvtrail sink` run?"
    return f"The newest event stored is of {moment(fresh.newest_append_us)}."


def _entries(question: Question, events: Sequence[Event], findings: Sequence[Finding]) -> list[tuple[str, str]]:
    if question.kind == "key":
        return [(question.store, question.value)]
    found = {(finding.store, finding.key): None for finding in findings if finding.key}
    if question.kind == "request":
        found.update({(event.store, event.key): None for event in events if event.key})
    return list(found)


def _life(client: Client, store: str, key: str, unseen: list[str], reading: _Reading) -> list[Event]:
    read = queries.EVENTS_BY_KEY.run(client, key=key, store=store, limit=EVENTS_A_KEY)
    if len(read) < EVENTS_A_KEY:
        return reading(read)
    for place in queries.PROVENANCE.run(client, key=key, store=store):
        lived = queries.LIFE_OF_KEY.run(client, key=key, store=place.store)
        read += lived
        ends = place.creates + place.expiries + place.invalidations
        if len(lived) < ends:
            unseen.append(f"Of {number(ends)} creates and ends of this key, the newest {number(len(lived))} were read.")
    return reading(read)


def _unique(events: Iterable[Event]) -> list[Event]:
    return list({event.id: event for event in events}.values())


def _named_events(question: Question, findings: Sequence[Finding]) -> set[str]:
    named: set[str] = set()
    for finding in findings:
        if question.kind != "finding" or finding.id == question.value:
            parties = [party.event_id for party in (finding.creator, finding.requester) if party is not None]
            named.update(event for event in (finding.subject, *parties, *finding.evidence) if event)
    return named


def _barriers(client: Client, events: Sequence[Event], read: _Reading) -> list[Event]:
    if not events:
        return []
    first, last = _window(events)
    homes = sorted({event.home for event in events if event.key})
    return [
        event
        for home in homes
        for event in read(queries.BARRIERS.run(client, home=home, since_us=first, until_us=last))
    ]


def _late_identities(client: Client, events: Sequence[Event]) -> list[Event]:
    nameless = sorted(event.id for event in events if event.identity is None and event.key)
    if not nameless:
        return []
    requests = sorted({event.request_id for event in events if event.identity is None and event.request_id})
    wanted = {event_id for event_id, _ in queries.RESOLUTIONS.run(client, ids=nameless)}
    found: list[Event] = []
    for request in requests if wanted else []:
        found += [
            stored.event
            for stored in queries.EVENTS_BY_REQUEST.run(client, request_id=request)
            if stored.event.type == "resolve"
        ]
    return found


def _gaps(client: Client, events: Sequence[Event]) -> list[Finding]:
    homes = {event.home for event in events}
    return [
        finding
        for cause in sorted(GAP_CAUSES)
        for finding in queries.FINDINGS_CURRENT.run(client, cause=cause)
        if finding.home in homes
    ]


def _refused(client: Client, events: Sequence[Event]) -> list[str]:
    homes = sorted({event.home for event in events if event.key})
    if not homes:
        return []
    first, last = _window(events)
    return [
        f"{number(row.letters)} refused records or events of {row.home} are not part of this: see the dead letters."
        for row in queries.REFUSED_AT_HOMES.run(
            client, homes=homes, since_us=first - BEFORE_US, until_us=last + BEFORE_US
        )
    ]


def _window(events: Sequence[Event]) -> tuple[int, int]:
    times = [event.time_us for event in events]
    return min(times), max(times)
