"""Histories for tests, in the notation of the scenario files."""

from kvtrail.judging.offline import judge_history
from kvtrail.judging.scenarios import Scenario, parse_scenario
from kvtrail.schemas.findings import Finding


def scenario(history: str, **settings: object) -> Scenario:
    """A scenario from its history lines."""
    return parse_scenario({"id": "T", "history": history, "settings": settings})


def causes(history: str, **settings: object) -> list[str]:
    """`label CAUSE severity` of what stands at the end, in order of appearance."""
    parsed = scenario(history, **settings)
    found = judge_history([record for _, record in parsed.steps], parsed.settings)
    return [f"{where(parsed, finding)} {finding.cause} {finding.severity}" for finding in found]


def where(parsed: Scenario, finding: Finding) -> str:
    """The label of the event a finding is about."""
    for event_id in (finding.subject, *finding.evidence):
        if event_id in parsed.labels:
            return parsed.labels[event_id]
    return ""
