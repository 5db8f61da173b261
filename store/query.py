"""A named query: SQL whose values are bound on the server, and the type of its rows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .client import Client

T = TypeVar("T")
_PARAMETER = re.compile(r"\{(\w+):[^}]+\}")

FAR_PAST_US = -(2**62)
FAR_FUTURE_US = 2**62
ANY_TIME: Mapping[str, Any] = {"since_us": FAR_PAST_US, "until_us": FAR_FUTURE_US}
# Compared as DateTime64, so that the sort key and the minmax index prune.
IN_TIME = """event_time >= fromUnixTimestamp64Micro({since_us:Int64})
  AND event_time <= fromUnixTimestamp64Micro({until_us:Int64})"""


@dataclass(frozen=True)
class Query(Generic[T]):
    """One query: its SQL over the tables of the connection's database, and how a row becomes a `T`."""

    name: str
    about: str
    sql: str
    row: Callable[[Mapping[str, Any]], T]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> frozenset[str]:
        """The names it binds."""
        return frozenset(_PARAMETER.findall(self.sql))

    def run(self, client: Client, **params: Any) -> list[T]:
        """Its rows. Raises what `Client.query` does; a missing or unknown parameter is a `TypeError`."""
        bound = {**self.defaults, **params}
        if bound.keys() != self.parameters:
            wrong = sorted(bound.keys() ^ self.parameters)
            raise TypeError(f"query {self.name} does not go with these parameters: {', '.join(wrong)}")
        return [self.row(row) for row in client.query(self.sql, bound)]
