"""What goes over the agent's socket, as both ends write and read it. Standard library only.

A frame is four bytes of length and a JSON object. The engine says hello (version, node, incarnation), then sends runs:
a lane's next events with the number of the first, in columns, of which one that is the same throughout is sent once.
The agent answers each run with its number, in any order, or says why it takes none.
"""

import json
import struct
from collections.abc import Iterator
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .buffer import columns

if TYPE_CHECKING:
    from asyncio import StreamReader

WIRE_VERSION = 2
LARGEST_RUN = 1024 * 1024
"""Bytes of a run. What is larger goes in several; a call that is larger alone is refused: no record would hold it."""
LARGEST_FRAME = 16 * 1024 * 1024

Call = tuple[int, str, str, Any, str, str, str, str, Any, dict[str, Any] | None]
"""One accepted call: time in ns, its name, key, identity, store, tier, owner, request id, tokens, other arguments."""

_KEY, _REQUEST = itemgetter(2), itemgetter(7)
_COLUMNS = 9
"""Of a call, without its time."""
_KEPT = 4096


def frame(value: object) -> bytes:
    """A value as it goes over the socket. Raises where JSON cannot hold it."""
    raw = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return struct.pack(">I", len(raw)) + raw


def take_frames(received: bytearray) -> Iterator[dict[str, Any]]:
    """The whole frames at its front, each taken out of it."""
    while len(received) >= 4 and len(received) >= 4 + (size := int.from_bytes(received[:4])):
        value = json.loads(received[4 : 4 + size])
        del received[: 4 + size]
        yield value


async def read_frame(reader: "StreamReader") -> dict[str, Any] | None:
    """The next frame; None at the end of the stream. Raises `ValueError` for what is no frame, `EOFError` for half."""
    try:
        size = int.from_bytes(await reader.readexactly(4))
    except EOFError:
        return None
    if size > LARGEST_FRAME:
        raise ValueError("too large")
    value = json.loads(await reader.readexactly(size))
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


class RunWriter:
    """Writes runs. An identity is turned into dimensions once, and into none again while it stays the same."""

    def __init__(self) -> None:
        self._identities: dict[int, tuple[Any, dict[str, str]]] = {}

    def write(self, number: int, home: str, first: int, calls: list[Call]) -> bytes:
        """These calls as run `number`, the first of them event `first` of its lane. Raises where JSON cannot hold one,
        or one is no call."""
        times, names, keys, identities, stores, tiers, owners, requests, tokens, fields = columns(calls)
        places: dict[int, int] = {}
        table: list[dict[str, str]] = []
        ids = list(map(id, identities))
        for identity in dict(zip(ids, identities, strict=True)).values():
            places[id(identity)] = -1 if identity is None else len(table)
            if identity is not None:
                table.append(self._dimensions(identity))
        t0 = times[0]
        sent = (
            names, keys, list(map(places.__getitem__, ids)), stores, tiers, owners, requests, tokens, fields,
        )  # fmt: skip
        return frame(
            {
                "n": number, "home": home, "first": first, "t0": t0 // 1000, "ids": table,
                "times": [(time_ns - t0) // 1000 for time_ns in times], "columns": list(map(_column, sent)),
            }
        )  # fmt: skip

    def _dimensions(self, identity: Any) -> dict[str, str]:
        kept = self._identities.get(id(identity))
        fixed = hasattr(identity, "to_wire")
        if kept is None or not (fixed or kept[1] == identity):  # a mapping may have been given other values since
            if len(self._identities) >= _KEPT:
                self._identities.clear()
            made = identity.to_wire() if fixed else dict(identity)
            kept = self._identities[id(identity)] = (identity, made)  # kept, so that its id stays its own
        return kept[1]


def rows(times: list[int], sent: list[Any]) -> Iterator[tuple[Any, ...]]:
    """The calls of a run, with a number for an identity and microseconds since its start for a time. Raises
    `ValueError`, `TypeError` for columns that are none."""
    if len(sent) != _COLUMNS:
        raise ValueError
    size = len(times)
    return zip(times, *(each if isinstance(each, list) else repeat(each, size) for each in sent), strict=True)


def characters(calls: list[Call]) -> int:
    """How many characters these calls have at least; 0 where one has none to count."""
    try:
        return sum(map(len, map(_KEY, calls))) + sum(map(len, map(_REQUEST, calls)))
    except TypeError:
        return 0


def _column(values: list[Any]) -> Any:
    """What stands for these values: one of them where all are the same."""
    first = values[0]
    same = isinstance(first, str | int | None) and values.count(first) == len(values)
    return first if same else values
