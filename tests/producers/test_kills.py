"""kill -9 at random moments: what arrives and what is declared missing is what had been accepted, in order."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from kvtrail.schemas.envelope import Batch
from kvtrail.schemas.events import Check

from .reading import decode, first_arrivals, gaps, read_topic, runs
from .victim import Calls


@dataclass
class Life:
    """One process: its incarnation, and how many of its calls had begun and returned when it ended."""

    incarnation: str
    begun: int
    returned: int


def live(folder: Path, number: int, *, calls: int, after_s: float | None, bootstrap: str = "") -> Life:
    """Run a victim and kill it after a while, or (None) let it come to its end."""
    page = folder / f"calls-{number}"
    victim = subprocess.Popen(
        [sys.executable, "-m", "kvtrail.tests.producers.victim", str(folder), str(page), str(calls), bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert victim.stdin is not None and victim.stdout is not None
    with victim:
        line = victim.stdout.readline()
        if after_s is None:
            victim.stdin.close()
            assert victim.wait(90) == 0
        else:
            time.sleep(after_s)  # when to kill it: nothing is waited for
            victim.send_signal(signal.SIGKILL)
            victim.wait(10)
    counted = Calls(page)
    return Life(json.loads(line)["incarnation"], counted.total(0), counted.total(1))


@dataclass
class Account:
    """Of all lives together."""

    accepted: int = 0
    received: int = 0
    missing: int = 0
    lost: int = 0


def account(batches: list[Batch], lives: Iterable[Life]) -> Account:
    """Compare what arrived with what was accepted. Order is checked lane by lane, thread by thread."""
    total = Account()
    arrived = first_arrivals(batches)
    by_lane = runs_once(batches)
    for life in lives:
        mine = [event for event in arrived if event.incarnation == life.incarnation]
        received = sum(bool(event.request_id) for event in mine)
        missing = sum(gaps(found) for (name, _), found in by_lane.items() if name == life.incarnation)
        # What was lost may include events of the publisher's own: its node_start, and a heartbeat a lane.
        own = sum(name == life.incarnation for name, _ in by_lane) + 1
        assert life.returned <= received + missing <= life.begun + own, (life, received, missing)
        for home in {event.home for event in mine}:
            lane = [event for event in mine if event.home == home]
            assert [event.seq for event in lane] == sorted(event.seq for event in lane)
            for thread in range(3):
                made = [int(e.request_id[2:]) for e in lane if e.request_id.startswith(f"{thread}:")]
                assert made == sorted(made)
            assert not [e for e in lane[:-1] if isinstance(e.body, Check) and "process ended" in e.body.detail]
        total.accepted += life.returned
        total.received += received
        total.missing += missing
        total.lost += max(0, life.returned - received - missing)
    return total


def runs_once(batches: list[Batch]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """The runs without those that arrived again."""
    return {lane: list(dict.fromkeys(found)) for lane, found in runs(batches).items()}


@pytest.mark.parametrize("seed", range(4))
def test_every_kill_is_accounted_for(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    away = tmp_path / "away"
    lives = []
    for number in range(3):
        away.touch() if chance.random() < 0.5 else away.unlink(missing_ok=True)
        lives.append(live(tmp_path, number, calls=1_000_000, after_s=chance.uniform(0.0, 0.6)))
    away.unlink(missing_ok=True)
    lives.append(live(tmp_path, 3, calls=100, after_s=None))
    found = account(decode((tmp_path / "history.jsonl").read_bytes().splitlines()), lives)
    assert found.accepted > 300 and found.lost == 0
    assert list((tmp_path / "spool").glob("*/*")) == [], "nothing is left to be said"


@pytest.mark.kafka
def test_every_kill_is_accounted_for_on_a_real_broker(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    topics = request.getfixturevalue("topics")
    chance = random.Random(1)
    lives = [
        live(tmp_path, number, calls=1_000_000, after_s=chance.uniform(0.2, 1.0), bootstrap=topics.bootstrap)
        for number in range(3)
    ]
    lives.append(live(tmp_path, 3, calls=100, after_s=None, bootstrap=topics.bootstrap))
    found = account(decode(value for _, _, value in read_topic(topics)), lives)
    assert found.accepted > 300 and found.lost == 0
