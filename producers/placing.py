"""Where a call belongs: the homes that order its event, or that it names none. Standard library only.

What happened to an entry and cannot be written down must still leave a trace, so such a call costs a number of its
lane, and one that names no home costs one of the node's own.
"""

from functools import lru_cache
from typing import Any

from ..schemas.homes import node_home, shared_home, shared_homes

CACHE_CALLS = frozenset({"create", "hit", "commit", "expire", "invalidate"})
"""Calls that say what happened to an entry."""
_LONGEST = 1024
_RESERVED = "kvtrail:"


class Homeless(Exception):
    """`field` names no home that a record can have."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class NotText(Homeless):
    """`field` holds bytes. A record would have them as Base64 text: another key than the one that was meant."""


_BYTES = frozenset({bytes, bytearray, memoryview})


def refuse_bytes(given: dict[str, Any]) -> None:
    """Raises `NotText` where an argument is bytes, or a sequence or mapping that holds some."""
    for field, value in given.items():
        kind = type(value)
        if kind in _BYTES or (kind in (list, tuple) and not _BYTES.isdisjoint(map(type, value))):
            raise NotText(field)
        if kind is dict and not _BYTES.isdisjoint(map(type, (*value, *value.values()))):
            raise NotText(field)


def homes_at(shared: bool, whole: bool, key: Any, store: Any, owner: Any, node: str, slots: int) -> tuple[str, ...]:
    """The homes of a call: every slot of a shared store where it covers the `whole` of it. Raises `Homeless`."""
    if not shared:
        if not owner:
            return (node_home(node),)
        homes: tuple[str, ...] = (node_home(_text("owner", owner)),)
    elif whole:
        homes = shared_homes(_text("store", store), slots)
    else:
        homes = (shared_home(_text("store", store), _text("key", key), slots),)
    if not _is_home(homes[0], node.startswith(_RESERVED)):
        raise Homeless("store" if shared else "owner")
    return homes


def _text(field: str, value: Any) -> str:
    if type(value) is not str:
        raise Homeless(field)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Homeless(field) from None
    return value


@lru_cache(maxsize=4096)
def _is_home(home: str, reserved: bool) -> bool:
    return len(home) <= _LONGEST and home.startswith(f"n:{_RESERVED}") is reserved


def turn_down(books: Any, name: str, error: Exception) -> None:
    """Count a call that could not be carried out, by its field, in the buffer's books. Never raises."""
    field = error.field if isinstance(error, Homeless) else "arguments"
    (books.lose if name in CACHE_CALLS else books.refuse)(f"{name}.{field}")
