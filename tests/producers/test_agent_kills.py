"""kill -9 of the engine, of its agent, and of both: what arrives and what is declared missing is what was accepted."""

import random
from pathlib import Path

import pytest

from .agent_chaos import Processes, turmoil
from .reading import decode, read_topic
from .test_kills import account


@pytest.mark.parametrize("seed", range(2))
def test_every_kill_of_engine_or_agent_is_accounted_for(tmp_path: Path, seed: int) -> None:
    away = tmp_path / "away"
    processes = Processes(tmp_path)
    try:
        killed = turmoil(
            processes, 4, random.Random(seed), 0.5,
            away=lambda now: away.touch() if now else away.unlink(missing_ok=True),
        )  # fmt: skip
    finally:
        processes.close()
    found = account(decode((tmp_path / "history.jsonl").read_bytes().splitlines()), processes.lives)
    assert killed["engine"] and killed["agent"]
    assert found.accepted > 300 and found.lost == 0 and processes.left() == []


@pytest.mark.kafka
def test_every_kill_of_engine_or_agent_is_accounted_for_on_a_real_broker(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    topics = request.getfixturevalue("topics")
    processes = Processes(tmp_path, topics.bootstrap)
    try:
        turmoil(processes, 4, random.Random(3), 0.8, away=lambda now: None)
    finally:
        processes.close()
    found = account(decode(value for _, _, value in read_topic(topics)), processes.lives)
    assert found.accepted > 300 and found.lost == 0 and processes.left() == []
