"""An isolation probe: prefixes that nobody has ever sent, by one tenant twice and by another one once.

Safe for production: a few prompts with one token of answer each, at a bounded rate, marked, and each begins with random
words, so that no customer's entry can be met and none can meet it.
"""

import random
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from .answers import Answer, NoAnswer
from .endpoint import Asking, Clock
from .forms import Document, Form
from .isolation_verdict import Isolation, Pair, Policy, Probe, Why, judge_isolation, no_verdict
from .target import EndpointTarget

WORDS = (
    "amber", "anchor", "apple", "arrow", "autumn", "bamboo", "basket", "beacon", "bridge", "candle", "canyon",
    "carpet", "cedar", "circle", "copper", "coral", "cotton", "desert", "dinner", "dragon", "ember", "engine",
    "fabric", "falcon", "feather", "flower", "forest", "garden", "ginger", "glacier", "hammer", "harbor", "island",
    "jacket", "kernel", "ladder", "lantern", "lemon", "marble", "meadow", "mirror", "morning", "needle", "ocean",
    "orange", "orchard", "pencil", "pepper", "planet", "pocket", "prairie", "ribbon", "river", "saddle", "shadow",
    "silver", "spring", "summer", "timber", "tunnel", "valley", "velvet", "window", "winter",
)  # fmt: skip
QUESTION = "Reply with one word."
LENGTHS = {"openai": 1400, "anthropic": 1400, "openai-plain": 1400}
"""Words of a prefix where the vendor caches only prompts of 1 024 tokens and more."""
LENGTH = 200


class Tenant(Struct, frozen=True, kw_only=True):
    """One side of the probe, and how the endpoint tells it from the other: headers with a key or a name, or a salt.
    Not shown, since they may be secrets."""

    name: str
    headers: dict[str, str] = {}
    salt: str = ""

    def __repr__(self) -> str:
        return f"Tenant({self.name!r})"


class Probed(Struct, frozen=True, kw_only=True):
    """The verdict, and in words what kept an answer away."""

    probe: Probe
    pairs: tuple[Pair, ...] = ()
    trouble: str = ""
    stopped: bool = False


class Prober:
    """Asks an endpoint. `pause_s` lies between two requests; `words` are in a prefix (default: what the form needs)."""

    def __init__(
        self,
        form: Form,
        ask: Asking,
        owner: Tenant,
        other: Tenant,
        *,
        model: str,
        clock: Clock,
        pause_s: float = 1.0,
        words: int = 0,
    ) -> None:
        self._form = form
        self._ask = ask
        self._owner = owner
        self._other = other
        self._model = model
        self._clock = clock
        self._pause_s = pause_s
        self._words = words or LENGTHS.get(form.name, LENGTH)
        self._asked = False

    def run(self, pairs: int, policy: Policy, tell: Callable[[str], None] = lambda words: None) -> Probed:
        """Probe and judge; never raises `NoAnswer`."""
        made: list[Pair] = []
        try:
            for number in range(1, pairs + 1):
                tell(f"pair {number} of {pairs}")
                made.append(self._pair(cross_first=number % 2 == 1))
        except NoAnswer as error:
            if self._clock.wait(0):
                return Probed(probe=_cut_short(made, policy), pairs=tuple(made), stopped=True)
            probe = _broken(made, policy) or no_verdict(error.trouble, policy, len(made))
            return Probed(probe=probe, pairs=tuple(made), trouble=str(error))
        except Stopped:
            return Probed(probe=_cut_short(made, policy), pairs=tuple(made), stopped=True)
        return Probed(probe=judge_isolation(made, policy), pairs=tuple(made))

    def _pair(self, *, cross_first: bool) -> Pair:
        """The other tenant's two requests take turns in going first, so that a load that changes meets both."""
        prefix, another = self._prefix(), self._prefix()
        first = self._one(self._owner, prefix)
        repeat = self._one(self._owner, prefix)
        if cross_first:
            cross, cold = self._one(self._other, prefix), self._one(self._other, another)
        else:
            cold, cross = self._one(self._other, another), self._one(self._other, prefix)
        return Pair(first=first, repeat=repeat, cross=cross, cold=cold)

    def _prefix(self) -> str:
        draw = random.SystemRandom()
        words = " ".join(draw.choice(WORDS) for _ in range(self._words))
        return f"{secrets.token_hex(16)} is the number of this kvtrail isolation probe. Its words are: {words}."

    def _one(self, tenant: Tenant, prefix: str) -> Answer:
        if self._asked and self._clock.wait(self._pause_s):
            raise Stopped
        self._asked = True
        request = self._form.marked(self._form.plain(self._model, prefix, QUESTION))
        if tenant.salt:
            request = self._form.salted(request, tenant.salt)

        def ask(body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[Document, float]:
            return self._ask(body, {**headers, **tenant.headers})

        target = EndpointTarget(self._form, ask, request, tokens=1, exact=False)
        return target.ask(reuse=True)


class Stopped(Exception):
    """Somebody asked the probe to stop between two requests."""


def _cut_short(pairs: list[Pair], policy: Policy) -> Probe:
    """A hit that was seen stays seen; nothing else follows from half a probe."""
    stopped = Probe(isolation=Isolation.INCONCLUSIVE, why=Why.STOPPED, policy=policy, pairs=len(pairs))
    return _broken(pairs, policy) or stopped


def _broken(pairs: list[Pair], policy: Policy) -> Probe | None:
    told = judge_isolation(pairs, policy) if pairs else None
    return told if told is not None and told.isolation is Isolation.BROKEN else None
