"""What the pairs of an isolation probe show about one tenant reaching another's entries.

Pure. Reported cached tokens decide; latencies are second evidence: they can cast doubt, and clear nothing.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from .answers import Answer, Trouble
from .permutation import faster_by_chance, median

SURE = 0.05
HALF = 0.5
Policy = Literal["partitioned", "shared"]


class Isolation(StrEnum):
    """What a probe says."""

    HELD = "held"
    ALLOWED = "allowed"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"


class Why(StrEnum):
    """The grounds; `Trouble` has the reasons for which there was no answer."""

    REPORTED_MISS = "reported_miss"
    REPORTED_HIT = "reported_hit"
    TOKENS_HIDDEN = "cached_tokens_hidden"
    REPEAT_MISSED = "repeat_missed"
    IMPOSSIBLE_REUSE = "impossible_reuse"
    TIMING_DISAGREES = "timing_disagrees"
    STOPPED = "stopped"


class Pair(Struct, frozen=True, kw_only=True):
    """One prefix that nobody has ever sent: by its owner, again by its owner, then by the other tenant; and another
    such prefix by the other tenant alone, for comparison."""

    first: Answer
    repeat: Answer
    cross: Answer
    cold: Answer


class Timing(Struct, frozen=True, kw_only=True):
    """Medians in seconds, and chances that they differ by accident. `able`: the owner's own repeat is faster than its
    first request, so that timing can tell anything here at all."""

    pairs: int
    first_s: float
    repeat_s: float
    cross_s: float
    cold_s: float
    repeat_chance: float
    cross_chance: float

    @property
    def able(self) -> bool:
        """Whether a hit shows in latencies here."""
        return self.repeat_chance <= SURE

    @property
    def suspicious(self) -> bool:
        """Whether the other tenant was faster on the owner's prefix than on one of its own that was new."""
        return self.able and self.cross_chance <= SURE


class Probe(Struct, frozen=True, kw_only=True):
    """The verdict. Tokens are the largest that were reported in that place; `cross_hits` of `pairs` were hits."""

    isolation: Isolation
    why: Why | Trouble
    policy: Policy
    pairs: int = 0
    cross_hits: int = 0
    repeat_hits: int = 0
    repeat_tokens: int | None = None
    cross_tokens: int | None = None
    prompt_tokens: int | None = None
    timing: Timing | None = None


def judge_isolation(pairs: Sequence[Pair], policy: Policy) -> Probe:
    """The verdict of the pairs, of which there is at least one."""
    told = [answer.cached_tokens for pair in pairs for answer in (pair.first, pair.repeat, pair.cross, pair.cold)]
    own = sum(_hit(pair, pair.repeat) for pair in pairs)
    crossed = sum(_hit(pair, pair.cross) for pair in pairs)
    timing = measure(pairs)
    isolation, why = _verdict(pairs, policy, own, crossed, timing, hidden=any(one is None for one in told))
    return Probe(
        isolation=isolation,
        why=why,
        policy=policy,
        pairs=len(pairs),
        cross_hits=crossed,
        repeat_hits=own,
        repeat_tokens=_most(pair.repeat for pair in pairs),
        cross_tokens=_most(pair.cross for pair in pairs),
        prompt_tokens=max((pair.first.prompt_tokens or 0 for pair in pairs), default=0) or None,
        timing=timing,
    )


def no_verdict(trouble: Trouble, policy: Policy, pairs: int) -> Probe:
    """The verdict where answers are missing."""
    return Probe(isolation=Isolation.INCONCLUSIVE, why=trouble, policy=policy, pairs=pairs)


def measure(pairs: Sequence[Pair]) -> Timing:
    """What latencies say."""
    return Timing(
        pairs=len(pairs),
        first_s=median([pair.first.seconds for pair in pairs]),
        repeat_s=median([pair.repeat.seconds for pair in pairs]),
        cross_s=median([pair.cross.seconds for pair in pairs]),
        cold_s=median([pair.cold.seconds for pair in pairs]),
        repeat_chance=faster_by_chance([(pair.repeat.seconds, pair.first.seconds) for pair in pairs]),
        cross_chance=faster_by_chance([(pair.cross.seconds, pair.cold.seconds) for pair in pairs]),
    )


def _verdict(
    pairs: Sequence[Pair], policy: Policy, own: int, crossed: int, timing: Timing, *, hidden: bool
) -> tuple[Isolation, Why]:
    if hidden:
        return Isolation.INCONCLUSIVE, Why.TOKENS_HIDDEN
    if any(_reuses_the_new(pair.first) or _reuses_the_new(pair.cold) for pair in pairs):
        return Isolation.INCONCLUSIVE, Why.IMPOSSIBLE_REUSE
    if crossed:
        return (Isolation.ALLOWED if policy == "shared" else Isolation.BROKEN), Why.REPORTED_HIT
    if own < len(pairs):
        return Isolation.INCONCLUSIVE, Why.REPEAT_MISSED
    if timing.suspicious and policy == "partitioned":
        return Isolation.INCONCLUSIVE, Why.TIMING_DISAGREES
    return Isolation.HELD, Why.REPORTED_MISS


def _reuses_the_new(answer: Answer) -> bool:
    """More than half of a prompt that nobody ever sent cannot have been cached; a chat template's front can."""
    return (answer.cached_tokens or 0) > HALF * (answer.prompt_tokens or 0) and bool(answer.cached_tokens)


def _hit(pair: Pair, answer: Answer) -> bool:
    """Whether this reuses the prefix of the pair, beyond what any new prompt of this shape reuses."""
    common = max(pair.first.cached_tokens or 0, pair.cold.cached_tokens or 0)
    return (answer.cached_tokens or 0) > common


def _most(answers: Iterable[Answer]) -> int | None:
    known = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    return max(known) if known else None
