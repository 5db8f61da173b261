"""Incidents: the findings of one root cause, folded."""

from collections.abc import Iterable

from msgspec import Struct

from ..schemas.dimensions import Severity
from ..schemas.findings import Finding
from ..schemas.identity import titles


class Incident(Struct, frozen=True, kw_only=True):
    """One root cause: how often, how bad, whom it touched."""

    cause_id: str
    cause: str
    dimension: str
    store: str
    severity: Severity
    findings: int
    tenants: tuple[str, ...]
    keys: int
    first_us: int
    last_us: int

    @property
    def title(self) -> str:
        """`this key does not cover tenant: 1240 findings, 3 tenants`."""
        what = f"does not cover {titles((self.dimension,))}" if self.dimension else self.cause
        return f"{what}: {self.findings} finding(s), {len(self.tenants)} tenant(s)"


def fold(findings: Iterable[Finding]) -> list[Incident]:
    """Open findings by root cause, the loudest first."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.status == "open":
            groups.setdefault(finding.cause_id, []).append(finding)
    incidents = [_incident(cause_id, group) for cause_id, group in groups.items()]
    return sorted(incidents, key=lambda one: (-one.severity.rank, one.first_us, one.cause_id))


def _incident(cause_id: str, group: list[Finding]) -> Incident:
    parties = [party for finding in group for party in (finding.creator, finding.requester) if party is not None]
    return Incident(
        cause_id=cause_id,
        cause=group[0].cause,
        dimension=group[0].dimension,
        store=group[0].store,
        severity=max((finding.severity for finding in group), key=lambda severity: severity.rank),
        findings=len(group),
        tenants=tuple(sorted({party.tenant_id for party in parties if party.tenant_id})),
        keys=len({finding.key for finding in group if finding.key}),
        first_us=min(finding.event_time_us for finding in group),
        last_us=max(finding.event_time_us for finding in group),
    )
