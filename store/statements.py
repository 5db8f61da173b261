"""Just enough of ClickHouse's grammar to find where a statement ends and its data begins."""

import re
from typing import NamedTuple

_TOKEN = re.compile(
    rb"""(?P<skip>\s+|--[^\n]*|\#[!\ ][^\n]*|/\*.*?\*/)
    |(?P<quoted>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`\\]|\\.|``)*`|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_AFTER_FORMAT = re.compile(rb"[ \t\f]*(?:\r?\n)?")
_NO_DATA = frozenset({b"SELECT", b"WITH", b"VALUES", b"INFILE", b"WATCH"})
_RESULTS = frozenset({b"SELECT", b"WITH", b"SHOW", b"DESCRIBE", b"DESC", b"EXPLAIN", b"EXISTS", b"CHECK", b"FROM"})


class Insert(NamedTuple):
    """An INSERT that carries its rows: `target` up to its columns, its SETTINGS clause, the format, the rows' bytes."""

    target: bytes
    settings: bytes
    format: str
    data: bytes


def split_insert(text: bytes) -> Insert | None:
    """The parts of `INSERT ... FORMAT name <data>`; None for every other statement, VALUES and SELECT included."""
    depth, first, awaiting = 0, True, False
    settings, end = 0, 0
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match["skip"] is not None:
            continue
        word = match["word"]
        if first:
            if word is None or word.upper() != b"INSERT":
                return None
            first = False
        elif awaiting:
            if word is None:
                return None
            target, clause = text[: settings or end], text[settings:end] if settings else b""
            return Insert(target.rstrip(), clause.rstrip(), word.decode(), text[_data_start(text, position) :])
        elif match["other"] is not None:
            depth += (match["other"] == b"(") - (match["other"] == b")")
        elif word is not None and depth == 0:
            upper = word.upper()
            if upper in _NO_DATA:
                return None
            if upper == b"SETTINGS":
                settings = match.start()
            if upper == b"FORMAT":
                awaiting, end = True, match.start()
    return None


def _data_start(text: bytes, position: int) -> int:
    match = _AFTER_FORMAT.match(text, position)
    assert match is not None
    return match.end()


def result_format(text: bytes, default: str) -> str | None:
    """The format a statement answers in: its own FORMAT clause or `default`; None where it has no result."""
    depth, first, after = 0, True, False
    named: bytes | None = None
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match["skip"] is not None:
            continue
        word = match["word"]
        if first and match["other"] != b"(":
            if word is None or word.upper() not in _RESULTS:
                return None
            first = False
        if after and word is not None:
            named = word
        after = False
        if match["other"] is not None:
            depth += (match["other"] == b"(") - (match["other"] == b")")
        elif word is not None and depth == 0 and word.upper() == b"FORMAT":
            after = True
    return named.decode() if named is not None else default
