"""The table of verdicts: what each endpoint, healthy or faulty, must be told by each tool."""

import sys
from typing import NamedTuple

from .stub import Behaviour

CHATS = ("vllm", "sglang", "sglang-generate", "openai")
ALL = (*CHATS, "anthropic")


class Expected(NamedTuple):
    """Outcome and reason."""

    outcome: str
    reason: str


class Case(NamedTuple):
    """One behaviour. `found`: what was in the cache before: this tenant's entry, another one's, or nothing.
    A verdict that differs by form stands under its name."""

    name: str
    behaviour: Behaviour
    diff: Expected
    probe: Expected
    diff_by_form: dict[str, Expected] = {}  # noqa: RUF012  # a NamedTuple's default, never changed
    found: str = "own"


def inconclusive(reason: str) -> Expected:
    return Expected("inconclusive", reason)


CLEAR = Expected("not_implicated", "equal")
GUILTY = Expected("implicated", "diverges")
BY_WORDINGS = Expected("implicated", "diverges_in_every_variation")
HELD = Expected("held", "reported_miss")
BROKEN = Expected("broken", "reported_hit")


def same(reason: str) -> tuple[Expected, Expected]:
    return inconclusive(reason), inconclusive(reason)


CASES = (
    Case("healthy", Behaviour(), CLEAR, HELD),
    Case("healthy, with a chat template in front", Behaviour(template_words=20), CLEAR, HELD),
    Case("healthy, nothing cached yet", Behaviour(), inconclusive("only_own_entry"), HELD, found="nothing"),
    Case(
        "serves another tenant's entry", Behaviour(wrong_entry=True, shares_across_tenants=True), GUILTY, BROKEN,
        {"anthropic": BY_WORDINGS}, "another's",
    ),
    Case(
        "serves another tenant's entry, reports 0 tokens",
        Behaviour(wrong_entry=True, shares_across_tenants=True, reports="zero"), GUILTY, inconclusive("repeat_missed"),
        {"anthropic": inconclusive("margin_unknown")}, "another's",
    ),
    Case(
        "serves another tenant's entry, hides tokens",
        Behaviour(wrong_entry=True, shares_across_tenants=True, reports="hidden"), *same("cached_tokens_hidden"),
        found="another's",
    ),
    Case("shares across tenants", Behaviour(shares_across_tenants=True), CLEAR, BROKEN),
    Case("ignores the bypass", Behaviour(ignores_bypass=True), inconclusive("bypass_ignored"), HELD),
    Case(
        "ignores the bypass and serves another tenant's entry",
        Behaviour(ignores_bypass=True, wrong_entry=True, shares_across_tenants=True), inconclusive("bypass_ignored"),
        BROKEN, found="another's",
    ),
    Case(
        "says 0 tokens while reusing", Behaviour(reports="zero"), inconclusive("nothing_reused"),
        inconclusive("repeat_missed"),
    ),
    Case(
        "says tokens were cached, always", Behaviour(reports="always"), inconclusive("bypass_ignored"),
        inconclusive("impossible_reuse"),
    ),
    Case("hides cached tokens", Behaviour(reports="hidden"), *same("cached_tokens_hidden")),
    Case("reports nulls", Behaviour(reports="null"), *same("cached_tokens_hidden")),
    Case("reports no usage", Behaviour(reports="none"), *same("cached_tokens_hidden")),
    Case("reports usage as something else", Behaviour(reports="garbage"), *same("cached_tokens_hidden")),
    Case("answers differently each time", Behaviour(noise="random"), inconclusive("nondeterministic"), HELD),
    Case(
        "numeric noise turns a near tie", Behaviour(noise="tie"), Expected("not_implicated", "near_tie"), HELD,
        {"anthropic": inconclusive("margin_unknown")},
    ),
    Case(
        "a near tie turns, and log-probabilities move more than without reuse", Behaviour(noise="moved"),
        inconclusive("near_tie"), HELD, {"anthropic": inconclusive("margin_unknown")},
    ),
    Case(
        "numeric noise turns a near tie, no log-probabilities", Behaviour(noise="tie", logprobs=False),
        inconclusive("margin_unknown"), HELD,
    ),
    Case(
        "serves another tenant's entry, no log-probabilities",
        Behaviour(wrong_entry=True, shares_across_tenants=True, logprobs=False), BY_WORDINGS, BROKEN, found="another's",
    ),
    Case(
        "same tokens, log-probabilities far apart", Behaviour(noise="drift"), inconclusive("numbers_differ"), HELD,
        {"anthropic": CLEAR},
    ),
    Case(
        "answers in three words, no log-probabilities", Behaviour(length=3, logprobs=False),
        inconclusive("too_short"), HELD,
    ),
    Case("limits the rate for long", Behaviour(status=429, after=0, retry_after="3600"), *same("rate_limited"),
         found="nothing"),
    Case("limits the rate once", Behaviour(first_statuses=(0, 429), retry_after="1"), CLEAR, HELD),
    Case("is overloaded, without a word when to come back", Behaviour(status=529, after=0), *same("rate_limited"),
         found="nothing"),
    Case("refuses temperature 0", Behaviour(refuses=("temperature",)), inconclusive("temperature_refused"), HELD,
         {}, "nothing"),
    Case("knows max_completion_tokens only", Behaviour(renames={"max_tokens": "max_completion_tokens"}), CLEAR, HELD),
    Case(
        "does not know log-probabilities or token ids",
        Behaviour(refuses=("logprobs", "return_token_ids", "return_logprob", "top_logprobs_num")), CLEAR, HELD,
        found="own",
    ),
    Case(
        "does not know the bypass", Behaviour(refuses=("cache_salt", "prompt_cache_options")),
        inconclusive("bypass_refused"), HELD, {"anthropic": CLEAR},
    ),
    Case("does not answer", Behaviour(hangs=True), *same("timeout"), found="nothing"),
    Case("drips its answer", Behaviour(drips=True), *same("timeout"), found="nothing"),
    Case("answers with garbage", Behaviour(body=b"<html>oops"), *same("not_json"), found="nothing"),
    Case("answers with JSON that is no object", Behaviour(body=b"[1,2]"), *same("malformed"), found="nothing"),
    Case("answers with no choices", Behaviour(no_choices=True), *same("malformed"), found="nothing"),
    Case("streams unasked", Behaviour(streams=True), *same("streamed"), found="nothing"),
    Case("redirects", Behaviour(redirects="/elsewhere"), *same("redirected"), found="nothing"),
    Case("fails on the second call", Behaviour(status=500, after=1), *same("server_failed"), found="nothing"),
    Case("turns the key down", Behaviour(status=401, after=0), *same("unauthorised"), found="nothing"),
    Case("does not know the path or model", Behaviour(status=404, after=0), *same("not_found"), found="nothing"),
    Case("turns the request down", Behaviour(status=400, after=0), *same("request_refused"), found="nothing"),
    Case("has several models behind it", Behaviour(other_model="alternating"), inconclusive("other_model"), HELD,
         {"sglang-generate": CLEAR}),
    Case("says another model's name", Behaviour(other_model="alias-of-it"), CLEAR, HELD),
    Case("answers with a megabyte", Behaviour(padding=1 << 20), CLEAR, HELD),
    Case("answers with more than is read", Behaviour(body=b'{"a":"' + b"x" * (9 << 20) + b'"}'), *same("too_large"),
         found="nothing"),
    Case("answers with emoji and direction marks", Behaviour(unicode=True), CLEAR, HELD),
    Case("answers with halves of surrogate pairs", Behaviour(surrogates=True), CLEAR, HELD),
)  # fmt: skip


def expected_diff(case: Case, form: str) -> Expected:
    """What `kvtrail bypass-diff` must say."""
    return case.diff_by_form.get(form, case.diff)


def page() -> str:
    """The table as documentation: what is said in each form."""
    lines = [
        "| endpoint | bypass-diff | probe isolation |",
        "|---|---|---|",
    ]
    for case in CASES:
        told = _words(case.diff)
        told += "".join(f"; {form}: {_words(one)}" for form, one in case.diff_by_form.items())
        lines.append(f"| {case.name} | {told} | {_words(case.probe)} |")
    return "\n".join(lines)


def _words(expected: Expected) -> str:
    return f"**{expected.outcome.replace('_', ' ')}** ({expected.reason.replace('_', ' ')})"


if __name__ == "__main__":
    sys.stdout.write(page() + "\n")
