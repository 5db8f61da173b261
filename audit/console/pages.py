"""Pages from templates. Whatever a template prints is escaped, and loses control and direction characters."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct

from ...schemas.dimensions import Severity
from .. import wording
from ..causes import cause_name
from ..comparing import Compared
from ..folding import Fold, fold_rows
from ..history import History, Meeting, Question, Row
from ..render import details, note, operation
from ..verdict import reach_verdict

_COMMAND = re.compile(r"`([^`]+)`")
ROWS = 200
"""Lines of a timeline before runs of ordinary hits are folded."""
MEETINGS = 3
"""Hits shown with both parties side by side; the JSON document has all."""
_ORDER = {"differs": 0, "may differ": 1, "unknown": 2, "equal": 3}


class Line(Struct, frozen=True, kw_only=True):
    """One line of the timeline: a row, or a fold of many."""

    row: Row | None = None
    fold: Fold | None = None
    operation: str = ""
    key: str = ""
    details: tuple[str, ...] = ()
    note: str = ""


class Sides(Struct, frozen=True, kw_only=True):
    """A meeting as a page shows it: what can be compared, and the titles of what neither side knows."""

    meeting: Meeting
    compared: tuple[Compared, ...]
    unknown: tuple[str, ...]


_AHEAD_S = 5.0
"""Clocks of two machines may differ by so much without a word."""


class Pages:
    """The templates, with how values are shown."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_harmless,
        )
        environment.filters.update(
            clock=wording.clock, day=wording.day, moment=wording.moment, number=wording.number, age=self._age,
            key=wording.person_key, value=short_value, cause=cause_name, iso=_iso,
            sentence=wording.sentence,
            prose=_prose,
        )  # fmt: skip
        environment.globals.update(
            plural=wording.plural, path=question_path, finding_path=finding_path, key_path=key_path,
            request_path=request_path, severities=list(Severity), link=_link,
        )  # fmt: skip
        self._environment = environment

    def render(self, template: str, **values: Any) -> str:
        """A page, from a template of this room."""
        return self._environment.get_template(template).render(**values)

    def investigation(self, history: History) -> str:
        """The page of one history: the same as on the command line, with both parties side by side."""
        shown = _worst_first(history.meetings)
        shown = ([meeting for meeting in shown if _loudness(meeting)] or shown)[:MEETINGS]
        days = {wording.day(row.time_us) for row in history.rows}
        return self.render(
            "investigation.html",
            history=history,
            verdict=reach_verdict(history),
            lines=_lines(history.rows),
            one_day=days.pop() if len(days) == 1 else "",
            sides=[_sides(meeting) for meeting in shown],
            more_meetings=len(history.meetings) - len(shown),
            api=f"/api{question_path(history.question)}",
        )

    def _age(self, time_us: int) -> str:
        seconds = self._now_s() - time_us / 1e6
        ahead = seconds < -_AHEAD_S  # a producer's clock is wrong, which a person should see
        seconds = -seconds if ahead else max(0.0, seconds)
        told = wording.span(seconds if seconds < 60 else seconds - seconds % 60)
        return f"{told} {'ahead' if ahead else 'ago'}"


def question_path(question: Question) -> str:
    """The address of a question's page."""
    values: dict[str, str] = {question.kind: question.value}
    if question.store:
        values["store"] = question.store
    return f"/investigate?{urlencode(values)}"


def finding_path(finding_id: str) -> str:
    """The address of a finding's investigation."""
    return question_path(Question(kind="finding", value=finding_id))


def key_path(key: str, store: str = "") -> str:
    """The address of a key's history."""
    return question_path(Question(kind="key", value=key, store=store))


def request_path(request_id: str) -> str:
    """The address of a request's history."""
    return question_path(Question(kind="request", value=request_id))


def short_value(value: str | None) -> str:
    """A dimension's value: digests in 16 digits, `none` where it is known to be none."""
    if value is None:
        return "unknown"
    if value == "":
        return "none"
    head, colon, tail = value.rpartition(":")
    if wording.is_hex_key(tail):
        return f"{head}{colon}{tail[:16]}…" if len(tail) > 16 else value
    return value if len(value) <= 64 else value[:63] + "…"


def _harmless(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return wording.clean(value)
    return value


def _prose(text: str) -> Markup:
    """A sentence whose `commands` stand in their own face; everything in it is escaped first."""
    return Markup(_COMMAND.sub(r'<code class="command">\1</code>', str(escape(wording.clean(text)))))


def _iso(time_us: int) -> str:
    return wording.at(time_us).strftime("%Y-%m-%dT%H:%M:%SZ")


def _link(path: str, **values: str) -> str:
    given = {name: value for name, value in values.items() if value}
    return f"{quote(path)}?{urlencode(given)}" if given else quote(path)


def _lines(rows: Sequence[Row]) -> list[Line]:
    folded = fold_rows(rows, ROWS)
    keys = wording.table_keys(line.event.key for line in folded if isinstance(line, Row) and line.event.key)
    return [
        Line(
            row=line,
            operation=operation(line.event),
            key=keys.get(line.event.key, ""),
            details=tuple(details(line)),
            note=note(line),
        )
        if isinstance(line, Row)
        else Line(fold=line)
        for line in folded
    ]


def _worst_first(meetings: Sequence[Meeting]) -> list[Meeting]:
    return sorted(meetings, key=_loudness, reverse=True)


def _loudness(meeting: Meeting) -> int:
    finding = meeting.finding
    return finding.severity.rank + 1 if finding is not None and finding.status == "open" else 0


def _sides(meeting: Meeting) -> Sides:
    compared = [side for side in meeting.dimensions if (side.created, side.requested) != (None, None)]
    return Sides(
        meeting=meeting,
        compared=tuple(sorted(compared, key=lambda side: _ORDER[side.relation])),
        unknown=tuple(side.title for side in meeting.dimensions if (side.created, side.requested) == (None, None)),
    )
