"""What msgspec says of a bad value, without it, since it may be a prompt or a secret: the allowed ones are named."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct


def choices(*structs: type[Struct]) -> dict[str, tuple[str, ...]]:
    """Field -> the texts it may hold, for the fields of `structs` that hold one of a few; `type` -> their tags."""
    found: dict[str, set[str]] = {}
    for struct in structs:
        tag = struct.__struct_config__.tag
        if isinstance(tag, str):
            found.setdefault("type", set()).add(tag)
        for name, hint in get_type_hints(struct).items():
            values = _literals(hint)
            if values:
                found.setdefault(name, set()).update(values)
    return {name: tuple(sorted(values)) for name, values in found.items()}


def reworded(error: msgspec.ValidationError, allowed: dict[str, tuple[str, ...]], row: type[Struct]) -> tuple[str, str]:
    """What is wrong, and the field: a dotted path in which positions of a `row` sent as an array have their names."""
    text = str(error)
    end = text.rfind(" - at `$")
    message, path = (text, "") if end < 0 else (text[:end], text[end + len(" - at `$") :].rstrip("`"))
    if path.startswith("["):
        for position, name in enumerate(row.__struct_fields__):
            if path.startswith(f"[{position}]"):
                path = f".{name}{path[len(f'[{position}]') :]}"
                break
    field = path.lstrip(".")
    if message.startswith(("Invalid enum value", "Invalid value")):
        known = allowed.get(field.rpartition(".")[2])
        message = f"is none of {', '.join(known)}" if known else "is none of the values it may hold"
    elif message.startswith("Object contains unknown field"):
        message = "has a field that is not known here"
    return f"{message}.", field


def _literals(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return tuple(value for value in get_args(hint) if isinstance(value, str))
    return tuple(value for part in get_args(hint) for value in _literals(part))
