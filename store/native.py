"""The Native format as clients of a newer protocol read it.

The engine writes Native as for a client that named no protocol version. Go's client, and with it Grafana's plugin,
names one, and then expects a block header and a flag before each column. Adding them needs to know where each column
ends, so the types are walked, never converted.
"""

import re
from collections.abc import Callable
from typing import NoReturn

from .embedded import EngineError

LEAST_REVISION = 54454
"""From here on columns carry the flag; older protocols are answered as if none was named, which clients probe for."""

_BLOCK_HEADER = b"\x01\x00\x02\xff\xff\xff\xff\x00"
_PLAIN_COLUMN = b"\x00"
_SIZES: dict[str, int] = {
    **dict.fromkeys(("UInt8", "Int8", "Bool", "Enum8", "Nothing"), 1),
    **dict.fromkeys(("UInt16", "Int16", "Date", "Enum16", "BFloat16"), 2),
    **dict.fromkeys(("UInt32", "Int32", "Float32", "DateTime", "Date32", "IPv4", "Decimal32", "Time"), 4),
    **dict.fromkeys(("UInt64", "Int64", "Float64", "DateTime64", "Decimal64", "Time64"), 8),
    **dict.fromkeys(("UInt128", "Int128", "UUID", "IPv6", "Decimal128"), 16),
    **dict.fromkeys(("UInt256", "Int256", "Decimal256"), 32),
}
_HAS_ADDITIONAL_KEYS = 1 << 9
_NAME = re.compile(r"\s*(\w+)\s*")


def with_revision(data: bytes, revision: int) -> bytes:
    """Native `data` as a client of protocol `revision` expects it. Raises `EngineError` for types it cannot walk."""
    if revision < LEAST_REVISION:
        return data
    out: list[bytes] = []
    at = 0
    while at < len(data):
        start = at
        columns, at = _varint(data, at)
        rows, at = _varint(data, at)
        out += (_BLOCK_HEADER, data[start:at])
        for _ in range(columns):
            start = at
            size, at = _varint(data, at)
            at += size
            size, at = _varint(data, at)
            kind = data[at : at + size].decode()
            at += size
            out += (data[start:at], _PLAIN_COLUMN)
            start = at
            if rows:
                # Low cardinalities, however deep, announce their version before the column's first value.
                at = _skip(kind, data, at + 8 * kind.count("LowCardinality("), rows)
            out.append(data[start:at])
    return b"".join(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _skip(kind: str, data: bytes, at: int, rows: int) -> int:
    """Where a column of `rows` values of type `kind` ends that starts at `at`."""
    name, arguments = _parse(kind)
    size = _SIZES.get(name)
    if size is not None:
        return at + size * rows
    walk = _WALKS.get(name)
    if walk is None:
        _unsupported(name)
    return walk(arguments, data, at, rows)


def _strings(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    for _ in range(rows):
        size = data[at]
        if size < 0x80:
            at += size + 1
        else:
            size, at = _varint(data, at)
            at += size
    return at


def _fixed(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    return at + int(arguments[0]) * rows


def _decimal(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    digits = int(arguments[0])
    return at + rows * (4 if digits <= 9 else 8 if digits <= 18 else 16 if digits <= 38 else 32)


def _nullable(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    return _skip(arguments[0], data, at + rows, rows)


def _array(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    values = int.from_bytes(data[at + 8 * (rows - 1) : at + 8 * rows], "little")
    at += 8 * rows
    return _skip(arguments[0], data, at, values) if values else at


def _tuple(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    for argument in arguments:
        at = _skip(_unnamed(argument), data, at, rows)
    return at


def _map(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    return _array([f"Tuple({', '.join(arguments)})"], data, at, rows)


def _nested(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    return _array([f"Tuple({', '.join(arguments)})"], data, at, rows)


def _same_as_last(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    return _skip(arguments[-1], data, at, rows)


def _low_cardinality(arguments: list[str], data: bytes, at: int, rows: int) -> int:
    """Runs of: index width and flags, the dictionary's additions, the rows' indexes into it."""
    inner, nested = _parse(arguments[0])
    kind = nested[0] if inner == "Nullable" else arguments[0]
    while rows > 0:
        flags, count, at = _uint64(data, at), _uint64(data, at + 8), at + 16
        if flags & _HAS_ADDITIONAL_KEYS:
            at = _skip(kind, data, at, count)
            count, at = _uint64(data, at), at + 8
        at += count << (flags & 0xFF)
        rows -= count
    return at


def _uint64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


_WALKS: dict[str, Callable[[list[str], bytes, int, int], int]] = {
    "String": _strings,
    "FixedString": _fixed,
    "Decimal": _decimal,
    "Nullable": _nullable,
    "Array": _array,
    "LowCardinality": _low_cardinality,
    "Tuple": _tuple,
    "Map": _map,
    "Nested": _nested,
    "SimpleAggregateFunction": _same_as_last,
}


def _parse(kind: str) -> tuple[str, list[str]]:
    """`Map(String, Array(UInt8))` as its name and its arguments."""
    match = _NAME.match(kind)
    if match is None:
        _unsupported(kind)
    name = match[1]
    if name.startswith("Interval"):
        return "Int64", []
    rest = kind[match.end() :].strip()
    if not rest:
        return name, []
    arguments: list[str] = []
    depth, quoted, begin = 0, False, 1
    for place, sign in enumerate(rest):
        if sign == "'" and rest[place - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                arguments.append(rest[begin:place].strip())
        elif sign == "," and depth == 1:
            arguments.append(rest[begin:place].strip())
            begin = place + 1
    return name, arguments


def _unnamed(element: str) -> str:
    """The type of a tuple's element, which may carry a name before it."""
    match = re.match(r"(?:`(?:[^`\\]|\\.)*`|[A-Za-z_]\w*)\s+(?=[A-Za-z])", element)
    return element[match.end() :] if match else element


def _unsupported(name: str) -> NoReturn:
    raise EngineError(
        48,
        f"Code: 48. DB::Exception: Columns of type {name} cannot be sent by this protocol. (NOT_IMPLEMENTED)",
    )
