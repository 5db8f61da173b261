"""The rules hold together, and what does not is named."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from kvtrail.judging.rules import CREATE_RULES, HIT_RULES, RULES, Rule
from kvtrail.judging.rules.pages import rule_pages
from kvtrail.judging.rules.registry import FAMILIES
from kvtrail.judging.rules.review import review
from kvtrail.schemas.dimensions import Severity

ROOT = Path(__file__).resolve().parents[2]


def documents() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "tests" / "catalogue").glob("*.yaml")}


def test_every_rule_has_its_words_a_case_and_a_look_alike() -> None:
    known = {case for rule in RULES.values() for case in rule.positive + rule.negative if "::" in case}
    assert review(RULES, documents(), known.__contains__) == []
    for case in known:
        file, _, name = case.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()


def test_every_family_has_rules() -> None:
    assert {rule.family for rule in RULES.values()} == set(FAMILIES)


def rule(**changed: Any) -> Rule:
    return dataclasses.replace(
        Rule(
            id="A_RULE", family="identity", title="Something differs", severity=Severity.HIGH,
            why="Because it matters to somebody.", first_steps=("Mend it.",), positive=("X1",), negative=("X1@n1:1",),
        ),
        **changed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"why": ""}, "does not say why"),
        ({"first_steps": ()}, "no first steps"),
        ({"title": ""}, "no title"),
        ({"family": "others"}, "is no family"),
        ({"positive": ()}, "no positive case"),
        ({"negative": ()}, "no negative case"),
        ({"positive": ("X9",)}, "no case X9"),
        ({"positive": ("X1@n1:1",)}, "is not expected in X1@n1:1"),
        ({"negative": ("X1@n1:2",)}, "is expected in X1@n1:2"),
        ({"negative": ("X1@n1:7",)}, "has no event n1:7"),
        ({"negative": ("tests/a.py::test_b",)}, "no test tests/a.py::test_b"),
    ],
)
def test_what_is_missing_is_named(changed: dict[str, Any], said: str) -> None:
    case = {"history": "n1:1 create K a\nn1:2 hit K a", "expect": [{"at": "n1/i1:2", "finding": "A_RULE"}]}

    def problems(one: Rule) -> list[str]:
        found = review({"A_RULE": one}, {"X1": case}, lambda _: False)
        return [problem for problem in found if "a dimension names it" not in problem]

    assert problems(rule()) == []
    (problem,) = problems(rule(**changed))
    assert said in problem


def test_a_cause_without_a_rule_is_named() -> None:
    case = {"history": "n1:1 create K a", "expect": [{"at": "n1:1", "finding": "NO_RULE"}]}
    assert any("NO_RULE: the catalogue names it" in problem for problem in review(RULES, {"X": case}, lambda _: True))
    assert any("a dimension names it" in problem for problem in review({}, {}, lambda _: True))


def test_the_pages_are_those_of_the_rules() -> None:
    folder = ROOT / "docs" / "rules"
    held = {path.name: path.read_text() for path in folder.glob("*")}
    assert held == rule_pages(), "run: python -m kvtrail.cli.rule_pages"


def test_a_hit_is_asked_about_its_bytes_before_its_identity() -> None:
    names = [one.__name__ for one in HIT_RULES]
    assert names.index("stale_handle") < names.index("payload") < names.index("identity") < names.index("expired")
    assert len(CREATE_RULES) == len(set(CREATE_RULES))
