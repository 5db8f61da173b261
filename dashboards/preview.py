"""The dashboard as one HTML page, drawn from the generated JSON and the real query results: for people without a
Grafana, and for us to look at the layout. A look-alike, not Grafana's rendering."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import quote

from ..store.client import Client
from .chart import Axis, chart
from .formats import human
from .macros import Window
from .queries import QUERIES
from .shapes import PanelQuery
from .verify import run

Rows = list[dict[str, Any]]
_HEX = {
    "green": "#73bf69",
    "yellow": "#f2cc0c",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#8ab8ff",
    "text": "#ccccdc",
}
_FIELD = re.compile(r'\$\{__data\.fields\["(\w+)"\]:percentencode\}')
_ROW_PX, _COLUMN_PX = 34, 58

STYLE = """
body{background:#111217;color:#ccccdc;font:13px/1.4 system-ui,sans-serif;margin:16px}
h1{font-size:18px;font-weight:500;margin:0}header{display:flex;gap:24px;align-items:baseline;margin-bottom:12px}
header span{color:#8e8e99}main{display:grid;grid-template-columns:repeat(24,1fr);grid-auto-rows:34px;gap:8px;
padding-bottom:24px}
section{background:#181b1f;border:1px solid #24272e;border-radius:3px;padding:8px;overflow:hidden;display:flex;
flex-direction:column;min-width:0}h2{font-size:13px;font-weight:500;margin:0 0 4px;white-space:nowrap}
.stat{flex:1;display:flex;align-items:center;justify-content:center;font-size:34px;font-weight:500}
.none{flex:1;display:flex;align-items:center;justify-content:center;color:#8e8e99}
svg{width:100%;flex:1;min-height:0}svg text{fill:#8e8e99;font-size:9px}.grid{stroke:#2c3038}
.rows{overflow:auto}table{border-collapse:collapse;width:100%;font-size:12px}td,th{padding:3px 8px;text-align:left;
white-space:nowrap;border-bottom:1px solid #24272e;font-weight:400;max-width:220px;overflow:hidden;
text-overflow:ellipsis}thead th{color:#8ab8ff}td.number{text-align:right}a{color:#8ab8ff}
.legend{font-size:11px;flex:none}.legend td{text-align:right;width:60px;border:0;padding:0 6px}.legend th{border:0;
padding:0 6px}.legend i{display:inline-block;width:10px;height:3px;margin-right:6px;vertical-align:middle}
"""


def preview(board: dict[str, Any], client: Client, window: Window, console: str) -> str:
    """The page. `console`: where the links of the tables lead. Raises `StoreError` when a query fails."""
    by_sql = {query.text: query for query in QUERIES}
    sections = []
    for panel in board["panels"]:
        query = by_sql[panel["targets"][0]["rawSql"]]
        sections.append(_section(panel, query, run(client, query, window), window, console))
    spanned = " to ".join(
        datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M") for time_s in (window.start_s, window.end_s)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(board["title"])}</title>'
        f"<style>{STYLE}</style><header><h1>{escape(board['title'])}</h1><span>{spanned} UTC</span>"
        f"<span>preview, not Grafana</span></header><main>{''.join(sections)}</main></html>\n"
    )


def _section(panel: dict[str, Any], query: PanelQuery, rows: Rows, window: Window, console: str) -> str:
    grid = panel["gridPos"]
    place = f"grid-column:{grid['x'] + 1}/span {grid['w']};grid-row:{grid['y'] + 1}/span {grid['h']}"
    defaults = panel["fieldConfig"]["defaults"]
    draw: dict[str, Callable[[], str]] = {
        "stat": lambda: _stat(defaults, rows),
        "timeseries": lambda: _timeseries(panel, query, rows, window),
        "table": lambda: _table(panel, query, rows, console),
    }
    empty = not rows or (panel["type"] == "stat" and rows[0]["value"] is None)
    body = f'<div class="none">{escape(defaults["noValue"])}</div>' if empty else draw[panel["type"]]()
    hint = escape(panel["description"], quote=True)
    return f'<section style="{place}" title="{hint}"><h2>{escape(panel["title"])}</h2>{body}</section>'


def _stat(defaults: dict[str, Any], rows: Rows) -> str:
    value = float(rows[0]["value"])
    colour = "text"
    for step in defaults["thresholds"]["steps"]:
        if step.get("value") is None or value >= step["value"]:
            colour = step["color"]
    return f'<div class="stat" style="color:{_HEX[colour]}">{escape(human(value, defaults["unit"]))}</div>'


def _timeseries(panel: dict[str, Any], query: PanelQuery, rows: Rows, window: Window) -> str:
    names = {kind: name for name, kind in query.columns.items()}
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        when = row[names["time"]].replace(tzinfo=UTC).timestamp()
        series.setdefault(str(row[names["text"]]), []).append((when, float(row[names["number"]])))
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults.get("custom", {}).get("drawStyle") == "bars"
    axis = Axis(start_s=window.start_s, end_s=window.end_s, interval_s=window.interval_s)
    grid = panel["gridPos"]
    size = (grid["w"] * _COLUMN_PX, max(80, grid["h"] * (_ROW_PX + 8) - 56 - 18 * (len(series) + 1)))
    return chart(series, axis, defaults["unit"], size, stacked=stacked)


def _table(panel: dict[str, Any], query: PanelQuery, rows: Rows, console: str) -> str:
    columns = dict(query.columns)
    for transformation in panel.get("transformations") or ():
        assert transformation["id"] == "groupingToMatrix"
        rows, columns = _matrix(transformation["options"], rows)
    properties: dict[str, dict[str, Any]] = {}
    for override in panel["fieldConfig"]["overrides"]:
        found = properties.setdefault(override["matcher"]["options"], {})
        found.update({one["id"]: one["value"] for one in override["properties"]})
    default = panel["fieldConfig"]["defaults"]["unit"]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(_cell(row, name, properties.get(name, {}), default, console) for name in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="rows"><table><thead><tr>{head}</tr></thead>{body}</table></div>'


def _matrix(options: dict[str, str], rows: Rows) -> tuple[Rows, dict[str, Any]]:
    across, down, cell = options["columnField"], options["rowField"], options["valueField"]
    corner = f"{down}\\{across}"
    names = list(dict.fromkeys(str(row[across]) for row in rows))
    matrix: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = matrix.setdefault(str(row[down]), {corner: row[down], **dict.fromkeys(names, 0)})
        line[str(row[across])] = row[cell]
    return list(matrix.values()), dict.fromkeys([corner, *names])


def _cell(row: dict[str, Any], name: str, properties: dict[str, Any], unit: str, console: str) -> str:
    value = row[name]
    text = escape(human(value, properties.get("unit", unit)))
    for link in properties.get("links", ()):
        target = _FIELD.sub(lambda found: quote(str(row[found[1]]), safe=""), link["url"])
        target = target.replace("${console:raw}", console)
        text = f'<a href="{escape(target, quote=True)}">{text}</a>'
    for mapping in properties.get("mappings", ()):
        colour = mapping["options"].get(str(value), {}).get("color", "text")
        text = f'<b style="color:{_HEX[colour]}">{text}</b>'
    return f'<td class="{"number" if isinstance(value, int | float) else "text"}">{text}</td>'
