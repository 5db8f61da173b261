"""Findings about more than one event: gaps, client-chosen keys, refused operations, late facts."""

from ..schemas.dimensions import Severity
from ..schemas.events import Event, Invalidate
from ..schemas.facts import AliasFact, EpochFact, InvalidationFact, PolicyFact
from ..schemas.findings import finding_id
from .findings import Findings, lane_subject
from .ledger.home import Held, Home
from .ledger.lanes import Lane
from .ledger.rows import Row
from .revisions import Revisions
from .verdicts import Context

_GOVERNING = (PolicyFact, EpochFact, InvalidationFact, AliasFact)
_RANGES_SHOWN = 8


class StreamWatch:
    """What the stream itself says, beside what its events say."""

    def __init__(self, revisions: Revisions, findings: Findings, context: Context) -> None:
        self.revisions, self.findings, self.context = revisions, findings, context
        self.newest_us = 0
        """The newest event time seen."""
        self.facts_until_us: int | None = None
        self.stated: dict[int, tuple[tuple[tuple[int, int], ...], str]] = {}
        """Lane index -> the gaps last stated, and the event that revealed the first of them."""

    def seen(self, time_us: int) -> None:
        if time_us > self.newest_us:
            self.newest_us = time_us

    def gaps(self, home: Home, lane: Lane, event: Event | None = None) -> None:
        """State the lane's gaps, or that they are filled."""
        subject = lane_subject(lane)
        gaps = lane.gaps() if lane.lost or not lane.whole else ()
        known = self.stated.get(lane.index)
        if gaps == (known[0] if known is not None else ()):
            return
        if not gaps:
            del self.stated[lane.index]
            self.revisions.put(finding_id(subject), None, "the missing events arrived")
            return
        revealed = known[1] if known is not None else event.id if event is not None else ""
        self.stated[lane.index] = (gaps, revealed)
        missing = sum(last - first + 1 for first, last in gaps)
        shown = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in gaps[:_RANGES_SHOWN])
        finding = self.findings.about(
            subject,
            "STREAM_GAP",
            Severity.MEDIUM,
            f"{missing} event(s) missing: {shown}" + (", ..." if len(gaps) > _RANGES_SHOWN else ""),
            time_us=lane.first_us,
            home=home.name,
            evidence=(revealed,),
        )
        self.revisions.put(finding.id, finding, "the gap changed")

    def repeated(self, home: Home, lane: Lane, event: Event) -> None:
        """A number seen before. Redelivery brings the event itself, a producer that counts anew a later one."""
        if event.time_us <= lane.last_us + self.context.skew_us:
            return
        subject = f"reset:{lane_subject(lane)}"
        finding = self.findings.about(
            subject,
            "SEQUENCE_RESET",
            Severity.MEDIUM,
            "numbers start again without a new incarnation",
            time_us=lane.last_us,
            home=home.name,
            evidence=(event.id,),
        )
        if finding.id not in self.revisions:
            self.revisions.put(finding.id, finding)

    def client_key(self, row: Row, held: Held) -> None:
        """Requesters choose the keys of this namespace: what they name proves nothing about content."""
        context, event = self.context, held.event
        if context.identities.domain(row.identity) and context.facts.partitioned(
            event.store, held.append_us, event.time_us
        ):
            return
        store = event.store if event.tier == "shared" else ""  # a node's own tiers are one namespace
        finding = self.findings.about(
            f"namespace:{store}/{event.kind}",
            "KEY_CLIENT_CONTROLLED",
            Severity.MEDIUM,
            f"requesters choose the keys of {event.kind} entries" + (f" in {store}" if store else ""),
            time_us=event.time_us,
            store=store,
            kind=event.kind,
            evidence=(event.id,),
        )
        known = self.revisions.standing.get(finding.id)
        if known is None and finding.id in self.revisions:
            return
        if known is None or (event.time_us, event.id) < (known.event_time_us, known.evidence[0]):
            self.revisions.put(finding.id, finding, "an earlier one arrived late")

    def invalidate_failed(self, event: Event, body: Invalidate) -> None:
        """Refused or partial; one operation over several homes is one finding."""
        finding = self.findings.about(
            f"operation:{body.op_id}" if body.op_id else event.id,
            "INVALIDATE_FAILED",
            Severity.MEDIUM,
            f"an invalidation was {body.outcome}" + (f" ({body.cause})" if body.cause else ""),
            time_us=event.time_us,
            store=event.store,
            home="" if body.op_id else event.home,
            evidence=(event.id,),
        )
        if finding.id not in self.revisions:
            self.revisions.put(finding.id, finding)

    def facts(self, append_us: int) -> None:
        """Facts appended since the last record that govern what had been judged before them."""
        after, self.facts_until_us = self.facts_until_us, append_us
        if after is None or not self.newest_us:
            return
        for fact in self.context.facts.appended(after, append_us):
            late_by = self.newest_us - fact.effective_at_us
            if isinstance(fact.body, _GOVERNING) and late_by > self.context.skew_us:
                finding = self.findings.about(
                    f"fact:{fact.id}",
                    "LATE_FACT",
                    Severity.INFO,
                    f"judge again what happened in the {late_by / 1e6:g} s before {self.newest_us} us",
                    time_us=fact.effective_at_us,
                    facts=(fact.id,),
                )
                self.revisions.put(finding.id, finding)
