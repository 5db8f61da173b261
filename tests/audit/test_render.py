"""The terminal table, to the character, and what it does to hostile names, long keys and narrow screens."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.audit.history import History, Question, build_history
from kvtrail.audit.render import render_history, render_table
from kvtrail.audit.wording import span, table_keys
from kvtrail.judging.offline import judge_history
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.events import Commit, Create, Expire, Hit, Invalidate, NodeStart

from .samples import (
    CONTOSO,
    CREATE,
    FINDING,
    INCIDENT,
    NORTHWIND,
    WRONG_HIT,
    at,
    event,
    finding,
    identity,
    renamed,
)

GOLDEN = """\
2026-11-29, times in UTC
12:04:01 cache.create  key=9f3c1a…  tenant=northwind  template=support_v7  tokens=8992  ttl=300s
12:04:44 cache.hit     key=9f3c1a…  tenant=northwind  reused=8992
14:20:09 cache.hit     key=9f3c1a…  tenant=contoso    reused=8992   ← created by northwind: key does not cover tenant, template digest, token ids"""  # noqa: E501 - the line is the contract


def history() -> History:
    return build_history(Question(kind="request", value=WRONG_HIT.request_id), INCIDENT, [FINDING])


def test_table_has_the_shape_of_the_example() -> None:
    assert render_table(history()) == GOLDEN


def test_narrow_screens_break_between_columns_and_words() -> None:
    text = render_history(history(), width=80)
    assert max(map(len, text.splitlines())) <= 80
    table = text.split("\n\n")[0].splitlines()
    assert table[3] == "12:04:44 cache.hit     key=9f3c1a…  tenant=northwind  reused=8992"
    assert table[4:] == [
        "14:20:09 cache.hit     key=9f3c1a…  tenant=contoso    reused=8992",
        "         ← created by northwind: key does not cover tenant, template digest,",
        "           token ids",
    ]


def test_rows_of_several_days_carry_their_date() -> None:
    late = renamed(WRONG_HIT, time_us=at("00:00:01", "2026-11-30"))
    lines = render_table(build_history(Question(kind="recording"), [CREATE, late], [])).splitlines()
    assert lines[0] == "times in UTC"
    assert lines[1].startswith("2026-11-29 12:04:01 cache.create")
    assert lines[2].startswith("2026-11-30 00:00:01 cache.hit")


def test_colour_only_when_asked_for() -> None:
    assert "\x1b" not in render_history(history())
    coloured = render_history(history(), colour=True)
    assert "\x1b[31;1m← created by northwind" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_history(history())


HOSTILE = "evil\x1b[2J\n14:20:10 cache.hit\u202e  tenant=northwind"


def test_hostile_names_cannot_forge_a_row_or_reach_the_terminal() -> None:
    create = renamed(CREATE, key=HOSTILE)
    hit = renamed(WRONG_HIT, key=HOSTILE, identity=identity(HOSTILE[:200], "other"), request_id=HOSTILE)
    told = build_history(Question(kind="request", value=HOSTILE), [create, hit], [finding(create, hit)])
    text = render_history(told)
    assert "\x1b" not in text and "\u202e" not in text
    table = render_table(told).splitlines()
    assert len(table) == 3
    assert '"evil\\x1b[2J\\n14:20:10' in table[2]


def test_short_keys_are_never_ambiguous() -> None:
    keys = ["ab" * 32, "ab" * 7 + "cd" * 25, "12" * 32, "support_v7:m1", "x" * 60, "x" * 59 + "y", "ab" * 8]
    shown = table_keys(keys)
    assert len(set(shown.values())) == len(keys)
    assert shown["12" * 32] == "121212…"
    assert shown["ab" * 7 + "cd" * 25] == "abababababababcd…"
    assert shown["support_v7:m1"] == "support_v7:m1"


@given(st.lists(st.text(alphabet="ab0 \n\u202e…", min_size=1, max_size=80), min_size=1, max_size=12))
def test_short_forms_stay_apart(keys: list[str]) -> None:
    shown = table_keys(keys)
    assert len(set(shown.values())) == len(set(keys))


def test_every_kind_of_row_can_be_shown() -> None:
    events = [
        event(1, "12:00:00", NodeStart(surviving_tiers=("nvme",)), None, key="", store=""),
        event(2, "12:00:01", Create(tokens=3, state="pending", max_age_s=60), CONTOSO),
        event(3, "12:00:02", Commit(bytes=12), CONTOSO),
        event(4, "12:00:03", Hit(reused_tokens=3, match_mode="semantic", outcome="short"), None),
        event(5, "12:00:04", Expire(reason="capacity"), CONTOSO),
        event(6, "12:00:05", Invalidate(scope="node", cause="rollout", outcome="partial"), None, key="", node="n2"),
    ]
    lines = render_table(build_history(Question(kind="recording"), events, [])).splitlines()[1:]
    assert [line.split()[1] for line in lines] == [
        "node.start", "cache.create", "cache.commit", "cache.hit", "cache.expire", "cache.invalidate",
    ]  # fmt: skip
    assert "survives=nvme" in lines[0] and "key=" not in lines[0]
    assert "state=pending" in lines[1] and "bytes=12" in lines[2] and "reason=capacity" in lines[4]
    assert "tenant=?" in lines[3] and "match=semantic  outcome=short" in lines[3]
    assert "key=*" in lines[5] and "scope=node  cause=rollout  outcome=partial" in lines[5]
    assert all("node=n" in line for line in lines)


def test_runs_of_ordinary_hits_fold_and_the_wrong_one_stays() -> None:
    many = [CREATE, *(event(seq, f"12:{seq // 60:02}:{seq % 60:02}", Hit(), NORTHWIND) for seq in range(300, 900))]
    wrong = renamed(WRONG_HIT, seq=900)
    told = build_history(Question(kind="request", value="req-3"), [*many, wrong], [finding(CREATE, wrong)])
    lines = render_table(told, rows=20).splitlines()
    assert len(lines) <= 23
    assert any("more events of northwind" in line for line in lines)
    assert "cache.create" in lines[1] and "created by northwind" in lines[-1]


def test_a_retracted_finding_is_shown_as_such() -> None:
    retracted = finding(CREATE, WRONG_HIT, revision=2, status="retracted", reason="policy allows it")
    told = build_history(Question(kind="request", value="req-3"), INCIDENT, [retracted])
    assert render_table(told).endswith("← cross-tenant reuse was retracted: policy allows it")


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0 s"), (59.6, "1 min"), (8168, "2 h 16 min"), (90000, "1 d 1 h")])
def test_durations(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_the_judges_own_finding_gives_the_same_table() -> None:
    found = judge_history(INCIDENT, JudgingConfig(), "test")
    told = build_history(Question(kind="request", value="req-3"), INCIDENT, found)
    assert render_table(told) == GOLDEN
    assert told.incidents[0].sentence == "this key does not cover tenant: 1 hit, 2 tenants"


def test_the_judges_warning_before_any_hit_is_a_risk() -> None:
    second = event(2, "12:30:00", Create(tokens=8992), CONTOSO)
    found = judge_history([CREATE, second], JudgingConfig(), "test")
    text = render_history(build_history(Question(kind="request", value="req-2"), [CREATE, second], found))
    assert "Verdict: the cache is at risk: underspecified key (medium)" in text
    assert "cache.create" in text.splitlines()[2] and "← key does not cover" in text.splitlines()[2]
