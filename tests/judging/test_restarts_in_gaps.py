"""A node that restarts while something is missing: what begins now stands behind all that is known."""

from typing import Any

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.ledger.home import Held, Home
from kvtrail.judging.offline import as_batch
from kvtrail.judging.trial import Trial
from kvtrail.judging.upheaval import Upheaval
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.events import Event

from .cases import scenario
from .test_late_places import final


@pytest.mark.parametrize("seed", range(150))
def test_judging_nothing_again_finds_what_judging_all_again_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = final(seed)
    restart: Any = vars(Upheaval)["_restart"]

    def always(upheaval: Upheaval, home: Home, *given: Any, late: bool) -> None:
        restart(upheaval, home, *given, late=late or bool(home.gapped))

    monkeypatch.setattr(Upheaval, "_restart", always)
    assert {each.id: (each.cause, each.status, each.severity) for each in final(seed).values()} == {
        each.id: (each.cause, each.status, each.severity) for each in found.values()
    }


def test_what_waits_behind_a_gap_is_not_judged_again_for_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home with an open gap holds thousands of hits; in a fleet that rolls out a build each node restarts."""
    lines = [
        "n1:1 create K acme",
        *(f"n1:{seq} hit K acme" for seq in range(3, 103)),
        *(f"n1/i{number}:1 hit K acme" for number in range(2, 12)),
    ]
    judged: list[Held] = []
    judge = Trial.judge

    def counting(trial: Trial, home: Home, held: Held, reason: str) -> None:
        judged.append(held)
        judge(trial, home, held, reason)

    monkeypatch.setattr(Trial, "judge", counting)
    judges = Judge(JudgingConfig(), "d", FactBook())
    events = [record for _, record in scenario("\n".join(lines)).steps if isinstance(record, Event)]
    for at, event in enumerate(events):
        judges.batch(as_batch(event), 1_800_000_000_000_000 + at)
    assert len(judged) <= len(events)
