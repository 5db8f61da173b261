"""What comes late, is missing for a while, or was let go long ago changes no verdict that it has no part in."""

from collections.abc import Sequence

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import History, as_batch
from kvtrail.schemas.events import Event
from kvtrail.schemas.findings import Finding

from .cases import causes, scenario


def late(lines: Sequence[str], which: int) -> str:
    """The same history with one of its lines arriving last but one."""
    kept = [line for at, line in enumerate(lines) if at != which]
    return "\n".join((*kept[:-1], lines[which], kept[-1]))


def test_a_life_that_is_long_over_is_no_nearer_for_a_gap() -> None:
    lines = [
        "n1:1 create K acme {ver=1} t=0",
        "n1:2 expire K - {ver=1} t=10",
        "n1:3 create X acme t=11",
        "n1:4 create K acme {ver=2} t=100",
        "n1:5 expire K - {ver=2} t=200",
        "n1:6 create K acme {ver=3} t=300",
        "n1:7 hit K acme {ver=1} t=301",
        "n1:8 hit K acme {ver=2} t=302",
        "n1:9 hit X acme t=303",
    ]
    assert causes("\n".join(lines)) == causes(late(lines, 2)) == ["n1:8 HIT_AFTER_EXPIRE high"]


def test_a_create_that_comes_late_is_older_than_what_replaced_it() -> None:
    lines = [
        "n1:1 create K acme {payload=P1}",
        "n1:2 create K acme {payload=P2}",
        "n1:3 create K acme {payload=P3}",
        "n1:4 hit K acme {payload=P3}",
        "n1:5 expire K -",
        "n1:6 hit K acme {payload=P3}",
    ]
    expected = ["n1:6 HIT_AFTER_EXPIRE high"]
    assert causes("\n".join(lines)) == expected
    assert [causes(late(lines, which)) for which in range(1, 4)] == [expected] * 3


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("expire K - {reason=ttl}", "HIT_AFTER_EXPIRE medium"),
        ("expire K - {reason=restart}", "HIT_AFTER_EXPIRE high"),
        ("expire K - {reason=capacity}", "HIT_AFTER_EXPIRE high"),
        ("invalidate K -", "HIT_AFTER_INVALIDATE high"),
        ("fail K - {preempted}", "HIT_UNCOMMITTED high"),
    ],
)
def test_an_end_holds_when_what_came_before_it_is_told_later(end: str, expected: str) -> None:
    lines = ["n1:1 create K acme {state=pending}", "n1:2 commit K -", f"n1:3 {end}", "n1:4 hit K acme"]
    assert causes("\n".join(lines)) == causes(late(lines, 1)) == [f"n1:4 {expected}"]


def test_an_entry_that_lives_outlasts_an_earlier_life_that_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.judging.ledger.addresses._ENDED_KEPT", 0)  # as if ten thousand had ended since
    history = """
    n1:1 create K acme t=0
    n1:2 expire K - t=1
    n1:3 create K acme t=2
    n1:4 create X acme t=3
    n1:5 expire X - t=100
    n1:6 hit K acme t=101
    n1:7 expire K - t=102
    n1:8 hit K acme t=103
    """
    assert causes(history, horizon_s=60) == ["n1:8 HIT_AFTER_EXPIRE high"]


def test_every_entry_that_lives_at_a_key_outlasts_a_sweep() -> None:
    hours = "\n".join(f"n1:{4 + hour} hit K acme {{iso=sA}} t={3600 * hour}" for hour in range(1, 9))
    history = f"""
    n1:1 create K acme {{iso=sA}} t=0
    n1:2 create K acme {{iso=sB}} t=1
    n1:3 create K acme {{iso=sC}} t=2
    n1:4 expire K acme {{iso=sC}} t=3
    {hours}
    n1:13 hit K acme {{iso=sA}} t=28801
    n1:14 hit K acme {{iso=sB}} t=28802
    """
    parsed = scenario(history, horizon_s=3600)
    judge = Judge(parsed.settings, "d", FactBook())
    found: list[Finding] = []
    for _, record in parsed.steps:
        assert isinstance(record, Event)
        found += judge.batch(as_batch(record), record.time_us)
    assert {finding.cause for finding in found} == {"KEY_UNDERSPECIFIED"}  # of the creates
    assert len(list(judge.homes["n:n1"].addresses)) == 2  # it was swept: the one that ended is gone


def test_what_is_missing_after_a_hit_excuses_nothing_when_what_was_missing_before_it_comes() -> None:
    history = "n1:1 create K acme\nn1:3 hit K9 acme\nn1:5 hit K acme"
    assert causes(history) == ["n1:3 UNATTRIBUTED_HIT low", "n1:3 STREAM_GAP medium"]
    assert "n1:3 HIT_UNKNOWN_ENTRY high" in causes(f"{history}\nn1:2 expire K9 -")


def test_what_was_seen_before_a_gap_was_given_up_is_seen() -> None:
    history = """
    n1:1 create K acme t=0
    n1:3 hit K acme t=1
    n1:5 hit K acme t=2
    n1:7 create L acme t=3
    n1:8 hit K acme t=90
    n1:9 hit L acme t=91
    n1:7 create L acme t=3
    n1:10 hit L acme t=92
    """
    parsed = scenario(history, horizon_s=60)
    taken = History(parsed.settings)
    for _, record in parsed.steps:
        taken.take(record)
    assert [(one.cause, one.title) for one in taken.final.values()] == [("STREAM_GAP", "3 event(s) missing: 3, 5, 7")]
    assert taken.judge.stats()["duplicates"] == 1


def test_a_handle_is_as_stale_however_many_owners_its_place_had_later() -> None:
    lines = [
        "n1:1 create A acme {loc=b#g1}",
        "n1:2 expire A -",
        "n1:3 create X acme",
        "n1:4 create B acme {loc=b#g2, in=I2}",
        "n1:5 hit A acme {loc=b#g1}",
    ]
    for number, key in enumerate("CDEFG"):
        lines += [f"n1:{6 + 2 * number} expire {chr(ord(key) - 1)} -"]
        lines += [f"n1:{7 + 2 * number} create {key} acme {{loc=b#g{3 + number}, in=I{key}}}"]
    lines += ["n1:16 hit X acme"]
    assert causes("\n".join(lines)) == causes(late(lines, 2)) == ["n1:5 STALE_HANDLE high"]


def test_an_invalidation_shortly_before_a_hit_of_another_node() -> None:
    history = """
    n1:1 create K acme {{tier=l3}} t=0
    n1:2 invalidate * - {{tier=l3, scope=store}} t=100
    n2:1 hit K acme {{tier=l3}} t={}
    """
    assert causes(history.format(104), skew_s=5) == []
    assert causes(history.format(106), skew_s=5) == ["n2:1 HIT_AFTER_INVALIDATE high"]


def test_what_an_invalidation_swept_away_long_ago_excuses_no_wrong_bytes() -> None:
    history = """
    n1:1 create K acme {tier=l3, payload=P1} t=0
    n1:2 invalidate * - {tier=l3, scope=store} t=50
    n1:3 create K acme {tier=l3, payload=P2} t=499
    n2:1 hit K acme {tier=l3, payload=P1} t=500
    """
    assert causes(history, skew_s=5) == ["n2:1 PAYLOAD_MISMATCH high"]
