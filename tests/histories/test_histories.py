"""Recorded histories judge the same for ever: same findings, same ids, same words, byte for byte."""

import json

import pytest
from kvtrail.judging.rules import HIT_RULES
from kvtrail.tests.histories.golden import FOLDER, NAMES, expected, history, judged


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_history_judges_as_it_did(name: str) -> None:
    assert judged(name) == expected(name), (
        "a verdict changed. If it was meant to: say so under Changed in CHANGELOG.md, with causes and why, "
        "then run python -m kvtrail.tests.histories.golden"
    )


@pytest.mark.parametrize("rule", [rule.__name__ for rule in HIT_RULES if rule.__name__ in ("identity", "payload")])
def test_a_rule_that_no_longer_answers_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(each for each in HIT_RULES if each.__name__ != rule)
    monkeypatch.setattr("kvtrail.judging.trial.HIT_RULES", others)
    assert any(judged(name) != expected(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_that_is_missing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = json.loads(expected(name).splitlines()[0])
    subject = first["subject"]
    records = [*history(name)]
    monkeypatch.setattr(
        "kvtrail.tests.histories.golden.history",
        lambda _: [record for record in records if all(event.id != subject for event in getattr(record, "events", ()))],
    )
    assert judged(name) != expected(name)


def test_the_histories_are_rich() -> None:
    found = [json.loads(line) for name in NAMES for line in expected(name).splitlines()]
    assert len({finding["cause"] for finding in found}) >= 15
    assert {path.name for path in FOLDER.glob("*.jsonl")} == {
        f"{name}{end}" for name in NAMES for end in (".jsonl", ".findings.jsonl")
    }
