"""A bypass diff in words: what was found, what it means, what to do next. No content, no secret, ever."""

from msgspec import Struct

from ..wording import name, person_key
from .answers import Trouble
from .bypass import Made
from .bypass_verdict import Diff, Outcome, Reason


class Told(Struct, frozen=True, kw_only=True):
    """A headline, sentences, and steps."""

    headline: str
    happened: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


_BYPASS: dict[str, tuple[str, str]] = {
    Reason.DIVERGES: (
        "With reuse the answer is another one, steadily, and the model was sure of its token on at least one side.",
        "Investigate the key: kvtrail investigate --request ID; stop it with kvtrail epoch bump --why ID.",
    ),
    Reason.DIVERGES_ALWAYS: (
        "With reuse the answer is another one in every wording; numeric noise does not follow the wording.",
        "Investigate the key: kvtrail investigate --request ID; stop it with kvtrail epoch bump --why ID.",
    ),
    Reason.EQUAL: (
        "With and without reuse the answer is the same.",
        "Look at the prompt's evidence: its documents, tools and template are what the answer rests on, not the key.",
    ),
    Reason.NEAR_TIE: (
        "The answers part where either token was about equally likely, as numeric noise does, and not before.",
        "Look at the prompt's evidence: its documents, tools and template are what the answer rests on, not the key.",
    ),
    Reason.BYPASS_IGNORED: (
        "The run without reuse reports cached tokens: the bypass did not happen, so there was nothing to compare with.",
        "Choose another --bypass; an endpoint that ignores every one can only be checked from inside (spot check).",
    ),
    Reason.TOKENS_HIDDEN: (
        "The endpoint does not say how many tokens it took from its cache: neither reuse nor bypass is verified.",
        "{hidden}",
    ),
    Reason.NOTHING_REUSED: (
        "With reuse on, nothing was reported as reused: no entry was tested.",
        "Ask while the entry is there; --warm makes one, which tests restoring alone.",
    ),
    Reason.ONLY_OWN_ENTRY: (
        "The first run found nothing; the later ones reused what this check had stored itself. That says nothing of "
        "the entry that answered somebody else.",
        "Ask while that entry is there; --warm says that testing restoring alone is meant.",
    ),
    Reason.NONDETERMINISTIC: (
        "Without reuse the endpoint answers differently each time, at temperature 0.",
        "Turn off what makes it so (batch-dependent kernels, speculation, several replicas), or raise --controls.",
    ),
    Reason.REUSE_UNSTEADY: (
        "Some runs with reuse agree with those without, others do not.",
        "Run it again with more --reuses; several replicas behind one address look like this when one is at fault.",
    ),
    Reason.OTHER_MODEL: (
        "The answers come from different models or builds, by what they say of themselves.",
        "Ask one replica directly.",
    ),
    Reason.PROMPT_DIFFERS: (
        "The endpoint saw different prompt tokens with and without the bypass: these are two requests, not one.",
        "Look for what in between rewrites prompts.",
    ),
    Reason.TOO_SHORT: (
        "The answers are the same and too short to mean it: another entry could give this answer too.",
        "Ask something with a longer answer, or raise --max-tokens.",
    ),
    Reason.NUMBERS_DIFFER: (
        "The tokens are the same, and their log-probabilities further apart than noise makes them.",
        "The entry may hold another prefix that gives the same answer: ask something whose answer depends on it.",
    ),
    Reason.MARGIN_UNKNOWN: (
        "The answers part, not in every wording, and the endpoint does not say how sure the model was.",
        "Read both answers, or check through an interface that gives log-probabilities.",
    ),
    Reason.NO_BYPASS: ("Declined: {declines}", "Name the engine with --form, or check from inside (spot check)."),
}
_UNEXPLAINED = (
    "The answers part where either token was about equally likely. That may be noise, or an entry that holds something "
    "else: too little agrees before that place, or numbers lie further apart than in the runs without reuse.",
    "Ask something whose answer depends on the prefix in another wording; or --bypass prompt-logprobs, where the form "
    "has it; or check the entry from inside (spot check).",
)
_HEADLINES = {
    Outcome.IMPLICATED: "the cache is implicated",
    Outcome.NOT_IMPLICATED: "the cache is not implicated",
    Outcome.INCONCLUSIVE: "inconclusive",
}


def tell_diff(made: Made, *, bypass: str, hidden: str, declines: str, block: int = 0) -> Told:
    """The words of a bypass diff. `block`: tokens in a block of the engine's cache, 0 where that is not known."""
    diff = made.diff
    if isinstance(diff.reason, Trouble):
        return Told(headline=f"inconclusive: {plain(diff.reason)}", happened=(made.trouble,))
    cleared = diff.outcome is Outcome.NOT_IMPLICATED
    said, step = _UNEXPLAINED if diff.reason is Reason.NEAR_TIE and not cleared else _BYPASS[diff.reason]
    happened = [said.format(declines=declines)]
    if diff.basis is not None:
        happened.append(_compared(diff))
        happened.append(_reuse(diff, bypass, block))
        happened += [
            f"The entry: key {person_key(key)} in store {name(store, 'unnamed')}." for key, store in _used(made)
        ]
    if cleared:
        happened.append("This holds for the entry that is served to this request now, not for one that has gone.")
        if made.runs.warmed:
            happened.append("The request was sent once before, so that entry may be this check's own.")
    return Told(
        headline=f"{_HEADLINES[diff.outcome]}: {plain(diff.reason)}",
        happened=tuple(happened),
        steps=(step.format(hidden=hidden),),
    )


def _compared(diff: Diff) -> str:
    unit = "characters" if diff.basis == "text" else "tokens"
    what = "text (the endpoint gives neither token ids nor tokens)" if diff.basis == "text" else str(diff.basis)
    told = f"Compared by {what}: the first {diff.agreed} {unit} agree"
    if diff.position is None:
        told += ", and there are no more"
    elif diff.margin is not None:
        told += f", then they part, where one was {diff.margin:.2f} nats ahead of the other"
    else:
        told += ", then they part"
    if diff.drift is not None:
        told += f"; log-probabilities lie up to {diff.drift:.3f} nats apart"
        told += f" ({diff.noise:.3f} between runs without reuse)" if diff.noise is not None else ""
    if diff.variations:
        told += f". Of {diff.variations} other wordings, {diff.variations_differ} part too"
    return told + "."


def _used(made: Made) -> list[tuple[str, str]]:
    """Keys and stores of what was reused, where the endpoint names them."""
    return list(dict.fromkeys((one.key, one.store) for one in made.runs.reuse if one.key and one.cached_tokens))


def _reuse(diff: Diff, bypass: str, block: int) -> str:
    reused = "an unknown number of" if diff.reused_tokens is None else str(diff.reused_tokens)
    without = "an unknown number" if diff.bypass_tokens is None else str(diff.bypass_tokens)
    blocks = f" ({diff.reused_tokens // block} blocks of {block})" if block and diff.reused_tokens else ""
    return f"Reported as reused: {reused} tokens{blocks} with reuse, {without} without. Bypass: {bypass}."


def plain(reason: str) -> str:
    """A reason's code as words."""
    return str(reason).replace("_", " ")
