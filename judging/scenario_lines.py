"""History lines of a scenario: `node:seq type key tenant {field=value, ...} t=seconds`."""

import re
from dataclasses import dataclass
from itertools import accumulate

from ..schemas.errors import InvalidField

START_US = 1_700_000_000_000_000
_STEP_US = 1_000_000
_LINE = re.compile(r"^(?P<node>[^\s/:]+)(?:/(?P<inc>[^\s:]+))?:(?P<number>\d+)\s+(?P<type>\w+)(?P<rest>.*)$")
_FIELDS = re.compile(r"\{(.*)\}")
_TIME = re.compile(r"(?:^|\s)t=(-?[\d.]+)")


@dataclass(slots=True)
class Line:
    """One parsed line. `label` is how `at` names it."""

    node: str
    incarnation: str
    number: int
    type: str
    key: str
    tenant: str
    given: dict[str, str]
    time_us: int

    @property
    def label(self) -> str:
        return label(self.node, self.incarnation, self.number)


def label(node: str, incarnation: str, number: int | str) -> str:
    """How `at` names an event."""
    return f"{node}:{number}" if incarnation == "i1" else f"{node}/{incarnation}:{number}"


def normal_label(text: str) -> str:
    """`n1/i1:3` and `n1:3` are the same event."""
    return text.replace("/i1:", ":")


def lines_of(text: str, name: str, skew_us: int = 0) -> list[Line]:
    """The lines of a history in order of arrival. Raises `InvalidField` for one that is none.

    Without `t=` times follow the order of the lines, beyond doubt: lines of different nodes are further apart than
    their clocks may be.
    """
    lines: list[Line] = []
    told: list[int | None] = []
    for raw in text.splitlines():
        raw = raw.partition(" #")[0].strip()
        if not raw or raw.startswith("#"):
            continue
        match = _LINE.match(raw)
        if match is None:
            raise InvalidField(
                "is no history line.", field=f"{name}.history", remedy="Write: node:seq type key tenant {field=value}."
            )
        rest = match["rest"]
        fields = _FIELDS.search(rest)
        tail = rest.replace(fields[0], " ") if fields else rest
        given = given_of(fields[1] if fields else "")
        at = _TIME.search(tail)
        told.append(START_US + round(float(at[1]) * 1e6) if at else None)
        words = _TIME.sub(" ", tail).split()
        type_ = match["type"]
        if type_ == "request_end":
            words = ["", *words[-1:]]
        key, tenant = (*words, "", "")[:2]
        tenant = "" if tenant == "-" else tenant
        lines.append(Line(match["node"], match["inc"] or "i1", int(match["number"]), type_, key, tenant, given, 0))
    times: dict[tuple[str, str, int], int] = {}
    for line, time_us in zip(lines, _times(lines, told, skew_us), strict=True):
        # A line that repeats a number is the same event again, with the time it had.
        line.time_us = times.setdefault((line.node, line.incarnation, line.number), time_us)
    return lines


def _times(lines: list[Line], told: list[int | None], skew_us: int) -> list[int]:
    """The times of the lines: those told, and between them steps that leave room for the next one told."""
    times: list[int] = []
    now, node = START_US, lines[0].node if lines else ""
    steps: list[int] = []
    for line, time_us in zip(lines, told, strict=True):
        steps.append(_STEP_US if line.node == node else skew_us + _STEP_US)
        node = line.node
        if not times and len(steps) == 1:
            steps[0] = 0
        if time_us is not None:
            room = time_us - now
            if 0 < room < sum(steps):
                steps = [room // len(steps)] * len(steps)
            times += list(accumulate(steps[:-1], initial=now))[1:]
            times.append(time_us)
            now, steps = time_us, []
    return times + list(accumulate(steps, initial=now))[1:]


def given_of(text: str) -> dict[str, str]:
    """The fields between a line's braces."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key:
            found[key.strip()] = value.strip() if equals else "true"
    return found
