"""Margins of the rules: the last case that is silent and the first that is not."""

import pytest
from kvtrail.judging.offline import judge_history
from kvtrail.schemas.events import Create, Event, Hit
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.identity import Identity

from .cases import causes, scenario


def found(history: str) -> list[Finding]:
    parsed = scenario(history)
    return judge_history([record for _, record in parsed.steps], parsed.settings)


@pytest.mark.parametrize(
    ("scope", "ended"),
    [("scope=principal:ann", ["ann"]), ("scope=principal:bob", ["bob"]), ("in=I1", ["ann", "bob"]), ("in=I2", [])],
)
def test_an_invalidation_of_a_principal_or_of_content_ends_what_is_theirs(scope: str, ended: list[str]) -> None:
    history = (
        f"n1:1 create K1 acme {{who=ann}}\nn1:2 create K2 acme {{who=bob}}\nn1:3 create K3 acme {{in=I3}}\n"
        f"n1:4 invalidate * - {{{scope}, outcome=done}}\nn1:5 hit K1 acme {{who=ann}}\nn1:6 hit K2 acme {{who=bob}}\n"
        "n1:7 hit K3 acme {in=I3}"
    )
    at = {"ann": "n1:5", "bob": "n1:6"}
    assert causes(history) == [f"{at[who]} HIT_AFTER_INVALIDATE high" for who in ended]


@pytest.mark.parametrize("algorithm", ["hmac-1", "sha512"])
def test_digests_of_another_form_are_compared_and_leave_the_rest_readable(algorithm: str) -> None:
    def digest(letter: str) -> str:
        return f"{algorithm}:{letter * 64}"

    def event(seq: int, body: Create | Hit, tokens: str, request_id: str) -> Event:
        return Event(
            node="n1", incarnation="i1", home="n:n1", seq=seq, time_us=seq, body=body, store="a", key="K",
            request_id=request_id, identity=Identity(tenant_id="acme", token_ids_digest=tokens),
        )  # fmt: skip

    for tokens in ("a" * 64, digest("a")):
        for payload in ("c" * 64, digest("c")):
            made = event(1, Create(payload_digest=payload), tokens, "made")
            right = event(2, Hit(payload_digest=payload), tokens, "right")
            other = payload.replace("c" * 64, "d" * 64)
            bytes_ = event(3, Hit(payload_digest=other), tokens, "bytes")
            content = event(4, Hit(payload_digest=payload), tokens.replace("a" * 64, "b" * 64), "content")
            one, two = judge_history([made, right, bytes_, content])
            assert (one.subject, one.cause) == (bytes_.id, "PAYLOAD_MISMATCH")
            assert (two.subject, two.cause) == (content.id, "KEY_COLLISION")
            for finding, reader in ((one, "bytes"), (two, "content")):
                assert finding.creator is not None and finding.requester is not None
                assert (finding.creator.request_id, finding.requester.request_id) == ("made", reader)


def test_a_generation_that_nobody_told_is_none() -> None:
    lines = "n1:1 create K acme {loc=b1}\nn1:2 hit K acme {loc=b1#g0}\nn1:3 expire K - {loc=b1#g7}\nn1:4 hit K acme"
    assert causes(lines) == ["n1:4 HIT_AFTER_EXPIRE high"]


@pytest.mark.parametrize(
    ("field", "cause"), [("tok=T2", "TOKENIZER_MISMATCH"), ("tools=X", "TOOLS_MISMATCH"), ("in=I2", "KEY_COLLISION")]
)
def test_a_template_that_was_published_explains_nothing_else(field: str, cause: str) -> None:
    lines = (
        "r:1 registry template chat {digest=d1}\nn1:1 create K acme {kind=response}\n"
        f"n1:2 hit K acme {{kind=response, {field}}}"
    )
    (one,) = found(lines)
    assert (one.cause, one.facts) == (cause, ())


