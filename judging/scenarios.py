"""Scenario text as records: the history lines of a scenario file, as `tests/catalogue/FORMAT.md` defines them.

Pure: text in, events and facts out. Whoever reads the YAML hands over its parsed document.
"""

from dataclasses import dataclass
from typing import Any

from ..schemas.config import JudgingConfig
from ..schemas.errors import BadInput, InvalidField
from ..schemas.events import Event
from ..schemas.facts import Fact
from .scenario_events import Homes
from .scenario_facts import fact_body
from .scenario_identity import dimensions_of, symbol
from .scenario_lines import lines_of, normal_label

_THRESHOLDS = {
    "KEY_DRIFT": "drift_threshold",
    "PREFIX_PROBING": "probing_threshold",
    "CHECK_INCONCLUSIVE": "inconclusive_threshold",
}

__all__ = ["Scenario", "dimensions_of", "normal_label", "parse_scenario"]


@dataclass(slots=True)
class Scenario:
    """A history and the verdict it deserves. `steps`: records in arrival order, with the line they come from."""

    id: str
    title: str
    settings: JudgingConfig
    steps: list[tuple[str, Event | Fact]]
    labels: dict[str, str]
    expect: list[dict[str, Any]]
    may: list[dict[str, Any]]
    meanwhile: list[dict[str, Any]]


def parse_scenario(document: Any, name: str = "scenario") -> Scenario:
    """A scenario from its parsed YAML document. Raises `InvalidField` naming what is wrong."""
    if not isinstance(document, dict) or not isinstance(document.get("history"), str):
        raise InvalidField("is no scenario: it has no history.", field=name, remedy="See tests/catalogue/FORMAT.md.")
    try:
        return _parsed(document, name)
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidField(
            f"says something that no event can hold ({type(error).__name__}).",
            field=name,
            remedy="See tests/catalogue/FORMAT.md.",
        ) from error


def _parsed(document: dict[str, Any], name: str) -> Scenario:
    settings: dict[str, Any] = dict(document.get("settings") or {})
    thresholds = settings.pop("thresholds", None) or {}
    for threshold, setting in _THRESHOLDS.items():
        if threshold in thresholds:
            settings[setting] = thresholds[threshold]
    known = {key: value for key, value in settings.items() if key in JudgingConfig.model_fields}
    judging = JudgingConfig(**known)
    steps = _records(document["history"], name, round(judging.skew_s * 1e6))
    labels = {record.id: at for at, record in steps if isinstance(record, Event)}
    return Scenario(
        id=str(document.get("id", name)),
        title=str(document.get("title", "")),
        settings=judging,
        steps=steps,
        labels=labels,
        expect=list(document.get("expect") or []),
        may=list(document.get("may") or []),
        meanwhile=list(document.get("meanwhile") or []),
    )


def _records(text: str, name: str, skew_us: int) -> list[tuple[str, Event | Fact]]:
    lines = lines_of(text, name, skew_us)
    homes = Homes(lines)
    steps: list[tuple[str, Event | Fact]] = []
    sent: dict[tuple[str, str, int], list[Event]] = {}
    started: set[str] = set()
    for line in lines:
        if line.type == "registry":
            body = fact_body(line.key, line.tenant, line.given, symbol)
            steps.append((line.label, Fact(id=line.label, effective_at_us=line.time_us, body=body, source=line.node)))
            continue
        if line.node not in started:
            started.add(line.node)
            implied = homes.implied_start(line)
            if implied is not None:
                steps.append(("", implied))
        identified = (line.node, line.incarnation, line.number)
        events = sent.get(identified)
        if events is None:
            try:
                events = sent[identified] = homes.events(line)
            except BadInput as error:
                raise error.at(f"{name}.{line.label}") from None
        steps.extend((line.label, event) for event in events)
    return steps
