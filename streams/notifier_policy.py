"""What is told of incidents, and when. Pure: time is given.

One root cause pages once: its first finding opens it, a louder finding, ten times as many, or another tenant are told
as growth, and it is over when nothing of it stands any more, or when nothing new has come for long.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from ..judging.incident_book import IncidentBook
from ..judging.incidents import Incident
from ..schemas.clocks import plausible_us
from ..schemas.findings import Finding
from ..schemas.identity import titles
from ..schemas.notifications import PIPELINE_SILENT, TENANTS_NAMED, Kind, Notification, notification_id
from ..schemas.paging import NotifyConfig

GROWTH = 10
"""How many times as many findings are worth telling."""
TOLD_KEPT = 10_000
_notifications = msgspec.json.Decoder(dict[str, Notification])


class Pager:
    """`told` is the last notification of each incident: what whoever was told knows. `since_us`: what was found before
    it is history."""

    def __init__(self, settings: NotifyConfig, deployment: str, since_us: int = 0) -> None:
        self.settings, self.deployment, self.since_us = settings, deployment, since_us
        self.book = IncidentBook(settings.min_severity)
        self.told: dict[str, Notification] = {}
        self.historical = 0
        self._changed: dict[str, int] = {}
        """Incident -> when it began to differ from what was told."""
        self._heard: dict[str, int] = {}
        """Incident that stands -> when its newest finding was appended, or, not known any more, when it was told."""

    def take(self, finding: Finding, append_us: int, now_us: int) -> None:
        """Fold one revision, appended to its topic at `append_us`."""
        if finding.id not in self.book and self._is_history(finding, append_us):
            self.historical += 1
            return
        if self.book.take(finding, append_us):
            self._changed.setdefault(finding.cause_id, now_us)
            self._heard[finding.cause_id] = max(append_us, self._heard.get(finding.cause_id, 0))

    def decide(self, now_us: int) -> list[Notification]:
        """What is to be told now."""
        decided = [
            notification
            for cause_id, since_us in list(self._changed.items())
            if (notification := self._changes(cause_id, since_us, now_us)) is not None
        ]
        return decided + list(self._over(now_us))

    def know(self, notification: Notification) -> None:
        """This has been decided, here or in an earlier life. Where the findings behind it are history by now, it was
        last heard of then."""
        known = self.told.pop(notification.cause_id, None)
        self.told[notification.cause_id] = max(
            (one for one in (known, notification) if one is not None), key=lambda one: one.order
        )
        self._hear_of(self.told[notification.cause_id])
        for cause_id in [cause_id for cause_id, one in self.told.items() if not one.is_open][:-TOLD_KEPT]:
            del self.told[cause_id]

    def tell(self, kind: Kind, incident: Incident, reason: str, now_us: int, title: str = "") -> Notification:
        """The next notification of an incident; it counts as told from here on."""
        known = self.told.get(incident.cause_id)
        begins = known is None or not known.is_open
        episode = (known.episode if known is not None else 0) + begins
        revision = 1 if known is None or begins else known.revision + 1
        louder = known is not None and not begins and known.severity is not incident.severity
        notification = Notification(
            id=notification_id(self.deployment, incident.cause_id, episode, revision), kind=kind,
            deployment=self.deployment, cause_id=incident.cause_id, episode=episode, revision=revision, at_us=now_us,
            since_us=now_us if known is None or begins else known.since_us, cause=incident.cause,
            severity=incident.severity, title=title or _title(incident), reason=reason, dimension=incident.dimension,
            store=incident.store, findings=incident.findings, tenants=incident.tenants[:TENANTS_NAMED],
            tenant_count=len(incident.tenants), keys=incident.keys, first_us=incident.first_us,
            last_us=incident.last_us, example=self.book.example(incident.cause_id),
            previous_severity=known.severity if known is not None and louder else None,
        )  # fmt: skip
        self.know(notification)
        return notification

    def dump(self) -> dict[str, Any]:
        """The exact state, for `load`."""
        return {
            "book": self.book.dump(), "told": msgspec.json.encode(self.told), "changed": dict(self._changed),
            "heard": dict(self._heard), "historical": self.historical, "since_us": self.since_us,
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `dump`."""
        self.book.load(state["book"])
        self.told = _notifications.decode(state["told"])
        self._changed, self._heard = dict(state["changed"]), dict(state["heard"])
        self.historical, self.since_us = state["historical"], state["since_us"]

    def _is_history(self, finding: Finding, append_us: int) -> bool:
        """What was found before anybody was to be told, or about an event that was old when it came. Findings about
        more than an event carry the time at which their subject began, which says nothing about that."""
        if append_us < self.since_us:
            return True
        parties = (finding.requester, finding.creator)
        about_event = any(party is not None and party.event_id == finding.subject for party in parties)
        return (
            about_event and append_us - plausible_us(finding.event_time_us, append_us) > self.settings.max_age_s * 1e6
        )

    def _changes(self, cause_id: str, since_us: int, now_us: int) -> Notification | None:
        incident, known = self.book.incident(cause_id), self.told.get(cause_id)
        if known is None or not known.is_open:
            if incident is None:
                self._settle(cause_id, forget=True)
                return None
            if now_us - since_us < self.settings.group_wait_s * 1e6:
                return None
            self._settle(cause_id)
            return self.tell("opened", incident, "found", now_us)
        if incident is None:
            self._settle(cause_id, forget=True)
            return self.tell("resolved", _as_told(known), "every finding was retracted", now_us)
        reason = self._growth(known, incident)
        if not reason:
            self._settle(cause_id)
            return None
        urgent = incident.severity.rank > known.severity.rank
        if not urgent and now_us - known.at_us < self.settings.growth_interval_s * 1e6:
            return None
        self._settle(cause_id)
        return self.tell("grown", incident, reason, now_us)

    def _growth(self, known: Notification, incident: Incident) -> str:
        if incident.severity.rank > known.severity.rank:
            return f"it is {incident.severity} now"
        if incident.findings >= GROWTH * max(known.findings, 1):
            return f"{incident.findings} findings instead of {known.findings}"
        if len(incident.tenants) > known.tenant_count:
            return f"{len(incident.tenants)} tenants instead of {known.tenant_count}"
        return ""

    def _over(self, now_us: int) -> Iterable[Notification]:
        if not self.settings.quiet_s:
            return
        for cause_id, heard_us in list(self._heard.items()):
            incident, known = self.book.incident(cause_id), self.told.get(cause_id)
            if known is None or not known.is_open:
                continue
            if now_us - heard_us >= self.settings.quiet_s * 1e6:
                self.book.close(cause_id)
                self._settle(cause_id, forget=True)
                reason = f"nothing new for {self.settings.quiet_s:g} s"
                yield self.tell("resolved", incident or _as_told(known), reason, now_us)

    def _hear_of(self, told: Notification) -> None:
        if not told.is_open:
            self._heard.pop(told.cause_id, None)
        elif told.cause != PIPELINE_SILENT and self.book.incident(told.cause_id) is None:
            self._heard[told.cause_id] = max(told.at_us, self._heard.get(told.cause_id, 0))

    def _settle(self, cause_id: str, *, forget: bool = False) -> None:
        self._changed.pop(cause_id, None)
        if forget:
            self._heard.pop(cause_id, None)


def _title(incident: Incident) -> str:
    """`CROSS_TENANT_REUSE in kv: the key does not cover tenant, 12 findings, 3 tenants`."""
    where = f" in {incident.store}" if incident.store else ""
    covers = f"the key does not cover {titles((incident.dimension,))}, " if incident.dimension else ""
    counts = [_plural(incident.findings, "finding")] if incident.findings else ["over"]
    counts += [_plural(len(incident.tenants), "tenant")] if incident.tenants else []
    return f"{incident.cause}{where}: {covers}{', '.join(counts)}"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count != 1 else ''}"


def _as_told(known: Notification) -> Incident:
    return Incident(
        cause_id=known.cause_id, cause=known.cause, dimension=known.dimension, store=known.store,
        severity=known.severity, findings=0, tenants=(), keys=0, first_us=known.first_us, last_us=known.last_us,
    )  # fmt: skip
