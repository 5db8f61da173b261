"""An isolation probe in words: what was found, what it means, what to do next. No content, no secret, ever."""

from .answers import Trouble
from .bypass_words import Told, plain
from .isolation_verdict import Isolation, Probe, Timing, Why

_PROBE: dict[str, tuple[str, str]] = {
    Why.REPORTED_MISS: (
        "The owner's repeat was reused every time, and the other tenant's identical prefix never.",
        "Nothing to do. Keep it so: kvtrail probe isolation URL --every 10m.",
    ),
    Why.REPORTED_HIT: (
        "The other tenant's identical prefix was taken from the owner's entry.",
        "Give each tenant a pool of its own (cache_salt, or the tenant in the key), then probe again.",
    ),
    Why.TOKENS_HIDDEN: (
        "The endpoint does not say how many tokens it took from its cache, and latencies alone clear nothing.",
        "{hidden}",
    ),
    Why.REPEAT_MISSED: (
        "The owner's own repeat was not reused, so a miss of the other tenant means nothing.",
        "Is caching on, the prefix long enough (--prefix-words), one replica asked, and the entry kept that long?",
    ),
    Why.IMPOSSIBLE_REUSE: (
        "The endpoint reports reuse for a prompt that nobody ever sent: either that number is untrue, or the key leaves"
        " the prompt out and another entry is served.",
        "Run kvtrail bypass-diff with a prompt of your own: it tells the two apart.",
    ),
    Why.TIMING_DISAGREES: (
        "A miss is reported, and yet the other tenant was faster on the owner's prefix than on a new one of its own.",
        "Run it again with more --pairs at a quiet time; then look for a shared tier that is not reported.",
    ),
    Why.STOPPED: ("It was stopped before it had asked everything.", "Run it again."),
}
_ISOLATION = {
    Isolation.HELD: "tenants do not reach each other's entries",
    Isolation.ALLOWED: "tenants share entries, and policy allows it",
    Isolation.BROKEN: "a tenant reached another's entry",
    Isolation.INCONCLUSIVE: "inconclusive",
}


def tell_probe(probe: Probe, *, trouble: str, hidden: str) -> Told:
    """The words of an isolation probe."""
    if isinstance(probe.why, Trouble):
        return Told(headline=f"inconclusive: {plain(probe.why)}", happened=(trouble,))
    said, step = _PROBE[probe.why]
    if probe.isolation is Isolation.ALLOWED:
        step = "Nothing to do, as long as this policy is meant."
    happened = [said]
    if probe.pairs:
        happened.append(
            f"Pairs: {probe.pairs}. The owner's repeat hit {probe.repeat_hits} times "
            f"({_number(probe.repeat_tokens)} of {_number(probe.prompt_tokens)} tokens), the other tenant "
            f"{probe.cross_hits} times ({_number(probe.cross_tokens)} tokens)."
        )
    if probe.timing is not None:
        happened.append(_timing(probe.timing))
    return Told(
        headline=_ISOLATION[probe.isolation]
        + (f": {plain(probe.why)}" if probe.isolation is Isolation.INCONCLUSIVE else ""),
        happened=tuple(happened),
        steps=(step.format(hidden=hidden),),
    )


def _timing(timing: Timing) -> str:
    told = (
        f"Second evidence, latencies (medians of {timing.pairs}): owner new {timing.first_s * 1e3:.0f} ms, repeated "
        f"{timing.repeat_s * 1e3:.0f} ms; other tenant on the same prefix {timing.cross_s * 1e3:.0f} ms, on a new one "
        f"{timing.cold_s * 1e3:.0f} ms. "
    )
    if not timing.able:
        return (
            told
            + f"They tell nothing here: a repeat this much faster comes by chance with p = {timing.repeat_chance:.2f}."
        )
    return told + f"That the other tenant is this much faster comes by chance with p = {timing.cross_chance:.2f}."


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
