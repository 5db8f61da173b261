"""What is remembered of a request's parts: no more than can be compared, and the same in a judge that was restored."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.ledger import home
from kvtrail.judging.offline import as_batch
from kvtrail.judging.trial import Trial
from kvtrail.schemas.events import Create, Event, Hit, RequestEnd
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.identity import Identity

from .cases import causes
from .test_aging import SETTINGS, Fleet

OWN = Identity(tenant_id="acme", token_ids_digest=f"{1:064x}")
FOREIGN = Identity(tenant_id="globex", token_ids_digest=f"{2:064x}")


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "PARTS_KEPT", 4)


def parts(fleet: Fleet, wrong: int, count: int = 10, node: str = "n", tier: str = "gpu") -> Iterator[Event]:
    """A request that is served so many parts, of which one is another tenant's."""
    for n in range(count):
        part = "self" if n % 2 else "cross"
        made_by = FOREIGN if n == wrong else OWN
        yield fleet.emit(node, "i", Create(tokens=64), f"k{n}", tier, identity=made_by, part=part)
    for n in range(count):
        part = "self" if n % 2 else "cross"
        hit = Hit(reused_tokens=64)
        yield fleet.emit(node, "i", hit, f"k{n}", tier, identity=OWN, part=part, request_id="r")


def judged(judge: Judge, events: Iterator[Event]) -> list[Finding]:
    return [one for event in events for one in judge.batch(as_batch(event), event.time_us)]


def fresh() -> Judge:
    return Judge(SETTINGS, "d", FactBook())


@pytest.mark.parametrize("wrong", [0, 5, 9])
def test_parts_beyond_the_bound_are_let_go_and_counted(wrong: int) -> None:
    judge = fresh()
    (*_, last) = judged(judge, parts(Fleet(), wrong))
    assert (last.cause, last.status) == ("COMPONENT_MISMATCH", "open"), "the verdict stands, also of what is let go"
    (only,) = judge.homes.values()
    assert [one.event.key for one in only.requests["r"]] == ["k6", "k7", "k8", "k9"]
    assert len(only.all_held()) == 4, "what is let go is final"
    assert judge.counts["parts_left_out"] == 6


def test_what_is_let_go_for_want_of_room_is_beside_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "HELD_KEPT", 2)
    judge = fresh()
    judged(judge, parts(Fleet(), -1))
    (only,) = judge.homes.values()
    assert [one.event.key for one in only.requests["r"]] == ["k8", "k9"]


@pytest.mark.parametrize("held", [2, 3, 100])
@pytest.mark.parametrize("tier", ["gpu", "shared"])
def test_a_restored_judge_compares_with_the_same_parts(held: int, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "HELD_KEPT", held)
    facts = FactBook()
    straight, restored = Judge(SETTINGS, "d", facts), Judge(SETTINGS, "d", facts)
    for event in parts(Fleet(), 3, tier=tier):
        assert judged(straight, iter([event])) == judged(restored, iter([event]))
        restored = Judge.load(restored.dump(), SETTINGS, "d", facts)
        assert restored.dump() == straight.dump()


def test_only_parts_that_another_may_change_are_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    once = Trial.judge

    def counting(trial: Trial, *arguments: object) -> None:
        calls.append(str(arguments[-1]))
        once(trial, *arguments)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(Trial, "judge", counting)
    judged(fresh(), parts(Fleet(), -1))
    assert "another part of its request was judged" not in calls
    judged(fresh(), parts(Fleet(), 9))
    assert "another part of its request was judged" not in calls, "nobody came after it"
    judged(fresh(), parts(Fleet(), 6))
    assert calls.count("another part of its request was judged") == 2, "k7 and k9 are the other part, k8 is not"


SPANS = st.sampled_from(["", "0-64", "0-32"])
served = st.lists(
    st.tuples(
        st.sampled_from([("self", "kv"), ("cross", "kv"), ("ssm", "state")]),
        st.sampled_from([OWN, OWN, OWN, FOREIGN, None]),
        st.one_of(SPANS.map(lambda span: (span, span)), st.tuples(SPANS, SPANS)),
    ),
    min_size=2,
    max_size=7,
)


@given(served, st.permutations(range(14)), st.booleans())
def test_judging_only_those_again_finds_what_judging_all_again_finds(
    served: list[tuple[tuple[str, Any], Identity | None, tuple[str, str]]], order: list[int], creates_first: bool
) -> None:
    def run() -> list[Finding]:
        """Creates and hits of one request in any order."""
        fleet, judge, found = Fleet(), fresh(), list[Finding]()
        for at in sorted(order, key=lambda at: at % 2) if creates_first else order:
            number, is_hit = divmod(at, 2)
            if number >= len(served):
                continue
            (part, kind), creator, (covers, asked) = served[number]
            if is_hit:
                event = fleet.emit(
                    "n", "i", Hit(reused_tokens=64), f"k{number}", identity=OWN, part=part, kind=kind, span=asked,
                    request_id="r",
                )  # fmt: skip
            else:
                event = fleet.emit(
                    "n", "i", Create(tokens=64), f"k{number}", identity=creator, part=part, kind=kind, span=covers
                )  # fmt: skip
            found += judged(judge, iter([event]))
        return found + judged(judge, iter([fleet.emit("n", "i", RequestEnd(), request_id="r")]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "PARTS_KEPT", 256)
        few = run()
        patch.setattr(Trial, "concerned", Trial._siblings)
        assert run() == few


def test_a_state_that_came_first_is_named_when_the_part_beside_it_covers_more() -> None:
    lines = (
        "n1:1 create K acme {part=self, upto=1000}\nn1:2 create X acme {kind=state, part=ssm, upto=900}\n"
        "n1:3 hit X acme {kind=state, part=ssm, upto=900, req=r}\nn1:4 hit K acme {part=self, upto=1000, req=r}"
    )
    assert causes(lines) == ["n1:3 COMPONENT_MISMATCH high"]
