"""What the runs of a bypass diff show: cache implicated, cache not implicated, or inconclusive and why.

Pure. Nothing is cleared for want of evidence: a comparison counts only against a baseline that is known to have been
computed, that repeats itself, and, to clear, with a run that is known to have reused something.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from .answers import Answer, Trouble
from .divergence import DRIFT, LOUD, QUIET, Basis, Comparison, common_basis, compare

ENOUGH = {"token ids": 8, "tokens": 8, "text": 32}
"""Tokens or characters that must agree before agreement without log-probabilities says something."""
VARIATIONS = 3


class Outcome(StrEnum):
    """What a bypass diff says."""

    IMPLICATED = "implicated"
    NOT_IMPLICATED = "not_implicated"
    INCONCLUSIVE = "inconclusive"


class Reason(StrEnum):
    """Why; `Trouble` has the reasons for which there was no answer at all."""

    DIVERGES = "diverges"
    DIVERGES_ALWAYS = "diverges_in_every_variation"
    EQUAL = "equal"
    NEAR_TIE = "near_tie"
    BYPASS_IGNORED = "bypass_ignored"
    TOKENS_HIDDEN = "cached_tokens_hidden"
    NOTHING_REUSED = "nothing_reused"
    ONLY_OWN_ENTRY = "only_own_entry"
    NONDETERMINISTIC = "nondeterministic"
    REUSE_UNSTEADY = "reuse_unsteady"
    OTHER_MODEL = "other_model"
    PROMPT_DIFFERS = "prompt_differs"
    TOO_SHORT = "too_short"
    NUMBERS_DIFFER = "numbers_differ"
    MARGIN_UNKNOWN = "margin_unknown"
    NO_BYPASS = "no_bypass"


class Variation(Struct, frozen=True, kw_only=True):
    """The request with a few words added behind everything that can be cached, with reuse and twice without."""

    reuse: Answer
    bypass: tuple[Answer, ...]


class Runs(Struct, frozen=True, kw_only=True):
    """Everything that was asked. `warmed`: the request was sent once before, on purpose, to make an entry."""

    reuse: tuple[Answer, ...]
    bypass: tuple[Answer, ...]
    variations: tuple[Variation, ...] = ()
    warmed: bool = False


class Diff(Struct, frozen=True, kw_only=True):
    """The verdict, and what it rests on. `noise`: the largest difference of log-probabilities between two runs
    without reuse, in nats. `compared`: what was compared, and `agreed` how much of it is common to both sides."""

    outcome: Outcome
    reason: Reason | Trouble
    basis: Basis | None = None
    agreed: int = 0
    position: int | None = None
    margin: float | None = None
    drift: float | None = None
    noise: float | None = None
    reused_tokens: int | None = None
    bypass_tokens: int | None = None
    variations: int = 0
    variations_differ: int = 0


def judge(runs: Runs) -> Diff:
    """The verdict of these runs."""
    basis = common_basis([*runs.reuse, *runs.bypass, *(a for one in runs.variations for a in (one.reuse, *one.bypass))])
    controls = [compare(runs.bypass[0], other, basis) for other in runs.bypass[1:]]
    noise = max((one.drift for one in controls if one.drift is not None), default=None)
    compared = [_nearest(answer, runs.bypass, basis) for answer in runs.reuse]
    worst = max(compared, key=lambda one: (one.position is not None, one.material, one.margin or 0.0, -one.agreed))

    def found(outcome: Outcome, reason: Reason, usable: int = 0, differ: int = 0) -> Diff:
        return Diff(
            outcome=outcome, reason=reason, basis=basis, agreed=worst.agreed, position=worst.position,
            margin=worst.margin, drift=worst.drift, noise=noise, reused_tokens=_most(runs.reuse),
            bypass_tokens=_most(runs.bypass), variations=usable, variations_differ=differ,
        )  # fmt: skip

    doubt = _baseline(runs, controls)
    if doubt is not None:
        return found(Outcome.INCONCLUSIVE, doubt)
    if worst.position is not None and not worst.near_tie:
        return found(*_parted(runs, compared, basis), *_variations(runs, basis))
    if _drifted(compared, noise):
        return found(Outcome.INCONCLUSIVE, Reason.NUMBERS_DIFFER)
    unused = _reuse_is_known(runs)
    if unused is not None:
        return found(Outcome.INCONCLUSIVE, unused)
    return found(*_agreed(runs, worst, basis, _explained(compared, noise)), *_variations(runs, basis))


def wants_variations(runs: Runs) -> bool:
    """Whether the answers part and nothing says how sure the model was: then one wording alone decides nothing."""
    first = judge(runs)
    return first.outcome is Outcome.INCONCLUSIVE and first.reason in (Reason.MARGIN_UNKNOWN, Reason.NEAR_TIE)


def failed(trouble: Trouble) -> Diff:
    """The verdict where an answer is missing."""
    return Diff(outcome=Outcome.INCONCLUSIVE, reason=trouble)


def declined() -> Diff:
    """The verdict where the endpoint has no bypass."""
    return Diff(outcome=Outcome.INCONCLUSIVE, reason=Reason.NO_BYPASS)


def was_computed(answer: Answer) -> bool | None:
    """Whether the answer's whole prompt was computed, as far as it shows; None where it shows nothing."""
    if answer.prompt_tokens and answer.computed_tokens is not None:
        return answer.computed_tokens >= answer.prompt_tokens
    return None if answer.cached_tokens is None else answer.cached_tokens == 0


