"""From a verdict to a finding: parties, ids, the incident it belongs to."""

from collections.abc import Iterable

from ..schemas.dimensions import Severity
from ..schemas.events import Event
from ..schemas.findings import Difference, Finding, Party, cause_id, finding_id
from .interning import Carrier, Identities, Packed, Who
from .ledger.lanes import Lane
from .ledger.rows import Row
from .verdicts import Verdict


class Findings:
    """Builds first revisions; `Revisions` numbers them."""

    def __init__(self, deployment: str, identities: Identities) -> None:
        self.deployment, self.identities = deployment, identities
        self._wires: dict[tuple[int, int, Packed, str | None], dict[str, str]] = {}

    def forget(self) -> None:
        """Numbers of identities may be given again."""
        self._wires.clear()

    def about_event(
        self, event: Event, verdict: Verdict, who: Who, row: Row | None, *, complete: bool, reused: int = 0
    ) -> Finding:
        """`row` is the instance that a hit was matched to, or the instance of the create that `event` is."""
        creating = row is not None and row.event_id == event.id
        creator = None if row is None else self._creator(row)
        return Finding(
            id=finding_id(event.id),
            revision=1,
            status="open",
            rule=verdict.cause,
            cause=verdict.cause,
            severity=verdict.severity,
            title=verdict.title,
            deployment=self.deployment,
            cause_id=cause_id(self.deployment, event.store, verdict.cause, verdict.dimension),
            dimension=verdict.dimension,
            subject=event.id,
            event_time_us=event.time_us,
            store=event.store,
            tier=event.tier,
            home=event.home,
            key=event.key,
            key_origin=row.origin if row is not None else event.key_origin,
            kind=event.kind,
            creator=creator,
            requester=None if creating else self._requester(event, who),
            differing=self._differences(verdict, row, who),
            reused_tokens=reused,
            complete=complete,
            facts=verdict.facts,
            evidence=_unique((event.id, row.event_id if row is not None else "", *verdict.evidence)),
            reason=verdict.reason,
        )

    def about(
        self,
        subject: str,
        cause: str,
        severity: Severity,
        title: str,
        *,
        time_us: int,
        store: str = "",
        home: str = "",
        evidence: Iterable[str] = (),
        facts: tuple[str, ...] = (),
        kind: str = "",
        requester: Party | None = None,
    ) -> Finding:
        """A finding about more than one event: a lane, a namespace, an operation, a fact."""
        return Finding(
            id=finding_id(subject),
            revision=1,
            status="open",
            rule=cause,
            cause=cause,
            severity=severity,
            title=title,
            deployment=self.deployment,
            cause_id=cause_id(self.deployment, store, cause, ""),
            subject=subject,
            event_time_us=time_us,
            store=store,
            home=home,
            kind=kind,
            requester=requester,
            evidence=_unique(evidence),
            facts=facts,
        )

    def _wire(self, who: Carrier) -> dict[str, str]:
        packed = (who.identity, who.mask, who.own, who.principal)
        wire = self._wires.get(packed)
        if wire is None:
            if len(self._wires) > 4096:
                self._wires.clear()
            wire = self._wires[packed] = self.identities.wire(who)
        return wire

    def _creator(self, row: Row) -> Party:
        return Party(
            event_id=row.event_id,
            time_us=row.time_us,
            tenant_id=self.identities.tenant(row.identity),
            request_id=row.request_id,
            node=row.lane.node,
            identity=self._wire(row),
        )

    def _requester(self, event: Event, who: Who) -> Party:
        return Party(
            event_id=event.id,
            time_us=event.time_us,
            tenant_id=self.identities.tenant(who.identity),
            request_id=event.request_id,
            node=event.node,
            identity=self._wire(who),
        )

    def _differences(self, verdict: Verdict, row: Row | None, who: Who) -> tuple[Difference, ...]:
        created = self._wire(row) if row is not None else {}
        asked = self._wire(who)
        return tuple(
            Difference(dimension=name, created=created.get(name, ""), requested=asked.get(name, ""))
            for name in verdict.differing
        )


def lane_subject(lane: Lane) -> str:
    """What a gap or a sequence reset is about."""
    return f"lane:{lane.node}/{lane.incarnation}/{lane.home}"


def _unique(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found for found in ids if found))
