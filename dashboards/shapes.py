"""A named query: SQL with the macros of Grafana's ClickHouse plugin, and the shape of what it answers.

The shape is declared beside the SQL because three things rest on it: the panel's overrides name its columns, the lint
checks that they exist, and the tests ask the engine whether it is true.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

Kind = Literal["time", "number", "text"]


class Format(IntEnum):
    """How the plugin frames a result; the numbers are the plugin's own."""

    TIMESERIES = 0
    TABLE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """One query. `columns`: name -> kind, in the order of the SELECT; `why`: what the numbers mean, for people.

    A time series has its time column first, then texts (one series each), then numbers, and is ordered by time.
    """

    name: str
    why: str
    columns: dict[str, Kind]
    sql: str
    format: Format = Format.TABLE

    @property
    def text(self) -> str:
        """The SQL as it goes into Grafana: trimmed, one trailing newline less."""
        return self.sql.strip()
