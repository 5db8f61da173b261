"""Edges of the ledger and the rules that small faults in them showed nobody was holding."""

import pytest
from kvtrail.judging.offline import judge_history
from kvtrail.schemas.events import Create, Event, Hit, Invalidate
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.identity import Identity

from .cases import causes, scenario

SHARED = "tier=l3"


def found(history: str) -> list[Finding]:
    parsed = scenario(history)
    return judge_history([record for _, record in parsed.steps], parsed.settings)


def evidence(history: str, cause: str) -> list[str]:
    """The lines that the one finding of a cause rests on."""
    parsed = scenario(history)
    findings = judge_history([record for _, record in parsed.steps], parsed.settings)
    (one,) = [finding for finding in findings if finding.cause == cause]
    return [parsed.labels[event_id] for event_id in one.evidence if event_id in parsed.labels]


def test_an_end_that_knows_a_generation_ends_the_entry_that_knows_none() -> None:
    lines = "n1:1 create K acme {loc=b1}\nn1:2 expire K - {loc=b1#g1}\nn1:3 hit K acme"
    assert causes(lines) == ["n1:3 HIT_AFTER_EXPIRE high"]
    other = "n1:1 create K acme {loc=b1#g2}\nn1:2 expire K - {loc=b1#g1}\nn1:3 hit K acme"
    assert causes(other) == []


def test_the_end_is_evidence() -> None:
    assert evidence("n1:1 create K acme\nn1:2 expire K -\nn1:3 hit K acme", "HIT_AFTER_EXPIRE") == [
        "n1:3",
        "n1:1",
        "n1:2",
    ]


def test_a_size_that_nobody_told_is_no_size() -> None:
    assert causes("n1:1 create K acme\nn1:2 hit K acme {loaded=10}\nn1:3 hit K acme {loaded=0}") == []
    kept = "n1:1 create K acme {state=pending}\nn1:2 commit K -\nn1:3 hit K acme {loaded=2}"
    assert causes(kept) == []


@pytest.mark.parametrize(
    ("made", "done", "read", "by", "expected"),
    [
        (0, 10, 60, "n1", ["n2:1 HIT_AFTER_INVALIDATE high"]),
        (0, 54, 60, "n1", ["n2:1 HIT_AFTER_INVALIDATE high"]),
        (0, 56, 60, "n1", []),  # inside the skew
        (20, 10, 60, "n1", []),  # made after it, by its own clock
        (0, 10, 60, "n2", []),  # the reader's own: order says enough
    ],
)
def test_an_invalidation_told_late_holds_by_the_clocks(
    made: int, done: int, read: int, by: str, expected: list[str]
) -> None:
    number = 2
    assert (
        causes(
            f"n1:1 create K acme {{{SHARED}}} t={made}\nn2:1 hit K acme {{{SHARED}}} t={read}\n"
            f"{by}:{number} invalidate * - {{scope=store, {SHARED}, outcome=done}} t={done}",
            skew_s=5,
        )
        == expected
    )


def test_a_create_from_the_future_is_no_candidate_where_there_is_another() -> None:
    assert causes(
        f"n1:1 create K acme {{in=I1, {SHARED}}} t=0\nn3:1 create K acme {{in=I2, {SHARED}}} t=1000\n"
        f"n2:1 hit K acme {{in=I1, {SHARED}}} t=10"
    ) == ["n3:1 KEY_UNDERSPECIFIED medium"]


def test_a_hit_that_names_no_copy_is_found_among_many() -> None:
    lines = "\n".join(f"n1:{n} create K acme {{copy={copy}}}" for n, copy in ((1, "a"), (2, "b"), (3, "c")))
    assert causes(f"{lines}\nn1:4 hit K acme\nn1:5 hit K acme {{weights=W2}}") == ["n1:5 WEIGHTS_MISMATCH high"]


def test_the_last_owner_of_a_place_is_the_other_party() -> None:
    lines = (
        "n1:1 create A acme {loc=b#g1}\nn1:2 expire A -\nn1:3 create B acme {loc=b#g2, in=I2}\n"
        "n1:4 create C acme {loc=b#g3, in=I3}"
    )
    assert evidence(lines, "PLACE_CONFLICT") == ["n1:4", "n1:3"]


