"""How likely a difference of latencies is by chance: an exact test over pairs. Pure, no distribution assumed."""

from collections.abc import Sequence
from itertools import product

LARGEST = 16
"""Pairs counted out exactly; of more, the first ones are used."""


def faster_by_chance(pairs: Sequence[tuple[float, float]]) -> float:
    """The chance that the first of each pair is faster than the second by as much as seen, if both were alike.

    One-sided: sums of differences over every way to swap the two of each pair. With n pairs it cannot fall below
    1 / 2**n, so fewer than five pairs never show anything at one in twenty.
    """
    differences = [slow - fast for fast, slow in pairs[:LARGEST]]
    if not differences:
        return 1.0
    seen = sum(differences)
    total = as_much = 0
    for signs in product((1, -1), repeat=len(differences)):
        total += 1
        as_much += sum(sign * one for sign, one in zip(signs, differences, strict=True)) >= seen - 1e-12
    return as_much / total


def median(values: Sequence[float]) -> float:
    """The middle value, 0 for none."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
