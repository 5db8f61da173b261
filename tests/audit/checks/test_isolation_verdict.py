"""Reported tokens decide; latencies cast doubt, and clear nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.audit.checks.answers import Answer
from kvtrail.audit.checks.isolation_verdict import Isolation, Pair, Why, judge_isolation, measure
from kvtrail.audit.checks.isolation_words import tell_probe
from kvtrail.audit.checks.permutation import faster_by_chance, median

from .asking import FORMS, Patience, probe
from .stub import Behaviour, Stub

FIRST, REPEAT, CROSS, COLD = 0.100, 0.010, 0.100, 0.100


def pair(
    cached: tuple[int | None, int | None, int | None, int | None] = (0, 96, 0, 0),
    seconds: tuple[float, float, float, float] = (FIRST, REPEAT, CROSS, COLD),
    prompt: int | None = 100,
) -> Pair:
    made = [
        Answer(text="", cached_tokens=tokens, prompt_tokens=prompt, seconds=took)
        for tokens, took in zip(cached, seconds, strict=True)
    ]
    return Pair(first=made[0], repeat=made[1], cross=made[2], cold=made[3])


@pytest.mark.parametrize(
    ("pairs", "policy", "isolation", "why"),
    [
        ([pair()] * 5, "partitioned", "held", "reported_miss"),
        ([pair((0, 96, 96, 0))] * 5, "partitioned", "broken", "reported_hit"),
        ([pair(), pair((0, 96, 96, 0))], "partitioned", "broken", "reported_hit"),
        ([pair((0, 96, 96, 0))] * 5, "shared", "allowed", "reported_hit"),
        ([pair()] * 5, "shared", "held", "reported_miss"),
        ([pair((0, 0, 0, 0))] * 5, "partitioned", "inconclusive", "repeat_missed"),
        ([pair(), pair((0, 0, 0, 0))], "partitioned", "inconclusive", "repeat_missed"),
        ([pair((0, 0, 96, 0))] * 2, "partitioned", "broken", "reported_hit"),
        ([pair((None, 96, 0, 0))] * 5, "partitioned", "inconclusive", "cached_tokens_hidden"),
        ([pair((0, 96, None, 0))] * 5, "partitioned", "inconclusive", "cached_tokens_hidden"),
        ([pair((99, 99, 99, 99))] * 5, "partitioned", "inconclusive", "impossible_reuse"),
        ([pair((16, 96, 16, 16))] * 5, "partitioned", "held", "reported_miss"),  # a chat template's own front
        ([pair((16, 96, 32, 16))] * 5, "partitioned", "broken", "reported_hit"),
        ([pair(seconds=(FIRST, REPEAT, REPEAT, COLD))] * 5, "partitioned", "inconclusive", "timing_disagrees"),
        ([pair(seconds=(FIRST, REPEAT, REPEAT, COLD))] * 5, "shared", "held", "reported_miss"),
        ([pair(seconds=(FIRST, REPEAT, REPEAT, COLD))] * 4, "partitioned", "held", "reported_miss"),  # too few to tell
        ([pair((None,) * 4, (FIRST, REPEAT, COLD, COLD))] * 16, "partitioned", "inconclusive", "cached_tokens_hidden"),
    ],
)  # fmt: skip
def test_what_is_said(pairs: list[Pair], policy: str, isolation: str, why: str) -> None:
    told = judge_isolation(pairs, policy)  # type: ignore[arg-type]  # a parameter's text is a policy
    assert (told.isolation, told.why) == (isolation, why)
    assert tell_probe(told, trouble="", hidden="Turn it on.").steps


def test_timing_says_when_it_can_tell_nothing() -> None:
    timing = measure([pair(seconds=(FIRST, FIRST, CROSS, COLD))] * 5)
    assert not timing.able and not timing.suspicious
    told = tell_probe(
        judge_isolation([pair(seconds=(FIRST, FIRST, CROSS, COLD))] * 5, "partitioned"), trouble="", hidden=""
    )
    assert any("tell nothing here" in sentence for sentence in told.happened)


def test_the_test_is_exact() -> None:
    assert faster_by_chance([(1, 2)] * 5) == 1 / 32
    assert faster_by_chance([(1, 2)] * 4) == 1 / 16
    assert faster_by_chance([(2, 1)] * 5) == 1
    assert faster_by_chance([(1, 1)] * 5) == 1
    assert faster_by_chance([]) == 1
    assert faster_by_chance([(0, 3), (0, 2), (1, 0)]) == 2 / 8
    assert median([3, 1, 2]) == 2 and median([4, 1]) == 2.5 and median([]) == 0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=8))
def test_a_chance_is_one(pairs: list[tuple[float, float]]) -> None:
    forwards, backwards = faster_by_chance(pairs), faster_by_chance([(b, a) for a, b in pairs])
    assert 0 < forwards <= 1 and forwards + backwards >= 1


def test_every_reason_has_words() -> None:
    told = judge_isolation([pair()] * 5, "partitioned")
    for why in Why:
        from msgspec.structs import replace

        words = tell_probe(replace(told, why=why, isolation=Isolation.INCONCLUSIVE), trouble="", hidden="Turn it on.")
        assert words.happened and words.steps and "{" not in words.steps[0]


def test_a_hit_that_was_seen_stays_seen_where_later_answers_are_missing(stub: Stub) -> None:
    for shares, after, isolation, why in (
        (True, 5, "broken", "reported_hit"),
        (True, 2, "inconclusive", "server_failed"),
        (False, 5, "inconclusive", "server_failed"),
    ):
        stub.become(Behaviour(shares_across_tenants=shares, status=500, after=after))
        told = probe(stub, FORMS["vllm"], clock=Patience())
        assert (told.probe.isolation, told.probe.why, told.stopped) == (isolation, why, False)
        assert told.trouble


def test_a_probe_that_is_stopped_keeps_a_hit_it_has_seen_and_nothing_else(stub: Stub) -> None:
    class Stopping(Patience):
        def __init__(self, after: int) -> None:
            super().__init__()
            self.after = after

        def wait(self, seconds: float) -> bool:
            super().wait(seconds)
            return len(self.waited) > self.after

    for behaviour, after, isolation, why in (
        (Behaviour(), 5, "inconclusive", "stopped"),
        (Behaviour(shares_across_tenants=True), 5, "broken", "reported_hit"),
        (Behaviour(shares_across_tenants=True), 2, "inconclusive", "stopped"),
        (Behaviour(status=429, after=2, retry_after="1"), 2, "inconclusive", "stopped"),
    ):
        stub.become(behaviour)
        told = probe(stub, FORMS["vllm"], clock=Stopping(after))
        assert told.stopped
        assert (told.probe.isolation, told.probe.why) == (isolation, why)
