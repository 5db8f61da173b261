"""A recorded history through the same core, without broker or store."""

from collections.abc import Iterable

from ..schemas.config import JudgingConfig
from ..schemas.envelope import Batch
from ..schemas.events import Event
from ..schemas.facts import Fact
from ..schemas.findings import Finding
from .factbook import FactBook
from .fleet import FleetJudge
from .judge import Judge


class History:
    """Judges records one by one, in append order; a fact applies to what follows it."""

    def __init__(self, settings: JudgingConfig | None = None, deployment: str = "default") -> None:
        self.facts = FactBook()
        settings = settings or JudgingConfig()
        self.judge = Judge(settings, deployment, self.facts, observe=True)
        self.fleet = FleetJudge(settings, deployment)
        self.final: dict[str, Finding] = {}
        self._append_us = 0

    def take(self, record: Fact | Event | Batch, append_us: int | None = None) -> list[Finding]:
        """Judge one record. New finding revisions. Without `append_us`, records are appended 1 us apart."""
        self._append_us = self._append_us + 1 if append_us is None else append_us
        if isinstance(record, Fact):
            self.facts.add(record, self._append_us)
            return []
        found = self.judge.batch(as_batch(record) if isinstance(record, Event) else record, self._append_us)
        observations = self.judge.observations
        assert observations is not None
        for observation in observations:
            found += self.fleet.take(observation)
        observations.clear()
        return self._note(found)

    def finish(self) -> list[Finding]:
        """The history has ended. What only its end can show."""
        return self._note(self.fleet.finish())

    def _note(self, found: list[Finding]) -> list[Finding]:
        for finding in found:
            self.final[finding.id] = finding
        return found


def as_batch(event: Event) -> Batch:
    """An event as the record that holds only it."""
    return Batch(
        node=event.node,
        incarnation=event.incarnation,
        home=event.home,
        first=event.seq,
        last=event.seq,
        events=[event],
    )


def judge_history(
    records: Iterable[Fact | Event | Batch],
    settings: JudgingConfig | None = None,
    deployment: str = "default",
    *,
    retracted: bool = False,
) -> list[Finding]:
    """Final revisions of every finding that stands at the end (with `retracted`, of the others too), in the order in
    which their subjects first appeared. `records` stand in append order: a fact applies to what follows it.
    """
    history = History(settings, deployment)
    for record in records:
        history.take(record)
    history.finish()
    return [finding for finding in history.final.values() if retracted or finding.status == "open"]
