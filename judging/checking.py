"""Active checks: what failed is judged against the ledger, and checks that come to no result are counted."""

from bisect import insort
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..schemas.dimensions import Severity
from ..schemas.events import Check, Event
from ..schemas.findings import Finding, Party, finding_id
from .freezing import split
from .interning import NOBODY
from .ledger.home import Held, Home
from .ledger.rows import Row
from .rules.checks import CHECK_RULES, CheckCase

if TYPE_CHECKING:
    from .trial import Trial

RUNS_KEPT = 4_096
_KEPT = 4
"""Times as many as make a finding: a result that comes late ends only those before it."""
Place = tuple[str, str, str]
"""Home, store and kind of a check."""


class Run(Struct, gc=False):
    """Checks of one kind without a result since the last one that had one, by their order in the home."""

    concluded: int = 0
    open: list[tuple[int, int, str]] = []
    """Order, time and id of each."""


class Checks:
    """Every check of one partition."""

    def __init__(self, trial: "Trial") -> None:
        self._trial = trial
        self._enough = trial.context.settings.inconclusive_threshold
        self.runs: dict[Place, Run] = {}

    def take(self, home: Home, held: Held, late: bool) -> None:
        """One check event."""
        check = held.event.body
        assert isinstance(check, Check)
        if check.check not in CHECK_RULES:
            return
        self._count(home, held, check)
        if check.result != "fail":
            return
        trial = self._trial
        trial.judge(home, held, "")
        trial.settle(home, home.hold(held) if trial.may_change(home, held) else (held,))

    def _count(self, home: Home, held: Held, check: Check) -> None:
        place = (home.name, held.event.store, check.check)
        run = self.runs.setdefault(place, Run())
        if held.order < run.concluded:
            return
        if check.result == "inconclusive":
            insort(run.open, (held.order, held.event.time_us, held.event.id))
            del run.open[_KEPT * self._enough :]
        else:
            run.concluded = held.order
            run.open = [one for one in run.open if one[0] > run.concluded]
        self._state(place, run)
        while len(self.runs) > RUNS_KEPT:
            del self.runs[next(iter(self.runs))]

    def _state(self, place: Place, run: Run) -> None:
        home, store, kind = place
        subject = f"checks:{home}/{store}/{kind}"
        revisions = self._trial.revisions
        if len(run.open) < self._enough:
            revisions.put(finding_id(subject), None, "a check came to a result")
            return
        finding = self._trial.findings.about(
            subject,
            "CHECK_INCONCLUSIVE",
            Severity.LOW,
            f"{self._enough} {kind.replace('_', ' ')} checks in a row came to no result",
            time_us=run.open[0][1],
            store=store,
            home=home,
            evidence=(event_id for _, _, event_id in run.open[: self._enough][:8]),
        )
        revisions.put(finding.id, finding, "another one came to no result")

    def freeze(self) -> list[Any]:
        """What a snapshot keeps of the counts."""
        return [
            [*place, split(run.concluded), [[*split(order), *rest] for order, *rest in run.open]]
            for place, run in self.runs.items()
        ]

    def restore(self, packed: list[Any]) -> None:
        """The counts of a snapshot."""
        for home, store, kind, (last_high, last_low), opened in packed:
            orders = [(high << 64 | low, time_us, event_id) for high, low, time_us, event_id in opened]
            self.runs[home, store, kind] = Run(last_high << 64 | last_low, orders)


def judged(trial: "Trial", home: Home, held: Held, check: Check, row: Row | None) -> Finding:
    """The finding about a failed check and the instance at its address."""
    event, context = held.event, trial.context
    comparison = context.comparator.compare(row or NOBODY, held.who, event.kind, "exact")
    case = CheckCase(
        event=event, check=check, append_us=held.append_us, who=held.who, row=row, comparison=comparison,
        context=context,
    )  # fmt: skip
    complete = not (event.key and home.missing(event.tier, held.order))
    verdict = CHECK_RULES[check.check](case)
    finding = trial.findings.about_event(
        event, verdict, held.who, row, complete=complete, reused=check.reused_tokens or 0
    )
    return _with_parties(finding, event, check)


def _with_parties(finding: Finding, event: Event, check: Check) -> Finding:
    """A canary knows whose answer it was and whose marker it shows, whatever the ledger knows."""
    if check.check != "canary":
        return finding
    asked, made = finding.requester, finding.creator
    if asked is not None and not asked.tenant_id and check.expected:
        asked = msgspec.structs.replace(asked, tenant_id=check.expected)
    if check.observed and (made is None or made.tenant_id != check.observed):
        made = Party(tenant_id=check.observed)
    return msgspec.structs.replace(finding, requester=asked, creator=made)
