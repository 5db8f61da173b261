"""The macros of grafana-clickhouse-datasource, expanded here as its backend and front end would.

So that every query can run on the engine without a Grafana: in the tests, and for `kvtrail dashboards check --run`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..schemas.errors import KvtrailError

FRONT_END_ONLY: tuple[str, ...] = ("$__conditionalAll", "$__adHocFilters", "${", "$tenant")
"""What only a browser expands: an alert rule or a raw API query that holds one of these does not run."""

_MACRO = re.compile(r"\$__(\w+)")
_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)")


class UnknownMacro(KvtrailError):
    """A query uses a macro or variable that nothing expands."""

    code = "unknown_macro"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a dashboard would fill in. Times are Unix seconds; `interval_s` is the width of one point.

    `variables`: name -> chosen values; an empty sequence stands for *All*.
    """

    start_s: int
    end_s: int
    interval_s: int = 60
    variables: Mapping[str, Sequence[str]] = field(default_factory=dict)


def expand(sql: str, window: Window) -> str:
    """Plain ClickHouse SQL. Raises `UnknownMacro` for a macro or variable nothing would expand."""
    out: list[str] = []
    at = 0
    while match := _MACRO.search(sql, at):
        out.append(sql[at : match.start()])
        name, at = match[1], match.end()
        arguments: list[str] = []
        if at < len(sql) and sql[at] == "(":
            arguments, at = _arguments(sql, at)
        out.append(_macro(name, arguments, window))
    out.append(sql[at:])
    return _variables("".join(out), window)


def _arguments(sql: str, start: int) -> tuple[list[str], int]:
    """The arguments of the bracket that opens at `start`, and where the SQL goes on."""
    depth, begin, found = 0, start + 1, []
    for at in range(start, len(sql)):
        char = sql[at]
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                found.append(sql[begin:at].strip())
                return [argument for argument in found if argument], at + 1
        elif char == "," and depth == 1:
            found.append(sql[begin:at].strip())
            begin = at + 1
    raise UnknownMacro("has a bracket that never closes.", field="sql", remedy="Close the macro's bracket.")


def _macro(name: str, arguments: list[str], window: Window) -> str:
    start, end, step = window.start_s, window.end_s, window.interval_s
    match name, arguments:
        case "timeFilter", [column]:
            return f"{column} >= toDateTime({start}) AND {column} <= toDateTime({end})"
        case "timeInterval", [column]:
            return f"toStartOfInterval(toDateTime({column}), INTERVAL {step} second)"
        case "interval_s", []:
            return str(step)
        case "fromTime", []:
            return f"toDateTime({start})"
        case "toTime", []:
            return f"toDateTime({end})"
        case "conditionalAll", [condition, variable]:
            chosen = window.variables.get(variable.removeprefix("$"))
            if chosen is None:
                raise UnknownMacro("names a variable nobody defines.", field="sql", remedy="Define it.")
            return _variables(condition, window) if chosen else "1=1"
    raise UnknownMacro(
        f"${'__'}{name} with {len(arguments)} arguments is not known here.",
        field="sql",
        remedy="Use a macro that dashboards/macros.py expands, or teach it the new one.",
    )


def _variables(sql: str, window: Window) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name not in window.variables:
            raise UnknownMacro("names a variable nobody defines.", field=name, remedy="Define it on the dashboard.")
        values = window.variables[name]
        if match[2] == "singlequote":
            return ",".join("'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" for value in values)
        return ",".join(values)

    return _VARIABLE.sub(one, sql)
