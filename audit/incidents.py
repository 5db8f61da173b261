"""Incidents: the findings of one root cause, and everything that cause touched (its blast radius)."""

from collections.abc import Iterable

from msgspec import Struct

from ..schemas.dimensions import Severity
from ..schemas.findings import Finding
from ..schemas.identity import titles
from .causes import IDENTITY_CAUSES, name_of
from .wording import plural

CHOSEN_KEYS = frozenset({"asserted", "client"})


class Incident(Struct, frozen=True, kw_only=True):
    """One root cause. The counts are exact; the tuples of names may be cut short where there are many.

    `findings` counts those that stand. `tenants` were served, `owners` created what they were served; `tenant_count`
    counts both, each once, as notifications and the dashboard do. Times are those of the first and last subject event,
    microseconds since the epoch.
    """

    cause_id: str
    cause: str
    severity: Severity
    title: str
    dimension: str = ""
    store: str = ""
    key_origin: str = ""
    findings: int = 0
    requests: int = 0
    entries: int = 0
    tokens: int = 0
    first_us: int = 0
    last_us: int = 0
    tenant_count: int = 0
    tenants: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    request_ids: tuple[str, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    finding_ids: tuple[str, ...] = ()

    @property
    def cause_sentence(self) -> str:
        """`this key does not cover tenant`, or what happened instead."""
        if self.dimension and self.cause in IDENTITY_CAUSES:
            covered = titles((self.dimension,))
            if self.key_origin in CHOSEN_KEYS:
                return f"this key does not cover {covered}"
            return f"entries were reused although {covered} differed"
        return name_of(self.cause)

    @property
    def sentence(self) -> str:
        """`this key does not cover tenant: 1 240 hits, 3 tenants`; findings that no request is behind are not hits."""
        if not self.tenants:
            return f"{self.cause_sentence}: {plural(self.findings, 'finding')}"
        return f"{self.cause_sentence}: {plural(self.findings, 'hit')}, {plural(self.tenant_count, 'tenant')}"

    @property
    def touched(self) -> tuple[str, ...]:
        """Tenants on either side, those that were served first."""
        return _distinct((*self.tenants, *self.owners))


def fold_incidents(findings: Iterable[Finding]) -> list[Incident]:
    """The incidents of the open findings among `findings` (one revision each), loudest and then newest first."""
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.status == "open":
            grouped.setdefault(finding.cause_id, []).append(finding)
    folded = [_fold(cause_id, group) for cause_id, group in grouped.items()]
    return sorted(folded, key=lambda incident: (-incident.severity.rank, -incident.last_us, incident.cause_id))


def _fold(cause_id: str, group: list[Finding]) -> Incident:
    group = sorted(group, key=lambda finding: (finding.event_time_us, finding.id))
    loudest = max(group, key=lambda finding: finding.severity.rank)
    requesters = [finding.requester for finding in group if finding.requester is not None]
    creators = [finding.creator for finding in group if finding.creator is not None]
    tenants = _distinct(party.tenant_id for party in requesters)
    owners = _distinct(party.tenant_id for party in creators)
    requests = _distinct(party.request_id for party in requesters)
    keys = tuple(dict.fromkeys((finding.store, finding.key) for finding in group if finding.key))
    return Incident(
        cause_id=cause_id,
        cause=loudest.cause,
        severity=loudest.severity,
        title=loudest.title,
        dimension=loudest.dimension,
        store=loudest.store,
        key_origin=loudest.key_origin,
        findings=len(group),
        requests=len(requests),
        entries=len(keys),
        tokens=sum(finding.reused_tokens for finding in group),
        first_us=group[0].event_time_us,
        last_us=group[-1].event_time_us,
        tenant_count=len({*tenants, *owners}),
        tenants=tenants,
        owners=owners,
        nodes=_distinct(party.node for party in requesters),
        request_ids=requests,
        keys=keys,
        finding_ids=tuple(finding.id for finding in group),
    )


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))
