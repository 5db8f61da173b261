"""How values are shown to people: names, keys, times, numbers.

Tenant names, keys and request ids are chosen by whoever sends events. On their way to a terminal they lose control
and direction characters, and an odd name is quoted, so that no name can pass for part of a sentence or a column.
"""

import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime

_HEX_KEY = re.compile(r"^[0-9a-f]{16,}$")
_PLAIN_NAME = re.compile(r"^[\w.@:/+~-]+$")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LONGEST_KEY = 40
_LONGEST_NAME = 64


def clean(text: str) -> str:
    """`text` on one line without control, format or direction characters: each is shown as its escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if unicodedata.category(char) not in _HIDDEN else char.encode("unicode_escape", "replace").decode("ascii")
        for char in text
    )


def name(text: str, unknown: str = "an unknown tenant") -> str:
    """A name inside a sentence: as it is when it looks like one, quoted and shortened otherwise."""
    if not text:
        return unknown
    return column(text)


def column(text: str) -> str:
    """A value inside a column: quoted when it holds anything a column could be forged with."""
    shown = clean(text)
    if len(shown) > _LONGEST_NAME:
        shown = shown[: _LONGEST_NAME - 1] + "…"
        text = shown
    if _PLAIN_NAME.match(text) or (text == shown and text.endswith("…") and _PLAIN_NAME.match(text[:-1])):
        return shown
    return '"' + shown.replace('"', "'") + '"'


def is_hex_key(key: str) -> bool:
    """Whether `key` is a hash, of which a few digits are enough for people."""
    return _HEX_KEY.match(key) is not None


def person_key(key: str) -> str:
    """A key as people are shown it alone: 16 hex digits of a hash, a readable key whole up to 40 characters."""
    return _shortened(key, 16 if is_hex_key(key) else _LONGEST_KEY)


def table_keys(keys: Iterable[str]) -> dict[str, str]:
    """Every key of one table in its short form: 6 hex digits, 16 where 6 would be ambiguous, more where needed.

    Two different keys never have the same short form.
    """
    distinct = sorted(set(keys))
    shown: dict[str, str] = {}
    for key in distinct:
        for length in (6, 16, *range(24, len(key) + 8, 8)) if is_hex_key(key) else range(_LONGEST_KEY, len(key) + 8, 8):
            if length >= len(key) or sum(other[:length] == key[:length] for other in distinct) == 1:
                break
        else:
            length = len(key)
        shown[key] = _shortened(key, length)
    return shown


def _shortened(key: str, length: int) -> str:
    return column_key(key if len(key) <= length else key[:length]) + ("…" if len(key) > length else "")


def column_key(key: str) -> str:
    """A store key in a column, without shortening it."""
    shown = clean(key)
    return shown if _PLAIN_NAME.match(key) else '"' + shown.replace('"', "'") + '"'


def at(time_us: int) -> datetime:
    """Microseconds since the epoch as a time in UTC; what no calendar holds becomes the nearest it does."""
    return datetime.fromtimestamp(min(max(time_us, 0) / 1e6, 253402300799), UTC)


def day(time_us: int) -> str:
    """`2026-11-29`."""
    return at(time_us).strftime("%Y-%m-%d")


def clock(time_us: int) -> str:
    """`14:20:09`, in UTC."""
    return at(time_us).strftime("%H:%M:%S")


def moment(time_us: int) -> str:
    """`2026-11-29 14:20:09 UTC`."""
    return at(time_us).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(seconds: float) -> str:
    """A duration in its two largest units: `2 h 16 min`."""
    left = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for unit, size in units:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def number(value: int) -> str:
    """`1 240`: thousands apart, with a space that does not break."""
    return f"{value:,}".replace(",", "\u00a0")


def plural(value: int, singular: str, many: str = "") -> str:
    """`1 hit`, `1 240 hits`, `3 entries`."""
    return f"{number(value)} {singular if value == 1 else many or singular + 's'}"


def listing(names: Iterable[str], most: int = 5) -> str:
    """`a, b and c`; beyond `most` names the rest is counted."""
    shown = list(names)
    if len(shown) > most:
        return ", ".join(shown[:most]) + f" and {number(len(shown) - most)} more"
    if len(shown) < 2:
        return "".join(shown)
    return ", ".join(shown[:-1]) + " and " + shown[-1]


def sentence(text: str) -> str:
    """`text` with a capital letter first, and the rest as it is."""
    return text[:1].upper() + text[1:]
