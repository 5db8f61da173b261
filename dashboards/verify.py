"""Run every query on a real engine: does it run, and does it answer in the shape that its panel expects?"""

from collections.abc import Iterable
from typing import Any

from ..schemas.errors import StoreError
from ..store.client import Client
from .macros import Window, expand
from .queries import QUERIES
from .shapes import Format, Kind, PanelQuery


def run(client: Client, query: PanelQuery, window: Window) -> list[dict[str, Any]]:
    """The rows Grafana would draw. Raises `StoreError` as the client does."""
    return client.query(expand(query.text, window))


def types(client: Client, query: PanelQuery, window: Window) -> dict[str, str]:
    """Column -> ClickHouse type, in the order of the SELECT."""
    rows = client.query(f"DESCRIBE TABLE ({expand(query.text, window)})")
    return {row["name"]: row["type"] for row in rows}


def kind(type_name: str) -> Kind | None:
    """What a panel sees in a column of this ClickHouse type; None for what it cannot draw."""
    for wrapper in ("LowCardinality(", "Nullable("):
        type_name = type_name.removeprefix(wrapper)
    bare = type_name.split("(")[0].rstrip(")")
    if bare in ("DateTime", "DateTime64", "Date", "Date32"):
        return "time"
    if bare in ("String", "FixedString", "UUID", "Enum8", "Enum16"):
        return "text"
    return "number" if bare.startswith(("Int", "UInt", "Float", "Decimal", "Bool")) else None


def problems(client: Client, window: Window, queries: Iterable[PanelQuery] = QUERIES) -> list[str]:
    """What is wrong with the queries on this engine, one sentence each; nothing means that all of them run and
    answer in their declared shape."""
    found: list[str] = []
    for query in queries:
        try:
            found += [f"{query.name}: {problem}" for problem in _problems(client, query, window)]
        except StoreError as error:
            found.append(f"{query.name}: {error.message}")
    return found


def _problems(client: Client, query: PanelQuery, window: Window) -> list[str]:
    told = {name: kind(type_name) for name, type_name in types(client, query, window).items()}
    found: list[str] = []
    if list(told.items()) != list(query.columns.items()):
        found.append(f"answers {told}, not {query.columns}")
    rows = run(client, query, window)
    if query.format is Format.TIMESERIES:
        kinds = list(query.columns.values())
        if kinds != sorted(kinds, key=("time", "text", "number").index) or kinds.count("time") != 1:
            found.append("is no time series: one time, then texts, then numbers")
        times = [row["time"] for row in rows]
        if times != sorted(times):
            found.append("is not in order of time")
    return found