@pytest.mark.parametrize(
    ("made", "read", "expected"),
    [
        ("version=1", "version=2", ["n1:2 ALLOWED_STALENESS info"]),
        ("version=1", "version=3", ["n1:2 WEIGHTS_MISMATCH high"]),
        ("version=3", "version=2", ["n1:2 WEIGHTS_MISMATCH high"]),
        ("", "version=2", ["n1:2 WEIGHTS_MISMATCH high"]),
        ("version=1", "", ["n1:2 WEIGHTS_MISMATCH high"]),
        ("version=1", "version=2, who=bob", ["n1:2 WEIGHTS_MISMATCH high"]),
        ("version=1", "version=2, iso=sB", ["n1:2 WEIGHTS_MISMATCH critical"]),
    ],
)
def test_policy_accepts_a_lag_that_is_known_and_is_all_that_differs(made: str, read: str, expected: list[str]) -> None:
    lines = (
        "r:1 registry policy acme {max_lag=1}\n"
        f"n1:1 create K acme {{weights=W1, who=ann, {made}}}\nn1:2 hit K acme {{weights=W2, who=ann, {read}}}"
    )
    assert causes(lines) == expected


@pytest.mark.parametrize(("read", "expected"), [(8, []), (10, []), (14, []), (15.1, ["n2:1 AGE_EXCEEDED medium"])])
def test_an_age_between_nodes_counts_from_the_skew_on(read: float, expected: list[str]) -> None:
    lines = (
        "n1:1 create R acme {kind=response, tier=l3, maxage=0} t=10\n"
        f"n2:1 hit R acme {{kind=response, tier=l3}} t={read}"
    )
    assert causes(lines, skew_s=5) == expected


@pytest.mark.parametrize(
    ("epoch", "time", "expected"),
    [
        (8, 19, []),  # not yet
        (8, 20, ["n1:2 STALE_EPOCH high"]),  # the requester had heard of the bump
        (8, 24, ["n1:2 STALE_EPOCH high"]),
        (7, 20, []),  # it need not have, as far as clocks can tell
        (7, 24, []),
        (7, 26, ["n1:2 STALE_EPOCH high"]),
    ],
)
def test_a_bump_holds_for_who_has_heard_of_it_and_beyond_the_skew_for_all(
    epoch: int, time: int, expected: list[str]
) -> None:
    lines = (
        "n1:1 create K acme {epoch=7} t=0\nr:1 registry epoch bump {epoch=8} t=20\n"
        f"n1:2 hit K acme {{epoch={epoch}}} t={time}"
    )
    assert causes(lines, skew_s=5) == expected


@pytest.mark.parametrize(("mine", "theirs"), [("acme", "-"), ("-", "acme")])
def test_a_place_of_nobody_known_is_not_another_tenants(mine: str, theirs: str) -> None:
    lines = (
        f"n1:1 create A {mine} {{loc=b#g1}}\nn1:2 expire A -\nn1:3 create B {theirs} {{loc=b#g2}}\n"
        f"n1:4 hit A {mine} {{loc=b#g1}}"
    )
    assert causes(lines) == ["n1:4 STALE_HANDLE high"]


@pytest.mark.parametrize(
    ("tokens", "loaded", "wrong"),
    [
        (50, 50, False),
        (50, 60, False),
        (50, 49, True),
        (0, 50, True),
        (100, 50, True),
        (120, 50, True),
        (50, 120, True),
    ],
)
def test_half_of_the_tokens_need_half_of_the_bytes(tokens: int, loaded: int, wrong: bool) -> None:
    lines = f"n1:1 create K acme {{tokens=100, bytes=100}}\nn1:2 hit K acme {{tokens={tokens}, loaded={loaded}}}"
    assert causes(lines) == (["n1:2 PAYLOAD_MISMATCH high"] if wrong else [])


def test_a_foreign_part_is_named_by_what_matters_most() -> None:
    lines = (
        "n1:1 create K acme {part=self}\nn1:2 create X acme {part=cross, weights=W2, in=I2}\n"
        "n1:3 hit K acme {part=self, req=r}\nn1:4 hit X acme {part=cross, req=r}\nn1:5 request_end acme {req=r}"
    )
    (one,) = found(lines)
    assert (one.cause, one.dimension) == ("COMPONENT_MISMATCH", "weights_digest")
    assert [difference.dimension for difference in one.differing] == ["weights_digest", "token_ids_digest"]
