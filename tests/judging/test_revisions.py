"""A finding is numbered on, whatever was forgotten meanwhile: a lower number would be taken for an old revision."""

import pytest
from kvtrail.judging import revisions
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.ledger import home
from kvtrail.judging.offline import History, judge_history
from kvtrail.judging.revisions import Revisions
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.findings import Finding
from msgspec.structs import replace

from .cases import scenario
from .random_histories import odd_history


@pytest.mark.parametrize("horizon_s", [20.0, 86_400.0])
@pytest.mark.parametrize(("held", "standing"), [(16_384, 200_000), (16_384, 3), (3, 200_000), (1, 1)])
@pytest.mark.parametrize("restored", [False, True])
def test_every_revision_is_later_than_what_was_said_before(
    held: int, standing: int, horizon_s: float, restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds 86 and 248 settled a create by its hit while it was held; the bounds push out what is judged again."""
    monkeypatch.setattr(home, "HELD_KEPT", held)
    monkeypatch.setattr(revisions, "STANDING_KEPT", standing)
    settings = JudgingConfig(horizon_s=horizon_s)
    for seed in (*range(12), 86, 186, 248):
        judge, said = Judge(settings, "d", FactBook()), dict[str, int]()
        for number, batch in enumerate(odd_history(seed, lines=150, odd=0.1)):
            if restored and number % 10 == 0:
                judge = Judge.load(judge.dump(), settings, "d", judge.facts)
            for finding in judge.batch(batch, max((event.time_us for event in batch.events), default=1)):
                assert finding.revision > said.get(finding.id, 0), (seed, finding)
                assert finding.id in said or finding.revision == 1
                said[finding.id] = finding.revision


def _findings() -> list[Finding]:
    lines = "n1:1 create K acme\nn1:3 hit K acme\nn1:4 hit U acme\nn1:5 hit V acme\nn1:6 hit W acme"
    return judge_history([record for _, record in scenario(lines).steps])


def test_what_there_was_no_room_for_is_numbered_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "STANDING_KEPT", 1)
    kept = Revisions()
    _, one, two, _ = _findings()
    for finding in (one, replace(one, title="another"), two, replace(one, title="a third")):
        kept.put(finding.id, finding, "told later")
    assert [each.revision for each in kept.drain() if each.id == one.id] == [1, 3]
    assert two.id in kept and two.id not in kept.standing
    kept.settle(two.id)
    assert two.id not in kept, "what is final leaves nothing behind"


def test_an_open_gap_is_not_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay reported when it is filled: nobody could tell any more what had been said."""
    monkeypatch.setattr(revisions, "STANDING_KEPT", 2)
    lines = "n1:1 create K acme\nn1:3 hit K acme\n" + "\n".join(f"n2:{n} hit U{n} acme" for n in range(1, 6))
    history = History()
    for _, record in scenario(f"{lines}\nn1:2 commit K -").steps:
        history.take(record)
    [gap] = [one for one in history.final.values() if one.cause == "STREAM_GAP"]
    assert (gap.revision, gap.status) == (2, "retracted")
