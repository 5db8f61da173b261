"""A history as JSON for machines: `kvtrail investigate --json` and `/api/investigate` give the same document.

Fields are stable: names are added under the same `schema`, never renamed or reused. Times are microseconds since
the epoch, `received_us` the broker's where the producer's cannot be; an absent dimension is unknown, an empty one known
to be none. Nothing is folded or shortened.
"""

from typing import Any

import msgspec

from ..schemas.findings import Finding, Party
from .history import History, Meeting, Row
from .incidents import Incident
from .render import note, operation
from .verdict import Verdict, reach_verdict

INVESTIGATION = "kvtrail.investigation/1"
FINDINGS = "kvtrail.findings/1"
INCIDENTS = "kvtrail.incidents/1"


def history_document(history: History) -> dict[str, Any]:
    """`schema, question, verdict, rows, meetings, findings, incidents, coverage, complete, unseen`."""
    return {
        "schema": INVESTIGATION,
        "question": msgspec.to_builtins(history.question),
        "verdict": verdict_document(reach_verdict(history)),
        "rows": [_row(row) for row in history.rows],
        "meetings": [_meeting(meeting) for meeting in history.meetings],
        "findings": [finding_document(finding) for finding in history.findings],
        "incidents": [incident_document(incident) for incident in history.incidents],
        "coverage": [
            {"dimension": side.dimension, "known": side.known, "hits": side.hits} for side in history.coverage
        ],
        "complete": history.complete,
        "unseen": list(history.unseen),
    }


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """`outcome` is one of implicated, at_risk, cleared, unknown."""
    document: dict[str, Any] = msgspec.to_builtins(verdict)
    return document


def finding_document(finding: Finding) -> dict[str, Any]:
    """A finding as it stands on `kvtrail.findings`, with every field."""
    return {
        name: (_party(value) if isinstance(value, Party) else msgspec.to_builtins(value))
        for name, value in msgspec.structs.asdict(finding).items()
    }


def incident_document(incident: Incident) -> dict[str, Any]:
    """The incident's fields, and its sentence."""
    document: dict[str, Any] = msgspec.to_builtins(incident)
    document["keys"] = [{"store": store, "key": key} for store, key in incident.keys]
    document["sentence"] = incident.sentence
    return document


def _row(row: Row) -> dict[str, Any]:
    event = row.event
    return {
        "event_id": event.id,
        "time_us": event.time_us,
        "received_us": row.received_us or None,
        "operation": operation(event),
        "node": event.node,
        "incarnation": event.incarnation,
        "home": event.home,
        "seq": event.seq,
        "store": event.store,
        "tier": event.tier,
        "rank": event.rank,
        "copy": event.copy,
        "key": event.key,
        "key_origin": event.key_origin,
        "kind": event.kind,
        "request_id": event.request_id,
        "trace_id": event.trace_id,
        "tenant_id": event.identity.tenant_id if event.identity is not None else "",
        "identity": event.identity.to_wire() if event.identity is not None else None,
        "body": msgspec.to_builtins(event.body),
        "asked": row.asked,
        "creator": _party(row.creator),
        "matched": row.matched,
        "finding_id": row.finding.id if row.finding is not None else "",
        "note": note(row),
    }


def _meeting(meeting: Meeting) -> dict[str, Any]:
    return {
        "hit": _party(meeting.hit),
        "creator": _party(meeting.creator),
        "finding_id": meeting.finding.id if meeting.finding is not None else "",
        "dimensions": [
            {"dimension": side.dimension, "created": side.created, "requested": side.requested,
             "relation": side.relation}
            for side in meeting.dimensions
        ],
    }  # fmt: skip


def _party(party: Party | None) -> dict[str, Any] | None:
    if party is None:
        return None
    return {
        "event_id": party.event_id,
        "time_us": party.time_us,
        "tenant_id": party.tenant_id,
        "request_id": party.request_id,
        "node": party.node,
        "identity": dict(party.identity),
    }