def test_a_large_generation_is_compared_by_value() -> None:
    lines = "n1:1 create A acme {loc=b#g70000}\nn1:2 hit A acme {loc=b#g70000}"
    assert causes(lines) == []
    assert causes(f"{lines}\nn1:3 hit A acme {{loc=b#g69999}}") == ["n1:3 STALE_HANDLE high"]


def test_the_readers_own_clock_says_an_age() -> None:
    lines = "n1:1 create R acme {kind=response, maxage=600} t=0\nn1:2 hit R acme {kind=response, age=601} t=1\n"
    assert causes(lines) == ["n1:2 AGE_EXCEEDED medium"]
    assert causes(lines.replace("601", "600")) == []
    assert "601 s old" in found(lines)[0].title


@pytest.mark.parametrize(("bumped", "expected"), [("azure", True), ("red", True), ("blue", False)])
def test_an_epoch_that_is_a_word_is_another_or_the_same(bumped: str, expected: bool) -> None:
    lines = (
        "n1:1 create K0 beta {in=I0} t=0\nn1:2 create K acme {epoch=blue} t=1\n"
        f"r:1 registry epoch bump {{epoch={bumped}}} t=20\nn1:3 hit K acme {{epoch={bumped}}} t=40"
    )
    assert causes(lines) == (["n1:3 STALE_EPOCH high"] if expected else [])


@pytest.mark.parametrize(("mine", "theirs"), [("sA", "sB"), ("sB", "sA"), ("sC", "sD"), ("sD", "sC")])
def test_bytes_of_another_domain_are_critical(mine: str, theirs: str) -> None:
    lines = (
        f"n1:1 create K1 acme {{iso={mine}, in=I1, payload=P1}}\n"
        f"n1:2 create K2 acme {{iso={theirs}, in=I2, payload=P2}}\n"
        f"n1:3 hit K1 acme {{iso={mine}, in=I1, payload=P2}}"
    )
    assert causes(lines) == ["n1:3 PAYLOAD_MISMATCH critical"]
    handle = (
        f"n1:1 create K1 acme {{iso={mine}, in=I1, loc=b#g1}}\nn1:2 expire K1 -\n"
        f"n1:3 create K2 acme {{iso={theirs}, in=I2, loc=b#g2}}\nn1:4 hit K1 acme {{iso={mine}, in=I1, loc=b#g1}}"
    )
    assert causes(handle) == ["n1:4 STALE_HANDLE critical"]


def test_bytes_of_ones_own_other_entry_are_not_critical() -> None:
    lines = (
        "n1:1 create K1 acme {in=I1, payload=P1}\nn1:2 create K2 acme {in=I2, payload=P2}\n"
        "n1:3 hit K1 acme {in=I1, payload=P2}"
    )
    assert causes(lines) == ["n1:3 PAYLOAD_MISMATCH high"]


def test_of_two_parts_that_disagree_the_later_is_named() -> None:
    lines = (
        "n1:1 create K acme {part=self, upto=1000}\nn1:2 create X acme {part=cross, upto=1000}\n"
        "n1:3 hit K acme {part=self, upto=1000, req=r}\nn1:4 hit X acme {part=cross, upto=900, req=r}\n"
        "n1:5 request_end acme {req=r}"
    )
    assert causes(lines) == ["n1:4 COMPONENT_MISMATCH high"]
    state = lines.replace("X acme {part=cross", "X acme {kind=state, part=cross").replace("upto=900", "upto=1000")
    state = state.replace("n1:3 hit K acme {part=self, upto=1000", "n1:3 hit K acme {part=self, upto=900")
    assert causes(state) == ["n1:4 COMPONENT_MISMATCH high"]


def test_what_ended_first_is_what_ended_it() -> None:
    lines = "n1:1 create K acme\nn1:2 invalidate * - {scope=node, outcome=done}\nn1:3 expire K -\nn1:4 hit K acme"
    assert causes(lines) == ["n1:4 HIT_AFTER_INVALIDATE high"]
    before = "n1:1 create K acme\nn1:2 expire K -\nn1:3 invalidate * - {scope=node, outcome=done}\nn1:4 hit K acme"
    assert causes(before) == ["n1:4 HIT_AFTER_EXPIRE high"]


def test_an_entry_that_was_replaced_does_not_come_back() -> None:
    lines = (
        "n1:1 create K acme {weights=W1}\nn1:2 create K acme {weights=W2, state=pending}\nn1:3 commit K -\n"
        "n1:4 expire K -\nn1:5 hit K acme {weights=W2}"
    )
    assert "n1:5 HIT_AFTER_EXPIRE high" in causes(lines)


