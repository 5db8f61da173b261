"""What the publisher's benchmark says of its turns."""

import random

import pytest
from kvtrail.benchmarks.publisher_busy import trimmed
from kvtrail.benchmarks.publisher_calls import PATTERNS, measure


def test_a_loss_is_found_within_its_interval_whatever_a_few_turns_did() -> None:
    chance = random.Random(3)
    differences = [0.01 + chance.gauss(0, 0.02) for _ in range(200)]
    clean = trimmed(differences)
    differences[::20] = [0.9] * 10  # another process had the processor
    found = trimmed(differences)
    assert found.low < 0.01 < found.high
    assert found.value == pytest.approx(clean.value, abs=0.004)
    assert 0.002 < found.high - found.low < 0.02


def test_turns_that_are_alike_show_no_loss() -> None:
    chance = random.Random(4)
    found = trimmed([chance.gauss(0, 0.02) for _ in range(60)])
    assert found.low < 0 < found.high


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_call_of_every_thread_is_counted(pattern: str) -> None:
    made: list[int] = []
    found = measure("case", made.append, threads=2, rate=2_000, seconds=0.03, pattern=pattern)
    assert len(found.times) == len(made) == 2 * 3 * 10
    assert found.times == sorted(found.times)
    assert found.pattern == pattern
