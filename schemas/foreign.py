"""Fields that are not known here: a newer producer's are passed over, those with room for a prompt are refused.

Prompts and tokens never enter an event, under whatever name. What is refused is the field, and its name may be content
as well, so it is not repeated.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from .errors import LARGEST_UNKNOWN, LONGEST_UNKNOWN, ForeignContent
from .events import BODIES, LookupCount
from .wire import Extra, Row, Scope

_FIELDS = {str(body.__struct_config__.tag): frozenset(body.__struct_fields__) | {"type"} for body in BODIES}
_COUNT_FIELDS = frozenset(LookupCount.__struct_fields__)
_EXTRA_FIELDS = frozenset(Extra.__struct_fields__)
_ROW, _SCOPE = len(Row.__struct_fields__), len(Scope.__struct_fields__)
_BODY, _EXTRA = Row.__struct_fields__.index("body"), Row.__struct_fields__.index("extra")


def known(values: Mapping[str, Any], fields: Collection[str], field: str) -> dict[str, Any]:
    """These values without fields that are not known. Raises `ForeignContent` at `field` where those are large."""
    _check([(name, value) for name, value in values.items() if name not in fields], field)
    return {name: value for name, value in values.items() if name in fields}


def known_body(body: Any) -> Any:
    """An event's body without fields that its type does not have. Raises `ForeignContent`."""
    if not isinstance(body, dict):
        return body
    tag = body.get("type")
    found = known(body, _FIELDS.get(tag if isinstance(tag, str) else "", {"type"}), "body")
    if isinstance(found.get("counts"), list):
        found["counts"] = [
            known(count, _COUNT_FIELDS, "body.counts") if isinstance(count, dict) else count
            for count in found["counts"]
        ]
    return found


def known_row(row: Any) -> Any:
    """One event of an envelope, likewise. Raises `ForeignContent`."""
    if not isinstance(row, list):
        return row
    found = _cut(row, _ROW, "row")
    if len(found) > _BODY:
        found[_BODY] = known_body(found[_BODY])
    if len(found) > _EXTRA and isinstance(found[_EXTRA], dict):
        found[_EXTRA] = known(found[_EXTRA], _EXTRA_FIELDS, "extra")
    return found


def known_scope(scope: Any) -> Any:
    """A scope of an envelope, likewise. Raises `ForeignContent`."""
    return _cut(scope, _SCOPE, "scope") if isinstance(scope, list) else scope


def _cut(values: list[Any], length: int, field: str) -> list[Any]:
    _check([("", value) for value in values[length:]], field)
    return values[:length]


def _check(unknown: list[tuple[str, Any]], field: str) -> None:
    sizes = [len(name) + len(msgspec.json.encode(value)) for name, value in unknown]
    if max(sizes, default=0) > LONGEST_UNKNOWN or sum(sizes) > LARGEST_UNKNOWN:
        raise ForeignContent(
            "a field that is not known here holds content at length.",
            field=field,
            remedy="Send digests: prompts and tokens never enter an event.",
        )
