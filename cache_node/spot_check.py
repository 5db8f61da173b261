"""What a spot check is: which hits, which positions, how much error is none, and what the errors prove.

Pure: no model, no clock, no store. `spot_checker` runs it, `recomputing` measures.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .recomputing import Errors

SIDES = ("keys", "values")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest relative error that a right entry shows: `first` at any position of the first layer, `deep` at any
    sampled position of any other layer."""

    first: float
    deep: float


TOLERANCES: Mapping[str, Tolerance] = {
    "float32": Tolerance(first=1e-4, deep=1e-3),
    "bfloat16": Tolerance(first=8e-3, deep=0.2),
}
"""dtype in which the model computes and its entries are stored -> tolerance, from benchmarks/RESULTS.md, "Spot check".
Well above what other orders of summation cost, well below what another token costs."""


@dataclass(frozen=True, slots=True)
class SpotCheckSettings:
    """`share` of the hits that are checked, chosen by request id; `positions` of each at which every layer is computed
    again; `waiting` checks at most, since each holds its entry in memory."""

    share: float = 0.01
    positions: int = 4
    waiting: int = 2
    tolerances: Mapping[str, Tolerance] = field(default_factory=lambda: TOLERANCES)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a check found, as its event tells it. `observed` and `expected`: the error that decided and its tolerance.
    `first_divergence`: the first position whose token is another one."""

    result: Literal["pass", "fail", "inconclusive"]
    observed: str = ""
    expected: str = ""
    detail: str = ""
    first_divergence: int | None = None


def chosen(request_id: str, share: float) -> bool:
    """Whether this request's hit is one of the `share` to check: the same everywhere and always."""
    return int.from_bytes(_digest(request_id)[:8]) < share * 2**64


def positions_of(request_id: str, tokens: int, count: int) -> list[int]:
    """At most `count` positions among `tokens`, in order: the last, which rests on all others, and some that follow
    from the request id, so that the same entry is looked at elsewhere the next time."""
    last = tokens - 1
    some = random.Random(_digest(request_id)).sample(range(last), min(count - 1, last)) if tokens else []
    return sorted([*some, last]) if tokens else []


def conclude(errors: Errors, positions: Sequence[int], tolerance: Tolerance) -> Conclusion:
    """What the errors prove. The first layer speaks first: a wrong token makes every later layer wrong."""
    wrong = [_beyond(side, tolerance.first) for side in errors.first]
    if wrong[0] or wrong[1]:
        return _other_input(errors, wrong, tolerance)
    deep = [(error, layer, side) for side in (0, 1) for layer, error in enumerate(errors.deep[side], 1)]
    worst, layer, side = max(deep, default=(0.0, 0, 0))
    if not worst <= tolerance.deep:
        first = min(layer for error, layer, _ in deep if not error <= tolerance.deep)
        return Conclusion(
            "fail",
            f"{worst:.3g}",
            f"at most {tolerance.deep:g}",
            f"tokens agree; {SIDES[side]} of layer {layer} do not, from layer {first} on: other weights, an adapter, "
            "or damaged tensors",
        )
    return Conclusion("pass", f"{worst:.3g}", f"at most {tolerance.deep:g}", f"{len(positions)} positions")


def wrong_length(stored: int, asked: int) -> Conclusion:
    """The entry covers another number of tokens than the requester's prefix has."""
    return Conclusion("fail", str(stored), str(asked), "the entry covers another number of tokens", min(stored, asked))


def _other_input(errors: Errors, wrong: list[list[int]], tolerance: Tolerance) -> Conclusion:
    keys, values = wrong
    places, side = (values, 1) if values else (keys, 0)
    worst = max(errors.first[side][place] for place in places)
    count = len(errors.first[0])
    if not values:
        why = f"keys differ at {len(keys)} of {count} positions, values do not: other positions or another rotation"
    else:
        why = f"{len(values)} of {count} positions hold another token, or other weights or another format"
    return Conclusion("fail", f"{worst:.3g}", f"at most {tolerance.first:g}", why, places[0])


def _beyond(errors: Sequence[float], tolerance: float) -> list[int]:
    return [place for place, error in enumerate(errors) if not error <= tolerance]


def _digest(request_id: str) -> bytes:
    return hashlib.sha256(f"spot check\n{request_id}".encode()).digest()
