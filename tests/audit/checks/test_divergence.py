"""Where two answers part, and how sure the model was: what is noise and what is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.audit.checks.answers import Answer, Step
from kvtrail.audit.checks.divergence import NEAR_TIE, Comparison, common_basis, compare


def step(token: str, logprob: float, **top: float) -> Step:
    return Step(token, logprob, tuple(top.items()))


def answer(*steps: Step, ids: bool = True) -> Answer:
    return Answer(
        text=" ".join(one.token for one in steps),
        token_ids=tuple(sum(map(ord, one.token)) for one in steps) if ids else None,
        steps=steps,
    )


SURE = step("a", -0.01, a=-0.01, b=-5.0)


def test_equal_answers_do_not_part() -> None:
    told = compare(answer(SURE, SURE), answer(SURE, SURE), "token ids")
    assert told == Comparison(basis="token ids", agreed=2, drift=0.0)


def test_a_near_tie_is_one_where_both_had_it_so() -> None:
    one, other = answer(SURE, step("x", -0.70, x=-0.70, y=-0.75)), answer(SURE, step("y", -0.69, y=-0.69, x=-0.80))
    told = compare(one, other, "tokens")
    assert (told.position, told.near_tie, told.material) == (1, True, False)
    assert told.margin == pytest.approx(0.11)


def test_one_side_that_was_sure_is_enough() -> None:
    one, other = answer(SURE, step("x", -0.70, x=-0.70, y=-0.75)), answer(SURE, step("y", -0.01, y=-0.01, x=-6.0))
    assert compare(one, other, "tokens").material


def test_a_token_that_is_not_listed_is_behind_all_that_are() -> None:
    one, other = answer(step("x", -0.8, x=-0.8, y=-1.6)), answer(step("z", -0.8, z=-0.8, w=-1.7))
    told = compare(one, other, "tokens")
    assert told.material and told.margin == pytest.approx(0.9)


def test_what_the_chosen_token_left_bounds_the_others_where_none_are_listed() -> None:
    told = compare(answer(step("x", math.log(0.9))), answer(step("y", math.log(0.5))), "tokens")
    assert told.margin == pytest.approx(math.log(0.9 / 0.1))
    told = compare(answer(step("x", math.log(0.5))), answer(step("y", math.log(0.5))), "tokens")
    assert told.margin is None  # nothing says how far either was behind: that is not a near tie


def test_an_answer_that_ends_earlier_parts_there() -> None:
    told = compare(answer(SURE), answer(SURE, SURE), "token ids")
    assert (told.position, told.agreed, told.material) == (1, 1, True)


def test_without_log_probabilities_nobody_knows_how_sure_it_was() -> None:
    told = compare(Answer(text="a b c"), Answer(text="a b d"), "text")
    assert (told.basis, told.position, told.margin, told.near_tie, told.material) == ("text", 4, None, False, False)
    ids = Answer(text="", token_ids=(1, 2)), Answer(text="", token_ids=(1, 3))
    assert compare(*ids, "token ids").margin is None


def test_log_probabilities_that_do_not_line_up_with_the_ids_are_not_used() -> None:
    one = Answer(text="", token_ids=(1, 2, 3), steps=(SURE,))
    told = compare(one, Answer(text="", token_ids=(1, 2, 4), steps=(SURE,)), "token ids")
    assert (told.position, told.margin, told.drift) == (2, None, None)


def test_the_basis_is_what_all_have() -> None:
    with_ids, with_steps, bare = answer(SURE), answer(SURE, ids=False), Answer(text="a")
    assert common_basis([with_ids, with_ids]) == "token ids"
    assert common_basis([with_ids, with_steps]) == "tokens"
    assert common_basis([with_ids, bare]) == "text"


TOKENS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(-8, 0)), max_size=6)


@given(TOKENS, TOKENS)
def test_it_does_not_matter_which_comes_first(left: list[tuple[str, float]], right: list[tuple[str, float]]) -> None:
    one, other = (answer(*(step(token, value) for token, value in side)) for side in (left, right))
    assert compare(one, other, "tokens") == compare(other, one, "tokens")
    same = [token for token, _ in left] == [token for token, _ in right]
    told = compare(one, other, "tokens")
    assert (told.position is None) == same
    assert not (told.near_tie and told.material)
    assert told.margin is None or (told.margin <= NEAR_TIE) == told.near_tie
