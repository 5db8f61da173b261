"""The retention guard: what is kept must outlast the entries it is about, those whose TTL nobody had configured too.

The configuration refuses to contradict itself (`schemas/config.py`). This looks at what producers really send: a create
whose TTL or maximum age is longer than the shortest retention divided by `retention.factor` is a finding, one for each
store and each doubling, so that a fleet of such creates says it a few times and not once an entry.
"""

import math
from collections.abc import Iterable

from msgspec.structs import replace

from ..judging.rules import RULES
from ..schemas.config import RetentionConfig
from ..schemas.events import Create, Event
from ..schemas.findings import Finding, cause_id, finding_id
from .intake import Item

CAUSE = "RETENTION_TOO_SHORT"
_DAY_S = 86400.0
_MOST_DOUBLINGS = 20
_MOST_STORES = 1000


def allowed_s(retention: RetentionConfig) -> float:
    """The longest TTL that this retention outlasts by its factor, seconds."""
    return min(retention.events_days, retention.evidence_days) * _DAY_S / retention.factor


class RetentionWatch:
    """Looks at the creates of one sink. Pure."""

    def __init__(self, retention: RetentionConfig, deployment: str) -> None:
        self.allowed_s = allowed_s(retention)
        self.longest_s = 0.0
        """The longest TTL or maximum age seen so far."""
        self._deployment = deployment
        self._raised: set[str] = set()
        self._last: dict[str, int] = {}
        """Finding id -> its last revision, of those known from before."""

    def look(self, items: Iterable[Item]) -> list[Finding]:
        """Findings that these items give rise to and that have not been returned before."""
        found: list[Finding] = []
        for item in items:
            if item.batch is None:
                continue
            for event in item.batch.events:
                body = event.body
                if body.__class__ is not Create:
                    continue
                assert isinstance(body, Create)
                life_s = max(body.ttl_s or 0.0, body.max_age_s or 0.0)
                if life_s > self.longest_s:
                    self.longest_s = life_s
                if life_s > self.allowed_s:
                    found += self._raise(event, life_s)
        return found

    def outdated(self, known: Iterable[Finding]) -> list[Finding]:
        """Retractions of open findings that today's retention answers. What is known is not raised again while it
        stands, and as a later revision after it was retracted: retention may be lowered again."""
        found: list[Finding] = []
        for finding in known:
            self._last[finding.id] = finding.revision
            if finding.status != "open":
                continue
            if _exceeded_s(finding) < self.allowed_s:
                found.append(
                    replace(finding, revision=finding.revision + 1, status="retracted", reason="retention was raised")
                )
                self._last[finding.id] = finding.revision + 1
            else:
                self._raised.add(finding.subject)
        return found

    def _raise(self, event: Event, life_s: float) -> list[Finding]:
        doublings = min(max(math.ceil(math.log2(life_s / self.allowed_s)) - 1, 0), _MOST_DOUBLINGS)
        exceeded_s = math.floor(self.allowed_s * 2**doublings)
        subject = f"retention:{event.store}/{exceeded_s}"
        if subject in self._raised or len(self._raised) >= _MOST_STORES:
            return []
        self._raised.add(subject)
        finding = Finding(
            id=finding_id(subject),
            revision=self._last.get(finding_id(subject), 0) + 1,
            status="open",
            rule=CAUSE,
            cause=CAUSE,
            severity=RULES[CAUSE].severity,
            title=f"entries may live longer than {exceeded_s / _DAY_S:.4g} days; "
            f"what is kept outlasts {self.allowed_s / _DAY_S:.4g} days",
            deployment=self._deployment,
            cause_id=cause_id(self._deployment, event.store, CAUSE, ""),
            subject=subject,
            event_time_us=event.time_us,
            store=event.store,
            kind=event.kind,
            evidence=(event.id,),
        )
        return [finding]


def _exceeded_s(finding: Finding) -> float:
    return float(finding.subject.rpartition("/")[2])
