"""Incidents as they grow: the fold of `incidents.py`, one finding revision at a time.

Bounded: of the findings, the oldest are forgotten first; they stay counted, and are taken for the one that is
retracted when a retraction comes whose finding is not known any more.
"""

from collections.abc import Iterator
from sys import intern
from typing import Any

from ..schemas.clocks import plausible_us
from ..schemas.dimensions import Severity
from ..schemas.findings import Finding
from .incidents import Incident

FINDINGS_KEPT = 200_000
NAMES_KEPT = 100_000
"""Distinct keys and tenants of one incident that are told apart."""

_Seen = tuple[int, str, bool, int, tuple[str, ...], str]
"""Revision, incident, counted, rank of the severity, tenants, key."""
_RANKS = {severity.rank: severity for severity in Severity}


class _Group:
    """The counted findings of one root cause."""

    __slots__ = (
        "cause",
        "dimension",
        "example",
        "first_us",
        "forgotten",
        "keys",
        "last_us",
        "ranks",
        "store",
        "tenants",
    )

    def __init__(self, finding: Finding, at_us: int) -> None:
        self.cause, self.dimension, self.store = finding.cause, finding.dimension, finding.store
        self.example = finding.id
        self.first_us = self.last_us = at_us
        self.forgotten = 0
        self.ranks: dict[int, int] = {}
        self.tenants: dict[str, int] = {}
        self.keys: dict[str, int] = {}

    def count(self, rank: int, tenants: tuple[str, ...], key: str, by: int) -> None:
        _count(self.ranks, rank, by)
        for tenant in tenants:
            _count(self.tenants, tenant, by)
        if key:
            _count(self.keys, key, by)


class IncidentBook:
    """Takes revisions in any number, in the order of their topic, some of them twice. `at_least`: what is less severe
    does not count."""

    def __init__(self, at_least: Severity = Severity.INFO, kept: int = FINDINGS_KEPT) -> None:
        self._at_least, self._kept = at_least.rank, kept
        self._seen: dict[str, _Seen] = {}
        self._groups: dict[str, _Group] = {}

    def __iter__(self) -> Iterator[str]:
        """The ids of incidents that stand."""
        return iter(self._groups)

    def __contains__(self, finding_id: str) -> bool:
        """Whether this finding is known."""
        return finding_id in self._seen

    def take(self, finding: Finding, append_us: int = 0) -> bool:
        """Fold one revision, appended to its topic at `append_us` where that is known. False where it changes nothing:
        an old revision, or too little severe before and now."""
        known = self._seen.pop(finding.id, None)
        if known is not None and known[0] >= finding.revision:
            self._seen[finding.id] = known
            return False
        tenants = tuple(
            dict.fromkeys(
                intern(party.tenant_id)
                for party in (finding.creator, finding.requester)
                if party is not None and party.tenant_id
            )
        )
        rank, open_ = finding.severity.rank, finding.status == "open"
        counted = open_ and rank >= self._at_least
        cause_id = intern(finding.cause_id)
        self._seen[finding.id] = (finding.revision, cause_id, counted, rank, tenants, finding.key)
        group = self._groups.get(cause_id)
        if counted:
            at_us = plausible_us(finding.event_time_us, append_us)
            if group is None:
                group = self._groups[cause_id] = _Group(finding, at_us)
            group.count(rank, tenants, finding.key, 1)
            group.first_us = min(group.first_us, at_us)
            group.last_us = max(group.last_us, at_us)
        gone = known is not None and known[2]
        if known is not None and gone:
            self._discount(known[1], known[3], known[4], known[5])
        elif known is None and not open_ and group is not None and group.forgotten:
            group.forgotten -= 1
            gone = True
            self._discount(cause_id, rank, tenants, finding.key)
        self._forget()
        return counted or gone

    def incident(self, cause_id: str) -> Incident | None:
        """What stands of an incident; None for nothing."""
        group = self._groups.get(cause_id)
        if group is None:
            return None
        return Incident(
            cause_id=cause_id, cause=group.cause, dimension=group.dimension, store=group.store,
            severity=_RANKS[max(group.ranks)], findings=sum(group.ranks.values()),
            tenants=tuple(sorted(group.tenants)), keys=len(group.keys), first_us=group.first_us, last_us=group.last_us,
        )  # fmt: skip

    def example(self, cause_id: str) -> str:
        """The id of the finding that an incident began with; empty for none."""
        group = self._groups.get(cause_id)
        return group.example if group is not None else ""

    def close(self, cause_id: str) -> None:
        """An incident is over although its findings stand: what comes from now on begins a new one."""
        if self._groups.pop(cause_id, None) is not None:
            self._seen = {
                finding_id: (*seen[:2], False, *seen[3:]) if seen[1] == cause_id else seen
                for finding_id, seen in self._seen.items()
            }

    def dump(self) -> dict[str, Any]:
        """The exact state, for `load`."""
        groups = {
            cause_id: [g.cause, g.dimension, g.store, g.example, g.first_us, g.last_us, list(g.ranks.items()),
                       dict(g.tenants), dict(g.keys), g.forgotten]
            for cause_id, g in self._groups.items()
        }  # fmt: skip
        return {"seen": list(self._seen.items()), "groups": groups}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `dump`. Raises what indexing something else raises."""
        self._seen = {
            finding_id: (revision, intern(cause_id), counted, rank, tuple(map(intern, tenants)), key)
            for finding_id, (revision, cause_id, counted, rank, tenants, key) in state["seen"]
        }
        for cause_id, (cause, dimension, store, example, first_us, last_us, ranks, tenants, keys, forgotten) in state[
            "groups"
        ].items():
            group = _Group.__new__(_Group)
            group.cause, group.dimension, group.store, group.example = cause, dimension, store, example
            group.first_us, group.last_us = first_us, last_us
            group.forgotten = forgotten
            group.ranks, group.tenants, group.keys = dict(ranks), dict(tenants), dict(keys)
            self._groups[intern(cause_id)] = group

    def _forget(self) -> None:
        while len(self._seen) > self._kept:
            _, cause_id, counted, *_ = self._seen.pop(next(iter(self._seen)))
            if counted and cause_id in self._groups:
                self._groups[cause_id].forgotten += 1

    def _discount(self, cause_id: str, rank: int, tenants: tuple[str, ...], key: str) -> None:
        group = self._groups.get(cause_id)
        if group is None:
            return
        group.count(rank if rank in group.ranks else min(group.ranks), tenants, key, -1)
        if not group.ranks:
            del self._groups[cause_id]


def _count(table: dict[Any, int], name: Any, by: int) -> None:
    count = table.get(name, 0) + by
    if count > 0:
        if name in table or len(table) < NAMES_KEPT:
            table[name] = count
    else:
        table.pop(name, None)
