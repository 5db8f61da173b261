"""A scenario examined: what was found against what it expects."""

from dataclasses import dataclass
from typing import Any

from ..schemas.findings import Finding
from .offline import History
from .scenarios import Scenario, dimensions_of, normal_label


@dataclass(frozen=True, slots=True)
class Result:
    """One case. `wrong` says what is missing, unexpected or different; empty when the case is right."""

    id: str
    title: str
    expected: tuple[str, ...]
    found: tuple[str, ...]
    wrong: tuple[str, ...]


def examine(scenario: Scenario) -> Result:
    """Judge the scenario's history and compare."""
    history = History(scenario.settings)
    raised: list[tuple[str, Finding]] = []
    for at, record in scenario.steps:
        raised += [(at, finding) for finding in history.take(record)]
    history.finish()
    standing = [finding for finding in history.final.values() if finding.status == "open"]
    wrong: list[str] = []
    left = list(standing)
    for want in scenario.expect:
        fit = [finding for finding in left if _fits(scenario, finding, want)]
        if not fit:
            wrong.append(f"missing {_want(want)}")
        elif want.get("once") and len(fit) > 1:
            wrong.append(f"{len(fit)} times instead of once: {_want(want)}")
        for finding in fit if want.get("once") else fit[:1]:
            left.remove(finding)
    for want in scenario.may:
        left = [finding for finding in left if not _fits(scenario, finding, want)]
    wrong += [f"unexpected {_found(scenario, finding)}" for finding in left]
    for want in scenario.meanwhile:
        seen = [f for at, f in raised if f.status == "open" and at in _ats(want) and _fits(scenario, f, want)]
        if not seen:
            wrong.append(f"not raised meanwhile: {_want(want)}")
        elif any(finding.id == f.id and finding.cause == f.cause for f in seen for finding in standing):
            wrong.append(f"not retracted: {_want(want)}")
    return Result(
        id=scenario.id,
        title=scenario.title,
        expected=tuple(_want(want) for want in scenario.expect),
        found=tuple(_found(scenario, finding) for finding in standing),
        wrong=tuple(wrong),
    )


def _ats(want: dict[str, Any]) -> list[str]:
    at = want.get("at", [])
    return [normal_label(str(one)) for one in (at if isinstance(at, list) else [at])]


def _label(scenario: Scenario, finding: Finding) -> str:
    """The event a finding is about, or the one that revealed it."""
    for event_id in (finding.subject, *finding.evidence):
        if event_id in scenario.labels:
            return scenario.labels[event_id]
    return ""


def _fits(scenario: Scenario, finding: Finding, want: dict[str, Any]) -> bool:
    if finding.cause != want.get("finding"):
        return False
    if "at" in want and _label(scenario, finding) not in _ats(want):
        return False
    if "severity" in want and finding.severity.value != want["severity"]:
        return False
    names = {difference.dimension for difference in finding.differing}
    return all(names.intersection(dimensions_of(str(name))) for name in want.get("differing") or [])


def _want(want: dict[str, Any]) -> str:
    at = " or ".join(_ats(want)) or ("once" if want.get("once") else "anywhere")
    differing = f" ({', '.join(map(str, want['differing']))})" if want.get("differing") else ""
    return f"{at} {want.get('finding')} {want.get('severity', '')}{differing}".strip()


def _found(scenario: Scenario, finding: Finding) -> str:
    names = ", ".join(difference.dimension for difference in finding.differing)
    at = _label(scenario, finding) or finding.subject
    return f"{at} {finding.cause} {finding.severity.value}" + (f" ({names})" if names else "")
