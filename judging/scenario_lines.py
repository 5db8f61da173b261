"""History lines of a scenario: `node:seq type key tenant {field=value, ...} t=seconds`."""

import re
from dataclasses import dataclass

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


def lines_of(text: str, name: str) -> list[Line]:
    """The lines of a history in order of arrival. Raises `InvalidField` for one that is none."""
    lines: list[Line] = []
    times: dict[tuple[str, str, str], int] = {}
    now = START_US - _STEP_US
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
        now = START_US + round(float(at[1]) * 1e6) if at else now + _STEP_US
        words = _TIME.sub(" ", tail).split()
        type_ = match["type"]
        if type_ == "request_end":
            words = ["", *words[-1:]]
        key, tenant = (*words, "", "")[:2]
        tenant = "" if tenant == "-" else tenant
        line = Line(match["node"], match["inc"] or "i1", int(match["number"]), type_, key, tenant, given, now)
        # A line that repeats a number is the same event again, with the time it had.
        line.time_us = times.setdefault((line.node, line.incarnation, match["number"]), now)
        lines.append(line)
    return lines


def given_of(text: str) -> dict[str, str]:
    """The fields between a line's braces."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key:
            found[key.strip()] = value.strip() if equals else "true"
    return found
