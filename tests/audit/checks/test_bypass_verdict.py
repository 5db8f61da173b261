"""What runs show: nobody is cleared for want of evidence, and nobody accused for noise."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.audit.checks.answers import Answer, Step
from kvtrail.audit.checks.bypass import Made, run_bypass_diff
from kvtrail.audit.checks.bypass_verdict import Outcome, Reason, Runs, Variation, judge, wants_variations, was_computed
from kvtrail.audit.checks.bypass_words import tell_diff
from kvtrail.audit.checks.forms import Document, Form
from kvtrail.audit.checks.openai_form import VLLM
from kvtrail.audit.checks.recording import Subject, record_diff
from kvtrail.audit.checks.sglang_form import GENERATE
from kvtrail.audit.checks.target import EndpointTarget
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Check

LONG = tuple(range(20))


def answer(ids: tuple[int, ...] = LONG, cached: int | None = 0, **more: object) -> Answer:
    made = Answer(text=" ".join(map(str, ids)), token_ids=ids, cached_tokens=cached, prompt_tokens=100)
    return msgspec.structs.replace(made, **more)


def sure(ids: tuple[int, ...], cached: int | None = 0, logprob: float = -0.01) -> Answer:
    steps = tuple(Step(str(one), logprob, ((str(one), logprob), ("other", logprob - 6))) for one in ids)
    return answer(ids, cached, steps=steps)


def runs(reuse: list[Answer], bypass: list[Answer] | None = None, **more: object) -> Runs:
    made = Runs(reuse=tuple(reuse), bypass=tuple(bypass or [answer()] * 3))
    return msgspec.structs.replace(made, **more)


def said(given: Runs) -> tuple[str, str]:
    told = judge(given)
    return told.outcome, told.reason


def tied(last: int, cached: int | None = 0, moved: float = 0.0) -> Answer:
    """Ten tokens that everybody gives, `moved` nats off, and one of two that are about as likely."""
    ids = (*LONG[:10], last)
    steps = [Step(str(one), -0.01 - moved, ((str(one), -0.01 - moved), ("other", -6.0))) for one in ids[:-1]]
    steps.append(Step(str(last), -0.6, ((str(last), -0.6), (str(1990 - last), -0.87))))
    return answer(ids, cached, steps=tuple(steps))


WRONG = (*LONG[:5], 99, *LONG[6:])
VARIED = Variation(reuse=answer(WRONG, 64), bypass=(answer(), answer()))
AGREEING = Variation(reuse=answer(LONG, 64), bypass=(answer(), answer()))


@pytest.mark.parametrize(
    ("given", "outcome", "reason"),
    [
        (runs([answer(cached=64)] * 2), "not_implicated", "equal"),
        (runs([answer(cached=0)] * 2), "inconclusive", "nothing_reused"),
        (runs([answer(cached=None)] * 2), "inconclusive", "cached_tokens_hidden"),
        (runs([answer(cached=64), answer(cached=None)]), "inconclusive", "cached_tokens_hidden"),
        (runs([answer(cached=0), answer(cached=64)]), "inconclusive", "only_own_entry"),
        (runs([answer(cached=0), answer(cached=64)], warmed=True), "not_implicated", "equal"),
        (runs([answer(cached=64)] * 2, [answer(), answer(), answer(cached=None)]), "inconclusive",
         "cached_tokens_hidden"),
        (runs([answer(cached=64)] * 2, [answer(), answer(cached=16)]), "inconclusive", "bypass_ignored"),
        (runs([answer(WRONG, 64)] * 2, [answer(), answer(cached=16)]), "inconclusive", "bypass_ignored"),
        (runs([answer(WRONG, 64)] * 2), "inconclusive", "margin_unknown"),
        (runs([answer(WRONG, 64)] * 2, variations=(VARIED,) * 3), "implicated", "diverges_in_every_variation"),
        (runs([answer(WRONG, 64)] * 2, variations=(VARIED, VARIED, AGREEING)), "inconclusive", "margin_unknown"),
        (runs([answer(WRONG, 64)] * 2, variations=(AGREEING,) * 3), "inconclusive", "margin_unknown"),
        (runs([sure(WRONG, 64)] * 2, [sure(LONG)] * 3), "implicated", "diverges"),
        (runs([sure(WRONG, 0)] * 2, [sure(LONG)] * 3), "implicated", "diverges"),
        (runs([sure(WRONG, 64), sure(LONG, 64)], [sure(LONG)] * 3), "inconclusive", "reuse_unsteady"),
        (runs([sure(LONG, 64)] * 2, [sure(LONG), sure(WRONG)]), "inconclusive", "nondeterministic"),
        (runs([sure(WRONG, 64)] * 2, [sure(LONG), sure(WRONG)]), "inconclusive", "nondeterministic"),
        (runs([sure(LONG, 64, -2.0)] * 2, [sure(LONG)] * 3), "inconclusive", "numbers_differ"),
        (runs([answer((1, 2), 64)] * 2, [answer((1, 2))] * 3), "inconclusive", "too_short"),
        (runs([answer((), 64)] * 2, [answer(())] * 3), "inconclusive", "too_short"),
        (runs([sure((1, 2), 64)] * 2, [sure((1, 2))] * 3), "not_implicated", "equal"),
        (runs([answer(cached=64, model="a")] * 2, [answer(model="b")] * 3), "inconclusive", "other_model"),
        (runs([answer(cached=64, prompt_ids=(1,))] * 2, [answer(prompt_ids=(2,))] * 3), "inconclusive",
         "prompt_differs"),
    ],
)  # fmt: skip
def test_what_is_said(given: Runs, outcome: str, reason: str) -> None:
    assert said(given) == (outcome, reason)


@pytest.mark.parametrize(
    ("moved", "control", "outcome"),
    [
        (0.0, 0.0, "not_implicated"),
        (0.015, 0.0, "not_implicated"),
        (0.103, 0.0, "inconclusive"),
        (0.103, 0.03, "not_implicated"),
        (0.103, 0.01, "inconclusive"),
        (0.4, 0.03, "inconclusive"),
    ],
)
def test_a_near_tie_clears_only_where_numbers_moved_no_more_than_without_reuse(
    moved: float, control: float, outcome: str
) -> None:
    controls = [tied(990), tied(990, moved=control), tied(990)]
    made = runs([tied(1000, 64, moved)] * 2, controls)
    told = judge(made)
    assert (told.outcome, told.reason) == (outcome, "near_tie")
    assert wants_variations(made) is (outcome == "inconclusive")
    steady = Variation(reuse=tied(990, 64), bypass=(tied(990), tied(990)))
    assert judge(msgspec.structs.replace(made, variations=(steady,) * 3)).outcome == outcome


def test_one_steady_run_with_reuse_does_not_speak_for_the_one_whose_numbers_moved() -> None:
    made = runs([tied(1000, 64), tied(1000, 64, 0.103)], [tied(990)] * 3)
    assert judge(made).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("moved", "result", "observed"),
    [(0.0, "pass", "equal up to a near tie at 10, within noise"), (0.103, "inconclusive", "parts at 10")],
)
def test_what_is_recorded_and_told_of_a_near_tie_agrees(moved: float, result: str, observed: str) -> None:
    answers = runs([tied(1000, 64, moved)] * 2, [tied(990)] * 3)
    made = Made(diff=judge(answers), runs=answers)
    told = tell_diff(made, bypass="salt", hidden="", declines="")
    memory = MemoryTransport()
    with LifecyclePublisher("check", memory) as publisher:
        record_diff(publisher, made, told, Subject(request_id="req-1"))
    decoder = EnvelopeDecoder()
    events = [event for _, record in memory.records for event in decoder.decode(record).events]
    (check,) = (event.body for event in events if isinstance(event.body, Check))
    assert (check.result, check.observed) == (result, observed)
    if result == "inconclusive":
        assert told.headline == "inconclusive: near tie"
        (step,) = told.steps
        assert "another wording" in step and "--bypass prompt-logprobs" in step and "spot check" in step


def test_variations_that_prove_nothing_are_not_counted() -> None:
    for useless in (
        Variation(reuse=answer(WRONG, 0), bypass=(answer(), answer())),
        Variation(reuse=answer(WRONG, None), bypass=(answer(), answer())),
        Variation(reuse=answer(WRONG, 64), bypass=(answer(), answer(cached=16))),
        Variation(reuse=answer(WRONG, 64), bypass=(answer(), answer(WRONG[::-1]))),
    ):
        told = judge(runs([answer(WRONG, 64)] * 2, variations=(useless,) * 3))
        assert (told.outcome, told.variations) == (Outcome.INCONCLUSIVE, 0)


def test_a_prompt_whose_logprobs_are_there_was_computed_whatever_is_reported() -> None:
    assert was_computed(answer(cached=None, computed_tokens=100)) is True
    assert was_computed(answer(cached=0, computed_tokens=40)) is False
    assert was_computed(answer(cached=None)) is None
    assert was_computed(answer(cached=16)) is False


ANSWERS = st.builds(
    lambda ids, cached, logprob: sure(ids, cached, logprob) if logprob is not None else answer(ids, cached),
    st.sampled_from([LONG, WRONG, LONG[:3], ()]),
    st.sampled_from([None, 0, 16, 64]),
    st.sampled_from([None, -0.01, -0.5, -3.0]),
)


@given(
    st.builds(
        Runs,
        reuse=st.lists(ANSWERS, min_size=1, max_size=3).map(tuple),
        bypass=st.lists(ANSWERS, min_size=2, max_size=3).map(tuple),
        variations=st.lists(
            st.builds(Variation, reuse=ANSWERS, bypass=st.tuples(ANSWERS, ANSWERS)), max_size=3
        ).map(tuple),
        warmed=st.booleans(),
    )
)  # fmt: skip
def test_nobody_is_cleared_or_accused_without_evidence(given: Runs) -> None:
    told = judge(given)
    if told.outcome is Outcome.INCONCLUSIVE:
        assert told.reason not in (Reason.EQUAL, Reason.DIVERGES, Reason.DIVERGES_ALWAYS)
        return
    assert all(one.cached_tokens == 0 for one in given.bypass)  # the baseline is known to have been computed
    if told.outcome is Outcome.NOT_IMPLICATED:
        assert all(one.cached_tokens is not None for one in given.reuse)
        assert any(one.cached_tokens for one in given.reuse)
        assert given.warmed or given.reuse[0].cached_tokens
        assert not wants_variations(given)
    else:
        assert told.position is not None
        assert not any(one.token_ids == given.bypass[0].token_ids and one.cached_tokens for one in given.reuse)


def test_every_reason_has_words() -> None:
    class Scripted:
        bypass, declines, hidden, varies = "a flag", "no flag.", "Turn it on.", True

        def __init__(self, first: Runs) -> None:
            self._left = {True: list(first.reuse), False: list(first.bypass)}

        def ask(self, *, reuse: bool, variation: int = 0) -> Answer:
            return self._left[reuse].pop(0)

    made = run_bypass_diff(Scripted(runs([answer(cached=64)] * 2)))
    assert made.diff.outcome is Outcome.NOT_IMPLICATED
    for reason in Reason:
        changed = msgspec.structs.replace(made, diff=msgspec.structs.replace(made.diff, reason=reason))
        told = tell_diff(changed, bypass="a flag", hidden="Turn it on.", declines="no flag.")
        assert told.happened and told.steps
        assert "{" not in " ".join((*told.happened, *told.steps))


def test_a_first_miss_is_followed_by_as_many_that_can_hit() -> None:
    asked: list[bool] = []

    class Cold:
        bypass, declines, hidden, varies = "a flag", "", "", True

        def ask(self, *, reuse: bool, variation: int = 0) -> Answer:
            asked.append(reuse)
            return answer(cached=64 if reuse and asked.count(True) > 1 else 0)

    made = run_bypass_diff(Cold())
    assert asked.count(True) == 3
    assert made.diff.reason == Reason.ONLY_OWN_ENTRY
    with pytest.raises(ValueError, match="at least two controls"):
        run_bypass_diff(Cold(), controls=1)


@pytest.mark.parametrize(
    ("form", "request_", "asked", "outcome", "reason"),
    [
        (GENERATE, {"input_ids": [1, 2, 3]}, 5, "inconclusive", "margin_unknown"),
        (VLLM, {"messages": [{"role": "system", "content": "Be kind."}]}, 5, "inconclusive", "margin_unknown"),
        (GENERATE, {"text": "a question"}, 14, "implicated", "diverges_in_every_variation"),
    ],
)
def test_the_same_request_three_times_is_no_other_wording(
    form: Form, request_: Document, asked: int, outcome: str, reason: str
) -> None:
    """Token ids cannot be made longer by words, nor can a conversation in which no user speaks."""
    asked_for: list[Document] = []

    def ask(document: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[Document, float]:
        asked_for.append(dict(document))
        said, cached = ("right " * 20, 0) if "cache_salt" in document else ("wrong " * 20, 64)
        usage = {"prompt_tokens": 80, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": cached}}
        meta = {"cached_tokens": cached, "prompt_tokens": 80}
        choice = {"message": {"content": said}, "finish_reason": "stop"}
        return {"text": said, "meta_info": meta, "choices": [choice], "usage": usage}, 0.1

    made = run_bypass_diff(EndpointTarget(form, ask, request_, tokens=32))
    assert (made.diff.outcome, made.diff.reason) == (outcome, reason)
    assert len(asked_for) == asked