def test_keys_that_begin_alike_are_other_keys() -> None:
    one, two = "ab" * 16 + "0" * 32, "ab" * 16 + "1" * 32
    assert causes(f"n1:1 create {one} acme\nn1:2 hit {one} acme\nn1:3 hit {two} acme") == [
        "n1:3 HIT_UNKNOWN_ENTRY high"
    ]


@pytest.mark.parametrize(("second", "third"), [("c2", "c3"), ("c3", "c2"), ("c4", "c5"), ("c5", "c4")])
def test_what_was_removed_after_the_state_that_was_asked_for_does_not_count(second: str, third: str) -> None:
    lines = (
        "r:1 registry corpus kb {digest=c1, change=add}\nn1:1 create R acme {kind=response, corpus=c1}\n"
        f"r:2 registry corpus kb {{digest={second}, change=add}}\n"
        f"r:3 registry corpus kb {{digest={third}, change=delete}}\n"
        f"n1:2 hit R acme {{kind=response, corpus={second}}}"
    )
    (one,) = found(lines)
    assert (one.severity.value, one.facts) == ("medium", ("r:2",))


def test_a_verdict_names_the_facts_of_its_own_dimension() -> None:
    lines = (
        "r:1 registry template chat {digest=d1}\nn1:1 create K acme {mm=H1, adapter=a@A1*1}\n"
        "n1:2 hit K acme {mm=H2, adapter=a@A1*1}\nn1:3 hit K acme {mm=H1, adapter=a@A2*1}"
    )
    assert [(one.cause, one.facts) for one in found(lines)] == [("MM_MISMATCH", ()), ("ADAPTER_MISMATCH", ())]


def test_an_age_is_the_time_between() -> None:
    lines = "n1:1 create R acme {kind=response, maxage=600} t=3\nn1:2 hit R acme {kind=response} t=1000"
    assert found(lines)[0].title == "997 s old, of at most 600 s"


@pytest.mark.parametrize(("mine", "theirs"), [("acme", "beta"), ("beta", "acme")])
def test_a_place_of_another_tenant_is_critical_whoever_it_is(mine: str, theirs: str) -> None:
    lines = (
        f"n1:1 create A {mine} {{loc=b#g1}}\nn1:2 expire A -\nn1:3 create B {theirs} {{loc=b#g2, in=I2}}\n"
        f"n1:4 hit A {mine} {{loc=b#g1}}"
    )
    assert causes(lines) == ["n1:4 STALE_HANDLE critical"]


@pytest.mark.parametrize(("place", "ended"), [("b1", True), ("a0", False), ("c9", False)])
def test_an_end_that_names_a_place_ends_what_is_there(place: str, ended: bool) -> None:
    lines = f"n1:1 create K acme {{loc=b1}}\nn1:2 expire K - {{loc={place}}}\nn1:3 hit K acme"
    assert causes(lines) == (["n1:3 HIT_AFTER_EXPIRE high"] if ended else [])


def test_what_a_finding_says_of_sizes_and_positions() -> None:
    (short, long) = found("n1:1 create K acme {bytes=100}\nn1:2 hit K acme {loaded=40}\nn1:3 hit K acme {loaded=140}")
    assert (short.title, short.reason) == ("read 40 bytes of an entry of 100", "short load")
    assert (long.title, long.reason) == ("read 140 bytes of an entry of 100", "too much was read")
    (moved,) = found("n1:1 create K acme {span=0-512}\nn1:2 hit K acme {span=640-1024}")
    assert moved.title == "tokens 0-512 were used for 640-1024"
    (part,) = found("n1:1 create K acme {part=attn, upto=1000}\nn1:2 hit K acme {part=attn, upto=1200}")
    assert part.title == "part attn covers 1000 tokens and was used for 1200"


def test_removed_and_brought_back_was_removed_all_the_same() -> None:
    lines = (
        "r:1 registry corpus kb {digest=c1, change=add}\nn1:1 create R acme {kind=response, corpus=c1}\n"
        "r:2 registry corpus kb {digest=c2, change=add}\nr:3 registry corpus kb {digest=c3, change=delete}\n"
        "r:4 registry corpus kb {digest=c2, change=add}\nn1:2 hit R acme {kind=response, corpus=c2}"
    )
    (one,) = found(lines)
    assert (one.severity.value, one.facts) == ("high", ("r:2", "r:3", "r:4"))


