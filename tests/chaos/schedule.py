"""What happens to whom, and when: a seeded schedule. Pure."""

from collections.abc import Iterator
from random import Random
from typing import Literal

from msgspec import Struct

Act = Literal["kill", "pause", "stop", "restart", "third"]
"""`stop`: SIGTERM, for good as far as its group knows; `restart`: SIGHUP; both are started again. `third`: a third
detector and second workers join, or leave again."""

_ACTS: tuple[tuple[Act, int], ...] = (("kill", 60), ("pause", 18), ("stop", 8), ("restart", 7), ("third", 7))
_TARGETS = {
    "detector-0": 17, "detector-1": 17, "sink-0": 18, "resolver-0": 9, "fleet-0": 12, "notifier-0": 15, "store": 12,
    "broker": 12,
}  # fmt: skip
_LONG_S = (7.0, 12.0)
"""Longer than the session of a worker: the others take over what it had."""


class Disturbance(Struct, frozen=True):
    """After `gap_s` seconds, `act` upon the first of `targets` that is up; what is down or paused stays so `for_s`."""

    gap_s: float
    act: Act
    targets: tuple[str, ...]
    for_s: float


def disturbances(seed: int, gap_s: float) -> Iterator[Disturbance]:
    """Without end; `gap_s` is their mean distance."""
    chance = Random(seed)
    while True:
        act = chance.choices([act for act, _ in _ACTS], [weight for _, weight in _ACTS])[0]
        short = chance.uniform(0.2, 4.0) if act == "pause" else min(chance.expovariate(1.0), 4.0)
        long = chance.uniform(*_LONG_S) if chance.random() < 0.15 else 0.0
        yield Disturbance(
            gap_s=0.2 + min(chance.expovariate(1 / max(gap_s - 0.2, 0.01)), 3 * gap_s),
            act=act,
            targets=_order(chance),
            for_s=max(short, long),
        )


def _order(chance: Random) -> tuple[str, ...]:
    """All targets in a random order, in which the first place follows the weights."""
    return tuple(sorted(_TARGETS, key=lambda name: -(chance.random() ** (1 / _TARGETS[name]))))
