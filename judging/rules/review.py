"""Whether the rules hold together: each has its words, a case in which it speaks, a look-alike in which it is silent.

Pure: the caller reads the catalogue, and knows which tests exist.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...schemas.identity import DIMENSIONS
from ..scenario_lines import lines_of, normal_label
from .registry import FAMILIES, Rule

SHORTEST_WHY = 20
"""Characters; anything below is no reason."""


def review(
    rules: Mapping[str, Rule], documents: Mapping[str, Mapping[str, Any]], test_exists: Callable[[str], bool]
) -> list[str]:
    """What is wrong with the rules, one sentence each; empty when nothing is. `documents`: case name -> its YAML."""
    problems = [problem for rule in rules.values() for problem in _of_rule(rule, documents, test_exists)]
    named = {cause for document in documents.values() for cause in _named(document)}
    problems += [
        f"{cause}: the catalogue names it, and there is no such rule" for cause in sorted(named - rules.keys())
    ]
    causes = {declared.cause for declared in DIMENSIONS.values()}
    problems += [f"{cause}: a dimension names it, and there is no such rule" for cause in sorted(causes - rules.keys())]
    return problems


def _of_rule(
    rule: Rule, documents: Mapping[str, Mapping[str, Any]], test_exists: Callable[[str], bool]
) -> Iterator[str]:
    if rule.family not in FAMILIES:
        yield f"{rule.id}: {rule.family} is no family"
    if not rule.title:
        yield f"{rule.id}: has no title"
    if len(rule.why) < SHORTEST_WHY:
        yield f"{rule.id}: does not say why it matters"
    if not rule.first_steps or not all(rule.first_steps):
        yield f"{rule.id}: has no first steps"
    if not rule.positive:
        yield f"{rule.id}: has no positive case"
    if not rule.negative:
        yield f"{rule.id}: has no negative case"
    for case in rule.positive + rule.negative:
        if "::" in case and not test_exists(case):
            yield f"{rule.id}: there is no test {case}"
    for case in rule.positive:
        yield from _of_case(rule, case, documents, True)
    for case in rule.negative:
        yield from _of_case(rule, case, documents, False)


def _of_case(rule: Rule, case: str, documents: Mapping[str, Mapping[str, Any]], positive: bool) -> Iterator[str]:
    if "::" in case:
        return
    name, _, at = case.partition("@")
    document = documents.get(name)
    if document is None:
        yield f"{rule.id}: the catalogue has no case {name}"
    elif at and at not in _labels(document, name):
        yield f"{rule.id}: {name} has no event {at}"
    elif positive and not _names(document, rule.id, at, "expect", "meanwhile"):
        yield f"{rule.id}: is not expected in {case}"
    elif not positive and _names(document, rule.id, at, "expect", "may"):
        yield f"{rule.id}: is expected in {case}, which is to show its silence"


def _wants(document: Mapping[str, Any], *lists: str) -> Iterator[Mapping[str, Any]]:
    for name in lists:
        yield from document.get(name) or []


def _named(document: Mapping[str, Any]) -> set[str]:
    return {str(want.get("finding")) for want in _wants(document, "expect", "may", "meanwhile")}


def _names(document: Mapping[str, Any], rule: str, at: str, *lists: str) -> bool:
    """Whether the case names the rule in one of these lists at the event; without an event, anywhere."""
    for want in _wants(document, *lists):
        if want.get("finding") != rule:
            continue
        where = want.get("at", [])
        ats = {normal_label(str(one)) for one in (where if isinstance(where, list) else [where])}
        if not at or at in ats or not ats:
            return True
    return False


def _labels(document: Mapping[str, Any], name: str) -> set[str]:
    return {line.label for line in lines_of(str(document.get("history", "")), name)}
