"""A bypass diff: the request with reuse on and with a genuine bypass, in turn, until there is something to judge."""

from collections.abc import Callable

from msgspec import Struct

from .answers import Answer, NoAnswer
from .bypass_verdict import VARIATIONS, Diff, Runs, Variation, declined, failed, judge, wants_variations
from .target import Target


class Made(Struct, frozen=True, kw_only=True):
    """The verdict, the runs it rests on as far as they came, and in words what kept an answer away."""

    diff: Diff
    runs: Runs
    trouble: str = ""


def run_bypass_diff(
    target: Target,
    *,
    controls: int = 3,
    reuses: int = 2,
    warm: bool = False,
    variations: int = VARIATIONS,
    tell: Callable[[str], None] = lambda words: None,
) -> Made:
    """Ask and judge; never raises `NoAnswer`. `tell` is given each step in words.

    The first request has reuse on and nothing before it: it meets what any request would meet now. Runs with and
    without reuse alternate, so that a load that changes meets both. Raises `ValueError` for fewer than two controls.
    """
    if controls < 2 or reuses < 1:
        raise ValueError("at least two controls and one run with reuse")
    reuse: list[Answer] = []
    bypass: list[Answer] = []
    varied: list[Variation] = []

    def runs() -> Runs:
        return Runs(reuse=tuple(reuse), bypass=tuple(bypass), variations=tuple(varied), warmed=warm)

    if not target.bypass:
        return Made(diff=declined(), runs=runs())
    try:
        if warm:
            tell("once, to make an entry")
            target.ask(reuse=True)
        while len(reuse) < reuses or len(bypass) < controls:
            if len(reuse) < reuses:
                tell(f"with reuse, {len(reuse) + 1} of {reuses}")
                reuse.append(target.ask(reuse=True))
                if len(reuse) == 1 and reuse[0].cached_tokens == 0 and reuses > 1:
                    reuses += 1  # the first one was a miss: it is followed by as many that can hit
            if len(bypass) < controls:
                tell(f"without reuse, {len(bypass) + 1} of {controls}")
                bypass.append(target.ask(reuse=False))
        if variations and target.varies and wants_variations(runs()):
            for number in range(1, variations + 1):
                tell(f"another wording, {number} of {variations}")
                one = target.ask(reuse=True, variation=number)
                two = tuple(target.ask(reuse=False, variation=number) for _ in range(2))
                varied.append(Variation(reuse=one, bypass=two))
    except NoAnswer as error:
        return Made(diff=failed(error.trouble), runs=runs(), trouble=str(error))
    return Made(diff=judge(runs()), runs=runs())
