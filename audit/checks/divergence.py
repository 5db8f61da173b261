"""Two answers side by side: the first place where they part, and how sure the model was there.

Pure. Ids are compared where the endpoint gave ids, token texts where it gave those with log-probabilities, and
characters otherwise; text is never cut into tokens here and called ids.
"""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from .answers import Answer, Step

Basis = Literal["token ids", "tokens", "text"]

NEAR_TIE = 0.3
"""Nats. Logits in bfloat16 lie 0.125 apart where they are largest; two such steps are noise, not another prompt."""
DRIFT = 0.5
"""Nats by which the log-probability of a token both chose may differ before the computation counts as another one."""
QUIET = 0.02
"""Nats of `drift` that a near tie may come with where runs without reuse do not differ at all; `LOUD` times what they
differ where they do. More than that, and noise is not known to be what turned the token."""
LOUD = 4
_CERTAIN = 1e-9


class Comparison(Struct, frozen=True, kw_only=True):
    """`position`: the first index (of tokens, or characters for text) where they part, None where they do not.

    `margin`: how much likelier, in nats, the token that was chosen there was than the other one, by the surer of the
    two; None where no log-probabilities tell. `drift`: the largest difference of log-probabilities before that place.
    `agreed`: how much they have in common.
    """

    basis: Basis
    agreed: int
    position: int | None = None
    margin: float | None = None
    drift: float | None = None

    @property
    def near_tie(self) -> bool:
        """They part where both found either token about equally likely."""
        return self.position is not None and self.margin is not None and self.margin <= NEAR_TIE

    @property
    def material(self) -> bool:
        """They part where at least one of them was sure."""
        return self.position is not None and self.margin is not None and self.margin > NEAR_TIE


def common_basis(answers: Sequence[Answer]) -> Basis:
    """The finest thing that every one of the answers has."""
    if all(answer.token_ids is not None for answer in answers):
        return "token ids"
    if all(answer.steps is not None for answer in answers):
        return "tokens"
    return "text"


def compare(one: Answer, other: Answer, basis: Basis) -> Comparison:
    """Where `one` and `other` part."""
    left, right = _sequence(one, basis), _sequence(other, basis)
    agreed = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    steps = _steps(one, left, basis), _steps(other, right, basis)
    drift = _drift(steps[0][:agreed], steps[1][:agreed]) if steps[0] and steps[1] else None
    if agreed == len(left) == len(right):
        return Comparison(basis=basis, agreed=agreed, drift=drift)
    return Comparison(basis=basis, agreed=agreed, position=agreed, drift=drift, margin=_margin(*steps, agreed))


def _sequence(answer: Answer, basis: Basis) -> Sequence[object]:
    if basis == "token ids":
        return answer.token_ids or ()
    if basis == "tokens":
        return [step.token for step in answer.steps or ()]
    return answer.text


def _steps(answer: Answer, sequence: Sequence[object], basis: Basis) -> Sequence[Step]:
    """The steps that belong to the sequence one by one; none where they do not line up, or it is of characters."""
    steps = answer.steps or ()
    return steps if basis != "text" and len(steps) == len(sequence) else ()


def _drift(left: Sequence[Step], right: Sequence[Step]) -> float | None:
    pairs = [abs(a.logprob - b.logprob) for a, b in zip(left, right, strict=True)]
    return max((one for one in pairs if math.isfinite(one)), default=None)


def _margin(left: Sequence[Step], right: Sequence[Step], at: int) -> float | None:
    said = [
        _lead(own[at], others[at].token if at < len(others) else None)
        for own, others in ((left, right), (right, left))
        if at < len(own)
    ]
    known = [lead for lead in said if lead is not None]
    sure = [lead for lead in known if lead > NEAR_TIE]
    return max(sure or known) if sure or (known and len(known) == len(said)) else None


def _lead(step: Step, other: str | None) -> float | None:
    """How far the chosen token led the other one; where that is not listed, by how much at least, and None where that
    is too little to know."""
    listed = dict(step.top)
    if other is not None and other in listed and other != step.token:
        return max(step.logprob - listed[other], 0.0)
    rest = 1.0 - math.exp(min(step.logprob, 0.0))  # nobody else can have more than what the chosen one left
    least = step.logprob - math.log(max(rest, _CERTAIN))
    lowest = min((value for token, value in step.top if token != step.token), default=None)
    if lowest is not None:
        least = max(least, step.logprob - lowest)  # whoever is not listed is behind the last one that is
    return least if least > NEAR_TIE else None
