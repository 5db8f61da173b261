"""What a dashboard and its alert rules must have before anybody is shown them: one function a rule.

Grafana accepts nearly anything and shows an empty panel; these are the mistakes that cost somebody a night.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.models import units

from .macros import FRONT_END_ONLY

UNITS = frozenset(value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_"))
"""The unit ids Grafana knows: another one is shown as text behind the number."""

_TIME_MACRO = re.compile(r"\$__(timeFilter|fromTime|toTime)\b")
_LIMIT = re.compile(r"\bLIMIT\s+\d+\b(?!\s+BY\b)", re.IGNORECASE)
_COLUMNS = 24
_UID = 40


def lint_dashboard(board: dict[str, Any]) -> list[str]:
    """What is wrong with the dashboard, one sentence each; nothing means fine."""
    problems = list(_head(board))
    flat = list(_panels(board))
    problems += _ids(flat)
    problems += _grid(flat)
    for panel in flat:
        if panel.get("type") != "row":
            problems += [f"panel {panel.get('id')}: {problem}" for problem in _panel(panel)]
    for variable in board.get("templating", {}).get("list", []):
        problems += [f"variable {variable.get('name')}: {problem}" for problem in _variable(variable)]
    for annotation in board.get("annotations", {}).get("list", []):
        sql = annotation.get("target", {}).get("rawSql")
        if sql is not None:
            problems += [f"annotation {annotation.get('name')}: {problem}" for problem in _sql(sql)]
    return problems


def lint_rules(groups: dict[str, Any], boards: Iterable[dict[str, Any]], runbooks: Path | None) -> list[str]:
    """What is wrong with the alert rules of a provisioning document.

    `runbooks`: the folder whose files the rules' `runbook_url` must name; None where it is not at hand.
    """
    panels = {(board["uid"], panel.get("id")) for board in boards for panel in _panels(board)}
    problems: list[str] = []
    seen: set[str] = set()
    for group in groups["groups"]:
        for rule in group["rules"]:
            uid = rule.get("uid", "")
            if not uid or len(uid) > _UID or uid in seen:
                problems.append(f"rule {uid}: its uid is empty, too long or not unique")
            seen.add(uid)
            problems += [f"rule {uid}: {problem}" for problem in _rule(rule, panels, runbooks)]
    return problems


def _panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board.get("panels", []):
        yield panel
        yield from panel.get("panels", [])


def _head(board: dict[str, Any]) -> Iterator[str]:
    uid = board.get("uid") or ""
    if not uid or len(uid) > _UID:
        yield "dashboard: its uid is empty or longer than 40 characters"
    for name in ("title", "description"):
        if not board.get(name):
            yield f"dashboard: has no {name}"
    if board.get("editable") is not False:
        yield "dashboard: can be edited in Grafana, where the next provisioning would undo it"
    variables = {variable.get("name"): variable for variable in board.get("templating", {}).get("list", [])}
    if variables.get("datasource", {}).get("type") != "datasource":
        yield "dashboard: has no variable for its data source"
    if not any(annotation.get("builtIn") for annotation in board.get("annotations", {}).get("list", [])):
        yield "dashboard: lacks Grafana's built-in annotation, without which alert states are not drawn"


def _ids(panels: list[dict[str, Any]]) -> Iterator[str]:
    seen: set[int] = set()
    for panel in panels:
        ident = panel.get("id")
        if not isinstance(ident, int) or ident < 1:
            yield f"panel {panel.get('title')}: has no id"
        elif ident in seen:
            yield f"panel {ident}: its id is used twice"
        else:
            seen.add(ident)


def _grid(panels: list[dict[str, Any]]) -> Iterator[str]:
    placed: list[tuple[int, int, int, int, Any]] = []
    for panel in panels:
        grid = panel.get("gridPos") or {}
        x, y, w, h = (grid.get(name, 0) for name in "xywh")
        if w < 1 or h < 1 or x < 0 or x + w > _COLUMNS:
            yield f"panel {panel.get('id')}: does not fit into {_COLUMNS} columns"
        for ox, oy, ow, oh, other in placed:
            if x < ox + ow and ox < x + w and y < oy + oh and oy < y + h:
                yield f"panel {panel.get('id')}: overlaps panel {other}"
        placed.append((x, y, w, h, panel.get("id")))


def _panel(panel: dict[str, Any]) -> Iterator[str]:
    for name in ("title", "description"):
        if not panel.get(name):
            yield f"has no {name}"
    if panel.get("type") == "text":
        return
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    units = [defaults.get("unit")] + [
        prop.get("value")
        for override in panel.get("fieldConfig", {}).get("overrides", [])
        for prop in override.get("properties", [])
        if prop.get("id") == "unit"
    ]
    yield from (f"has the unknown unit {unit}" for unit in units if unit not in UNITS)
    if not defaults.get("noValue"):
        yield "does not say what no value means"
    if panel.get("datasource", {}).get("uid") != "${datasource}":
        yield "does not use the dashboard's data source"
    targets = panel.get("targets", [])
    if not targets:
        yield "has no query"
    for target in targets:
        if target.get("datasource", {}).get("uid") != "${datasource}":
            yield "has a query that does not use the dashboard's data source"
        yield from _sql(target.get("rawSql", ""))
        if panel.get("type") == "timeseries":
            yield from _series(target)
    if panel.get("type") == "stat" and not panel.get("options", {}).get("reduceOptions", {}).get("calcs"):
        yield "does not say which value it shows"


def _series(target: dict[str, Any]) -> Iterator[str]:
    sql = target.get("rawSql", "")
    if target.get("format") != 0:
        yield "is drawn over time but asks for a table"
    if "AS time" not in sql or not re.search(r"ORDER BY\s+time", sql, re.IGNORECASE):
        yield "is drawn over time but does not give a time column, or not in order"


def _sql(sql: str) -> Iterator[str]:
    if not (_TIME_MACRO.search(sql) or _LIMIT.search(sql)):
        yield "has a query bounded neither by the time range nor by a LIMIT"
    if re.search(r"SELECT\s+\*", sql, re.IGNORECASE):
        yield "selects every column"


def _variable(variable: dict[str, Any]) -> Iterator[str]:
    if variable.get("type") != "query":
        return
    if variable.get("refresh") != 2:
        yield "does not follow the time range"
    query = variable.get("query")
    yield from _sql(query.get("rawSql", "") if isinstance(query, dict) else "")


def _rule(rule: dict[str, Any], panels: set[tuple[str, Any]], runbooks: Path | None) -> Iterator[str]:
    if (rule.get("dashboardUid"), rule.get("panelId")) not in panels:
        yield "links a panel that does not exist"
    annotations = rule.get("annotations", {})
    for name in ("summary", "description", "runbook_url"):
        if not annotations.get(name):
            yield f"has no {name}"
    page = annotations.get("runbook_url", "").rsplit("/", 1)[-1]
    if runbooks is not None and not (page and (runbooks / page).is_file()):
        yield "its runbook_url names no page of docs/runbooks"
    if rule.get("labels", {}).get("severity") not in ("page", "ticket"):
        yield "does not say whether it pages somebody"
    refs = {query.get("refId") for query in rule.get("data", [])}
    if rule.get("condition") not in refs:
        yield "its condition names no query"
    for query in rule.get("data", []):
        sql = query.get("model", {}).get("rawSql")
        if sql is None:
            continue
        if "${" in query.get("datasourceUid", "") or "${" in query["model"].get("datasource", {}).get("uid", ""):
            yield "needs the literal uid of the data source"
        if any(word in sql for word in FRONT_END_ONLY):
            yield "uses what only a browser expands"
        if "GROUP BY" in sql.upper():
            yield "groups, so that it would return no row when nothing happened"
        yield from _sql(sql)