def _baseline(runs: Runs, controls: Sequence[Comparison]) -> Reason | None:
    """What is wrong with the runs without reuse, so that nothing can be compared with them."""
    answers = (*runs.reuse, *runs.bypass)
    prompts = {answer.prompt_ids for answer in answers if answer.prompt_ids is not None}
    if len(prompts) > 1:
        return Reason.PROMPT_DIFFERS
    if len({answer.model for answer in answers}) > 1 or len({answer.fingerprint for answer in answers}) > 1:
        return Reason.OTHER_MODEL
    computed = [was_computed(answer) for answer in runs.bypass]
    if any(one is False for one in computed):
        return Reason.BYPASS_IGNORED
    if any(one is None for one in computed):
        return Reason.TOKENS_HIDDEN
    if any(one.position is not None and not one.near_tie for one in controls):
        return Reason.NONDETERMINISTIC
    return None


def _nearest(answer: Answer, bypass: Sequence[Answer], basis: Basis) -> Comparison:
    """`answer` against the control it agrees with longest: controls may part from each other at a near tie."""
    return max(
        (compare(answer, control, basis) for control in bypass),
        key=lambda one: (one.position is None, one.agreed, one.near_tie),
    )


def _parted(runs: Runs, compared: Sequence[Comparison], basis: Basis) -> tuple[Outcome, Reason]:
    # A run that found nothing to reuse is one more control: that it agrees speaks for nobody.
    pairs = zip(runs.reuse, compared, strict=True)
    reused = [one for answer, one in pairs if answer.cached_tokens != 0] or list(compared)
    if any(one.position is None or one.near_tie for one in reused):
        return Outcome.INCONCLUSIVE, Reason.REUSE_UNSTEADY
    if all(one.material for one in reused):
        return Outcome.IMPLICATED, Reason.DIVERGES
    usable, differ = _variations(runs, basis)
    if usable >= VARIATIONS and differ == usable:
        return Outcome.IMPLICATED, Reason.DIVERGES_ALWAYS
    return Outcome.INCONCLUSIVE, Reason.MARGIN_UNKNOWN


def _agreed(runs: Runs, worst: Comparison, basis: Basis, explained: bool) -> tuple[Outcome, Reason]:
    if worst.position is None:
        if worst.drift is None and worst.agreed < ENOUGH[basis]:
            return Outcome.INCONCLUSIVE, Reason.TOO_SHORT
        return Outcome.NOT_IMPLICATED, Reason.EQUAL
    usable, differ = _variations(runs, basis)
    if differ:
        return (
            (Outcome.IMPLICATED, Reason.DIVERGES_ALWAYS)
            if differ == usable >= VARIATIONS
            else (Outcome.INCONCLUSIVE, Reason.REUSE_UNSTEADY)
        )
    if explained and (worst.agreed >= ENOUGH[basis] or usable >= VARIATIONS):
        return Outcome.NOT_IMPLICATED, Reason.NEAR_TIE
    return Outcome.INCONCLUSIVE, Reason.NEAR_TIE


def _drifted(compared: Sequence[Comparison], noise: float | None) -> bool:
    return any(one.drift is not None and one.drift > max(DRIFT, LOUD * (noise or 0.0)) for one in compared)


def _explained(compared: Sequence[Comparison], noise: float | None) -> bool:
    """Whether the numbers before a near tie lie as close to the controls' as those lie to each other. A token turned
    and numbers moved: an entry that holds something else does that too, and where nothing tells, nobody is cleared."""
    band = max(QUIET, LOUD * (noise or 0.0))
    return all(one.position is None or (one.drift is not None and one.drift <= band) for one in compared)


def _reuse_is_known(runs: Runs) -> Reason | None:
    """Why the runs with reuse say nothing for the cache."""
    cached = [answer.cached_tokens for answer in runs.reuse]
    if any(one is None for one in cached):
        return Reason.TOKENS_HIDDEN
    if not any(cached):
        return Reason.NOTHING_REUSED
    if not cached[0] and not runs.warmed:
        return Reason.ONLY_OWN_ENTRY
    return None


def _variations(runs: Runs, basis: Basis) -> tuple[int, int]:
    """How many variations can be used, and in how many of them the answers part other than at a near tie."""
    usable = differ = 0
    for one in runs.variations:
        control = compare(one.bypass[0], one.bypass[1], basis)
        if control.position is not None and not control.near_tie:
            continue
        if not one.reuse.cached_tokens or not all(was_computed(answer) for answer in one.bypass):
            continue
        usable += 1
        told = _nearest(one.reuse, one.bypass, basis)
        differ += told.position is not None and not told.near_tie
    return usable, differ


def _most(answers: Sequence[Answer]) -> int | None:
    known = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    return max(known) if known else None
