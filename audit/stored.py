"""The archive in ClickHouse: named queries only, never SQL of its own.

The connection is made on first use and again after the store was away, so that a console can start before its store
and says on every page why it shows nothing.
"""

import threading
from collections.abc import Callable

from msgspec.structs import replace

from ..schemas.clocks import plausible_us
from ..schemas.dimensions import Severity
from ..schemas.errors import StoreUnavailable
from ..schemas.findings import Finding
from ..store import queries, results
from ..store.client import Client
from .archive import AmbiguousQuestion, Health, NothingFound, Wanted
from .history import History, Question
from .incidents import Incident, fold_incidents
from .investigate import gather, has_finding, has_request, key_candidates
from .wording import day

LISTED = 1000
"""Findings of one incident from which its lists of names are made; its counts are exact whatever their number."""
_SHORTEST_PREFIX = 4


class StoredArchive:
    """Answers from a store. Threads may share it. Methods raise a `StoreError` while it cannot be read."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._lock = threading.Lock()

    def look_up(self, text: str) -> Question:
        """What `text` names; an exact request id, finding or key comes before what merely begins like it."""
        with _Session(self) as client:
            exact: list[Question] = []
            if has_request(client, text):
                exact.append(Question(kind="request", value=text))
            if has_finding(client, text):
                exact.append(Question(kind="finding", value=text))
            keys = {row.store for row in queries.PROVENANCE.run(client, key=text)}
            if keys:
                exact.append(Question(kind="key", value=text))
            if len(exact) == 1:
                return exact[0]
            candidates = exact or _beginnings(client, text)
            if len(candidates) == 1:
                return candidates[0]
            if candidates:
                raise AmbiguousQuestion("this can mean more than one thing.", tuple(candidates[:10]),
                                        more=len(candidates) > 10)  # fmt: skip
            raise NothingFound(
                "nothing of that name was found among requests, traces, keys and findings.",
                remedy="Check for a missing character, and on the health page whether events arrive.",
            )

    def investigate(self, question: Question) -> History:
        """The history behind the question."""
        with _Session(self) as client:
            return gather(client, question, lambda cause_id: self._incident(client, cause_id))

    def findings(self, wanted: Wanted) -> list[Finding]:
        """Open findings first, then the loudest, then the newest."""
        with _Session(self) as client:
            return _findings(client, wanted)

    def incidents(self, wanted: Wanted) -> list[Incident]:
        """Open findings by root cause; with `cause_id`, that one incident and the names it reached."""
        with _Session(self) as client:
            if wanted.cause_id:
                found = self._incident(client, wanted.cause_id)
                return [found] if found is not None else []
            rows = queries.INCIDENTS.run(
                client, min_rank=wanted.severity.rank, limit=wanted.limit, since_us=wanted.since_us
            )
            rows = [row for row in rows if wanted.cause in ("", row.cause)]
            if not wanted.names:
                return [_named(row) for row in rows]
            listed = queries.INCIDENT_NAMES.run(
                client, cause_ids=[row.cause_id for row in rows], min_rank=wanted.severity.rank,
                since_us=wanted.since_us or queries.FAR_PAST_US,
            )  # fmt: skip
            names = {one.cause_id: one for one in listed}
            return [_named(row, names.get(row.cause_id)) for row in rows]

    def health(self) -> Health:
        """Counts and ages."""
        with _Session(self) as client:
            (fresh,) = queries.FRESHNESS.run(client)
            refusals = queries.DEAD_LETTER_COUNTS.run(client)
            by_code: dict[str, int] = {}
            for row in refusals:
                by_code[row.code] = by_code.get(row.code, 0) + row.letters
            return Health(
                server_version=client.server_version,
                events=fresh.events,
                hits=fresh.hits,
                newest_event_us=fresh.newest_event_us,
                newest_append_us=fresh.newest_append_us,
                newest_insert_us=fresh.newest_insert_us,
                findings_open=fresh.findings_open,
                findings_retracted=fresh.findings_retracted,
                newest_finding_us=fresh.newest_finding_us,
                dead_letters=sum(by_code.values()),
                newest_dead_letter_us=max((row.last_us for row in refusals), default=0),
                dead_letter_codes=tuple(by_code.items()),
                facts=fresh.facts,
            )

    def check(self) -> None:
        """Ask the store something; raises a `StoreError` that says why it cannot be read."""
        with _Session(self) as client:
            queries.FINDINGS_LOUDEST.run(client, limit=1)

    def _incident(self, client: Client, cause_id: str) -> Incident | None:
        rows = queries.INCIDENTS.run(client, cause_id=cause_id)
        if not rows:
            return None
        folded = fold_incidents(_findings(client, Wanted(cause_id=cause_id, limit=LISTED)))
        return _named(rows[0], folded[0] if folded else None)

    def _acquire(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _lost(self, client: Client) -> None:
        with self._lock:
            if self._client is client:
                self._client = None


class _Session:
    """The shared connection, given up when the store turns out to be away."""

    def __init__(self, archive: StoredArchive) -> None:
        self._archive = archive

    def __enter__(self) -> Client:
        self._client = self._archive._acquire()
        return self._client

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreUnavailable):
            self._archive._lost(self._client)


def _findings(client: Client, wanted: Wanted) -> list[Finding]:
    rows = queries.FINDINGS_LOUDEST.run(
        client, min_rank=wanted.severity.rank, status=wanted.status, cause=wanted.cause, cause_id=wanted.cause_id,
        limit=wanted.limit, since_us=wanted.since_us or queries.FAR_PAST_US,
    )  # fmt: skip
    return [_dated(row) for row in rows]


def _dated(row: results.ListedFinding) -> Finding:
    """The finding at a time that can be; where its producer's clock is off, at the broker's, and its title says so."""
    finding = row.finding
    at_us = plausible_us(finding.event_time_us, row.append_us)
    if at_us == finding.event_time_us:
        return finding
    title = f"{finding.title} (clock of the producer is off: {day(finding.event_time_us)})"
    return replace(finding, event_time_us=at_us, title=title)


def _named(row: results.Incident, names: Incident | results.IncidentNames | None = None) -> Incident:
    """The incident with its exact counts, and the names that it reached where they are known."""
    return Incident(
        cause_id=row.cause_id,
        cause=row.cause,
        severity=Severity(row.severity),
        title=row.title,
        dimension=row.dimension,
        store=row.store,
        key_origin=row.key_origin,
        findings=row.findings,
        requests=row.requests,
        entries=row.keys,
        tokens=row.reused_tokens,
        first_us=row.first_us,
        last_us=row.last_us,
        tenant_count=row.tenants,
        tenants=row.requester_tenants,
        owners=row.creator_tenants,
        nodes=row.nodes,
        request_ids=names.request_ids if names is not None else (),
        keys=names.keys if names is not None else (),
        finding_ids=names.finding_ids if names is not None else (row.example,),
    )


def _beginnings(client: Client, text: str) -> list[Question]:
    traced = dict.fromkeys(
        stored.event.request_id for stored in queries.EVENTS_BY_TRACE.run(client, trace_id=text, limit=100)
    )
    found = [Question(kind="request", value=request) for request in traced if request]
    if len(text) >= _SHORTEST_PREFIX:
        found += [Question(kind="finding", value=one) for one in queries.FINDING_IDS_BY_PREFIX.run(client, prefix=text)]
        found += key_candidates(client, text)
    return found
