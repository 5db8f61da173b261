"""JSON Schemas and the dimension table's page, generated from the declarations: `python -m kvtrail.schemas.export`.

The files are checked in under `docs/reference/`; a test holds them to the code.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from .context import DIMENSIONS_KNOWN, LONGEST_REQUEST_ID, RequestContext
from .dead_letters import DeadLetter
from .digests import DIGEST_PATTERN
from .facts import Fact
from .findings import Finding
from .identity import CORE, DIMENSIONS, Identity, PrefixKey
from .notifications import Notification
from .wire import MAX_EVENTS, SCHEMA_VERSION, Envelope, PlainEvent

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = Path(__file__).parent.parent / "docs" / "reference"

_STRUCTS: tuple[tuple[str, type[msgspec.Struct], str], ...] = (
    ("event", PlainEvent, "One event as a plain JSON record on kvtrail.lifecycle, identity inline."),
    ("envelope", Envelope, "One record of many events on kvtrail.lifecycle, their strings and identities in tables."),
    ("facts", Fact, "One record on kvtrail.facts: something the fleet knows outside the cache."),
    ("context", RequestContext, "A record on kvtrail.context: who asked, under a request id. Events wait there too."),
    ("finding", Finding, "One record on kvtrail.findings: one revision of one finding."),
    ("dead-letter", DeadLetter, "One record on kvtrail.dead-letter: refused input with its exact bytes."),
    ("notification", Notification, "The body that a webhook gets: what became of one incident."),
)

_CHECKED_IN_CODE: dict[str, dict[str, Any]] = {
    "v": {"const": SCHEMA_VERSION},
    "node": {"minLength": 1},
    "incarnation": {"minLength": 1},
    "home": {"pattern": "^[ns]:"},
    "seq": {"minimum": 1},
    "first": {"minimum": 1},
    "events": {"minItems": 1, "maxItems": MAX_EVENTS},
}
"""What decoding an event or envelope checks beyond the types of its fields."""


def schemas() -> dict[str, dict[str, Any]]:
    """File stem -> JSON Schema."""
    found = {stem: _struct_schema(kind, title) for stem, kind, title in _STRUCTS}
    identity = _identity_schema()
    # An event's identity is validated by the same table as everything else.
    for stem in ("event", "envelope"):
        found[stem]["$defs"]["Identity"] = identity
    event = found["event"]["$defs"]["PlainEvent"]["properties"]
    event["identity"] = {"anyOf": [{"$ref": "#/$defs/Identity"}, {"type": "null"}], "default": None}
    found["envelope"]["$defs"]["Envelope"]["properties"]["identities"]["items"] = {"$ref": "#/$defs/Identity"}
    context = found["context"]["$defs"]["RequestContext"]["properties"]
    context["request_id"] |= {"minLength": 1, "maxLength": LONGEST_REQUEST_ID}
    for name in DIMENSIONS_KNOWN:
        context[name] = identity["properties"][name]
    found["identity"] = {"$schema": DIALECT, "$id": "identity.schema.json", "title": "Who asked, for what.", **identity}
    key = _identity_schema()
    key["required"] = sorted(CORE)
    key["description"] = "The nine core dimensions are required, the others may be added."
    for name in CORE:
        if name != "tool_schema_digest":
            key["properties"][name] = {**_dimension_schema(name), "minLength": 1}
        else:
            key["properties"][name] = _dimension_schema(name)
    found["prefix-key"] = {"$schema": DIALECT, "$id": "prefix-key.schema.json", "title": "A complete key.", **key}
    return found


def _struct_schema(kind: type[msgspec.Struct], title: str) -> dict[str, Any]:
    (top,), defs = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    stem = next(stem for stem, struct, _ in _STRUCTS if struct is kind)
    properties = defs[kind.__name__]["properties"]
    for name, constraint in _CHECKED_IN_CODE.items():
        if name in properties and (name == "v" or kind in (PlainEvent, Envelope)):
            properties[name] = {**properties[name], **constraint}
    defs = dict(sorted(defs.items()))
    return {"$schema": DIALECT, "$id": f"{stem}.schema.json", "title": title, **top, "$defs": defs}


def _dimension_schema(name: str) -> dict[str, Any]:
    dimension = DIMENSIONS[name]
    schema: dict[str, Any] = {"type": "string", "description": f"{dimension.title} ({dimension.form})"}
    if dimension.form == "digest":
        schema["pattern"] = f"^$|{DIGEST_PATTERN}"
    if name == "tenant_id":
        schema["pattern"] = r"\S"
    schema["maxLength"] = 256 if name == "tenant_id" else 512
    return schema


def _identity_schema() -> dict[str, Any]:
    assert set(PrefixKey.model_fields) == set(Identity.model_fields)
    properties: dict[str, Any] = {}
    for name in DIMENSIONS:
        schema = _dimension_schema(name)
        properties[name] = schema if name == "tenant_id" else {**schema, "type": ["string", "null"]}
    return {
        "type": "object",
        "description": "Absent or null means unknown, empty means known to be none. Unknown names are left out.",
        "properties": properties,
        "required": ["tenant_id"],
    }


def dimensions_page() -> str:
    """`docs/reference/dimensions.md`."""
    lines = [
        "# Dimensions of identity",
        "",
        "Generated from `schemas/identity.py` by `python -m kvtrail.schemas.export`; do not edit.",
        "",
        "Everything that changes what tokens mean, or who may see them. Each is declared once; rules, ClickHouse",
        "columns, coverage and this page come from it. Absent means *unknown*, which is never equal to anything;",
        "empty means *known to be none*. Of several differing dimensions the first in this order names the cause.",
        "A digest is lower-case hexadecimal of at least 64 bits, optionally with what made it before a colon.",
        "",
        "| dimension | column | form | means | entries | differing is | cause | may it legitimately differ? |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, dimension in DIMENSIONS.items():
        core = " **(core)**" if name in CORE else ""
        modes = "" if dimension.modes >= {"exact", "semantic"} else ", exact matches"
        yields = f" Counts only where `{dimension.yields_to}` is unknown." if dimension.yields_to else ""
        cells = (
            f"{dimension.title}{core}", f"`{name}`", dimension.form, dimension.role.value,
            _listed(dimension.kinds) + modes, dimension.severity.value, f"`{dimension.cause}`",
            dimension.may_differ + yields,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _listed(kinds: Iterable[str]) -> str:
    order = ("kv", "state", "media", "response")
    found = sorted(kinds, key=order.index)
    return "all" if len(found) == len(order) else ", ".join(found)


def files() -> dict[str, str]:
    """File name -> content of everything generated."""
    made = {
        f"{stem}.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for stem, schema in schemas().items()
    }
    return {**made, "dimensions.md": dimensions_page()}


def main() -> None:
    """Write the files."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (REFERENCE / name).write_text(content)


if __name__ == "__main__":
    main()
