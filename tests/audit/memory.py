"""An archive over events and findings in memory: what the console's tests read from."""

from collections.abc import Sequence

from kvtrail.audit.archive import Health, NothingFound, Wanted
from kvtrail.audit.history import History, Question, build_history, latest_revisions
from kvtrail.audit.incidents import Incident, fold_incidents
from kvtrail.schemas.errors import StoreError
from kvtrail.schemas.events import Event
from kvtrail.schemas.findings import Finding


class MemoryArchive:
    """`failing`: raised by every method instead of an answer."""

    def __init__(self, events: Sequence[Event], findings: Sequence[Finding]) -> None:
        self.events = list(events)
        self.known = latest_revisions(findings)
        self.failing: StoreError | None = None
        self.health_told = Health(events=len(events))

    def look_up(self, text: str) -> Question:
        self.check()
        if any(event.request_id == text for event in self.events):
            return Question(kind="request", value=text)
        if any(event.key == text for event in self.events):
            return Question(kind="key", value=text)
        raise NothingFound("nothing of that name was found.", remedy="Look again.")

    def investigate(self, question: Question) -> History:
        self.check()
        history = build_history(question, self.events, self.known)
        if not history.rows and not history.findings:
            raise NothingFound("no event carries this id.", field=question.kind, remedy="Look again.")
        return history

    def findings(self, wanted: Wanted) -> list[Finding]:
        self.check()
        return [
            finding
            for finding in self.known
            if wanted.status in ("", finding.status)
            and wanted.cause in ("", finding.cause)
            and wanted.cause_id in ("", finding.cause_id)
            and finding.severity.rank >= wanted.severity.rank
            and finding.event_time_us >= wanted.since_us
        ][: wanted.limit]

    def incidents(self, wanted: Wanted) -> list[Incident]:
        return fold_incidents(self.findings(wanted))

    def health(self) -> Health:
        self.check()
        return self.health_told

    def check(self) -> None:
        if self.failing is not None:
            raise self.failing
