"""A whole run: a history of a given length, faults at a given rate, and the answer key."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from random import Random

from ..schemas.events import Event
from ..schemas.facts import Fact
from ..schemas.findings import Finding
from .delivery import DeliverySpec, Sent, deliver
from .faults import FAULTS
from .fleet import Fleet, FleetSpec
from .injection import Expected

WARM_UP = 0.05
"""Share of the history that stays free of faults, so that there is something to befall."""


@dataclass(slots=True)
class Run:
    """One deterministic run. Iterate `sent` to the end, then read `answers`."""

    seed: int
    events: int
    faults: int = 0
    fleet: FleetSpec = field(default_factory=FleetSpec)
    delivery: DeliverySpec = field(default_factory=DeliverySpec)
    answers: list[Expected] = field(default_factory=list)

    def history(self) -> Iterator[Event | Fact]:
        """Events and facts as they happen; answers are gathered on the way."""
        fleet = Fleet(self.seed, self.fleet)
        names = sorted(FAULTS)
        Random(self.seed).shuffle(names)
        order, made = cycle(names), 0
        start = int(self.events * WARM_UP)
        every = max(1, (self.events - start) // (self.faults + 1)) if self.faults else 0
        pending, subjects = next(order), set[str]()
        for item in fleet.begin():
            made += isinstance(item, Event)
            yield item
        while made < self.events:
            for item in fleet.step():
                made += isinstance(item, Event)
                yield item
            if len(self.answers) < self.faults and made >= start + every * (len(self.answers) + 1):
                injected = FAULTS[pending](fleet)
                if injected is None or injected.expected.subject in subjects:
                    pending = next(order)
                    continue
                for item in injected.events:
                    made += isinstance(item, Event)
                    yield item
                self.answers.append(injected.expected)
                subjects.add(injected.expected.subject)
                pending = next(order)

    def sent(self) -> Iterator[Sent]:
        """The history as it reaches the log."""
        self.answers.clear()
        return deliver(self.history(), Random(self.seed + 1), self.delivery)


@dataclass(slots=True)
class Score:
    """Findings against the answer key. `misnamed`: the right event, another cause."""

    found: list[Expected] = field(default_factory=list)
    missed: list[Expected] = field(default_factory=list)
    misnamed: list[tuple[Expected, str]] = field(default_factory=list)
    false_alarms: list[Finding] = field(default_factory=list)


def score(answers: list[Expected], findings: list[Finding]) -> Score:
    """Each answer is found once, by subject and cause; an open finding about anything else is a false alarm."""
    open_by_subject = {finding.subject: finding for finding in findings if finding.status == "open"}
    result = Score()
    for expected in answers:
        finding = open_by_subject.pop(expected.subject, None)
        if finding is None:
            result.missed.append(expected)
        elif finding.cause != expected.cause:
            result.misnamed.append((expected, finding.cause))
        else:
            result.found.append(expected)
    result.false_alarms.extend(open_by_subject.values())
    return result