def test_the_policy_that_forbids_is_named() -> None:
    lines = (
        "r:1 registry policy acme {sharing=group, group=eu}\nr:2 registry policy beta {sharing=group, group=us}\n"
        "n1:1 create K acme\nn1:2 hit K beta"
    )
    assert [(one.cause, one.facts) for one in found(lines)] == [("CROSS_TENANT_REUSE", ("r:1",))]


def test_an_invalidation_of_one_store_leaves_the_other() -> None:
    def event(seq: int, body: Create | Hit | Invalidate, store: str) -> Event:
        return Event(
            node="n1", incarnation="i1", home="n:n1", seq=seq, time_us=seq, body=body, store=store, key="K",
            identity=Identity(tenant_id="acme"),
        )  # fmt: skip

    order = Invalidate(scope="store", outcome="done")
    events = [event(1, Create(), "a"), event(2, Create(), "b"), event(3, order, "a"), event(4, Hit(), "b")]
    assert judge_history(events) == []
    (one,) = judge_history([*events, event(5, Hit(), "a")])
    assert one.cause == "HIT_AFTER_INVALIDATE"


def test_what_else_differs_can_only_raise_the_severity() -> None:
    made = "n1:1 create K acme {kind=response, who=ann, mm=H1}\n"
    assert causes(made + "n1:2 hit K acme {kind=response, who=ann, mm=H1, tmpl=chat@d2, in=I2}") == [
        "n1:2 TEMPLATE_MISMATCH medium"
    ]
    assert causes(made + "n1:2 hit K acme {kind=response, who=ann, mm=H2, tmpl=chat@d2, in=I2}") == [
        "n1:2 TEMPLATE_MISMATCH high"
    ]
    assert causes(made + "n1:2 hit K acme {kind=response, who=bob, mm=H1, tmpl=chat@d2, in=I2}") == [
        "n1:2 TEMPLATE_MISMATCH high"
    ]


@pytest.mark.parametrize(("asked", "expected"), [(512, []), (511, []), (513, ["n1:2 COMPONENT_MISMATCH high"])])
def test_a_part_reaches_as_far_as_it_was_computed(asked: int, expected: list[str]) -> None:
    history = f"n1:1 create K acme {{part=attn, upto=512}}\nn1:2 hit K acme {{part=attn, upto={asked}, req=r1}}"
    assert causes(history) == expected
    if expected:
        assert found(history)[0].title == "part attn covers 512 tokens and was used for 513"


@pytest.mark.parametrize(("loaded", "reason"), [(50, "short load"), (0, "short load"), (101, "too much was read")])
def test_a_size_that_is_wrong_says_in_which_way(loaded: int, reason: str) -> None:
    (one,) = found(f"n1:1 create K acme {{bytes=100}}\nn1:2 hit K acme {{loaded={loaded}}}")
    assert (one.cause, one.severity.value, one.reason) == ("PAYLOAD_MISMATCH", "high", reason)


def test_bytes_of_nobody_known_are_not_another_tenants() -> None:
    history = "n1:1 create K1 acme {payload=P1}\nn1:2 create K2 - {payload=P2}\nn1:3 hit K1 acme {payload=P2}"
    assert causes(history) == ["n1:3 PAYLOAD_MISMATCH high"]


@pytest.mark.parametrize("reason", ["ttl", "lease", "demoted", "capacity", "restart"])
def test_an_end_that_names_its_domain_ends_it_whatever_the_reason(reason: str) -> None:
    history = (
        f"n1:1 create K acme {{iso=sA}}\nn1:2 expire K acme {{iso=sA, reason={reason}}}\nn1:3 hit K acme {{iso=sA}}"
    )
    severity = "medium" if reason == "ttl" else "high"
    assert causes(history) == [f"n1:3 HIT_AFTER_EXPIRE {severity}"]


def test_a_barrier_that_came_late_leaves_what_was_made_and_ended_after_it() -> None:
    history = (
        "n1:1 create K acme\nn1:3 expire K -\nn1:4 create K acme\nn1:5 hit K acme\nn1:6 expire K -\n"
        "n1:2 invalidate * -\nn1:7 hit K acme"
    )
    assert evidence(history, "HIT_AFTER_EXPIRE") == ["n1:7", "n1:4", "n1:6"]
