"""A node that restarts while something is missing: what begins now stands behind all that is known."""

from typing import Any

import pytest
from kvtrail.judging.ledger.home import Home
from kvtrail.judging.upheaval import Upheaval

from .test_late_places import judgements, verdicts


@pytest.mark.parametrize("seed", range(150))
def test_judging_nothing_again_finds_what_judging_all_again_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdicts(seed)
    restart: Any = vars(Upheaval)["_restart"]

    def always(upheaval: Upheaval, home: Home, *given: Any, late: bool) -> None:
        restart(upheaval, home, *given, late=late or bool(home.gapped))

    monkeypatch.setattr(Upheaval, "_restart", always)
    assert verdicts(seed) == found


def test_what_waits_behind_a_gap_is_not_judged_again_for_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home with an open gap holds thousands of hits; in a fleet that rolls out a build each node restarts."""
    lines = [
        "n1:1 create K acme",
        *(f"n1:{seq} hit K acme" for seq in range(3, 103)),
        *(f"n1/i{number}:1 hit K acme" for number in range(2, 12)),
    ]
    judged, events = judgements("\n".join(lines), monkeypatch)
    assert judged <= events
