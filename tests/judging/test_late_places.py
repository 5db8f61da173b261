"""A create that comes late with its place: what it can change is judged again, and only that."""

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.ledger.home import Held, Home
from kvtrail.judging.offline import as_batch
from kvtrail.judging.trial import Trial
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.events import Event

from .cases import scenario
from .random_histories import odd_history


def verdicts(seed: int) -> dict[str, tuple[str, str, str]]:
    """Cause, status and severity of every finding about an odd history."""
    judge = Judge(JudgingConfig(), "d", FactBook())
    batches = enumerate(odd_history(seed, 120, odd=0.35))
    final = {found.id: found for at, batch in batches for found in judge.batch(batch, 1_800_000_000_000_000 + at)}
    return {each.id: (each.cause, each.status, each.severity) for each in final.values()}


@pytest.mark.parametrize("seed", range(150))
def test_judging_only_what_it_can_change_finds_what_judging_all_again_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdicts(seed)
    monkeypatch.setattr(Home, "held_of_place", lambda home, row: home.all_held())
    assert verdicts(seed) == found


def judgements(history: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How often something was judged, and how many events there were."""
    judged: list[Held] = []
    judge = Trial.judge

    def counting(trial: Trial, home: Home, held: Held, reason: str) -> None:
        judged.append(held)
        judge(trial, home, held, reason)

    monkeypatch.setattr(Trial, "judge", counting)
    judges = Judge(JudgingConfig(), "d", FactBook())
    events = [record for _, record in scenario(history).steps if isinstance(record, Event)]
    for at, event in enumerate(events):
        judges.batch(as_batch(event), 1_800_000_000_000_000 + at)
    return len(judged), len(events)


def test_what_waits_behind_a_gap_is_not_judged_again_for_every_late_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane whose gap stays open holds thousands of hits, and each late envelope hundreds of creates."""
    lines = [
        "n1:1 create K acme {loc=b0#g1}",
        *(f"n1:{seq} hit K acme" for seq in range(60, 160)),
        *(f"n1:{seq} create L{seq} acme {{loc=b{seq}#g1}}" for seq in range(10, 40)),
    ]
    judged, events = judgements("\n".join(lines), monkeypatch)
    assert judged <= events
