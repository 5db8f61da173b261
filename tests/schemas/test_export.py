"""The checked-in JSON Schemas and the dimension page are current, and agree with the decoder."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
from hypothesis import HealthCheck, given, settings
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder, encode_plain
from kvtrail.schemas.events import Event
from kvtrail.schemas.export import REFERENCE, files, schemas
from kvtrail.schemas.identity import DIMENSIONS, Identity

from .strategies import runs
from .test_envelope import ONE, changed, three
from .test_identity import KEY

VALIDATORS = {stem: jsonschema.Draft202012Validator(schema, format_checker=None) for stem, schema in schemas().items()}


@pytest.mark.parametrize("name", sorted(files()))
def test_the_file_is_current(name: str) -> None:
    """If this fails: `python -m kvtrail.schemas.export`, and read the difference."""
    assert (REFERENCE / name).read_text() == files()[name]


def test_nothing_else_lies_there() -> None:
    assert {path.name for path in REFERENCE.glob("*.schema.json")} == set(files()) - {"dimensions.md"}


@pytest.mark.parametrize("stem", sorted(VALIDATORS))
def test_it_is_a_schema(stem: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schemas()[stem])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(runs())
def test_what_we_write_validates(events: list[Event]) -> None:
    VALIDATORS["envelope"].validate(json.loads(EnvelopeEncoder().encode(events)))
    for event in events:
        VALIDATORS["event"].validate(json.loads(encode_plain(event)))


# An envelope's schema cannot see whether an index is inside its table.
SEEN_BY_SCHEMA = [case for case in ONE if case[2] != "events.1"]


@pytest.mark.parametrize("case", SEEN_BY_SCHEMA, ids=[f"{n}-{case[2]}" for n, case in enumerate(SEEN_BY_SCHEMA)])
def test_what_we_refuse_does_not(case: tuple[Any, str, str]) -> None:
    assert not VALIDATORS["envelope"].is_valid(json.loads(changed(case[0])))


BAD_PLAIN: list[dict[str, Any]] = [
    {"v": 2},
    {"seq": 0},
    {"node": ""},
    {"home": "x"},
    {"identity": {"tenant_id": " "}},
    {"identity": {}},
    {"identity": {"tenant_id": "t", "template_digest": "support_v7"}},
    {"body": {"type": "telepathy"}},
]


@pytest.mark.parametrize("values", BAD_PLAIN)
def test_plain_events_are_held_to_it_too(values: dict[str, Any]) -> None:
    plain = {**json.loads(encode_plain(three()[0])), **values}
    assert not VALIDATORS["event"].is_valid(plain)
    assert EnvelopeDecoder().decode(json.dumps(plain).encode()).rejects


def test_keys_and_identities() -> None:
    VALIDATORS["prefix-key"].validate(KEY)
    for name in KEY:
        assert not VALIDATORS["prefix-key"].is_valid({key: value for key, value in KEY.items() if key != name})
    VALIDATORS["identity"].validate(Identity(tenant_id="t").to_wire())
    assert list(schemas()["identity"]["properties"]) == list(DIMENSIONS)


def test_the_page_has_a_row_for_each_dimension() -> None:
    page = files()["dimensions.md"]
    for name, dimension in DIMENSIONS.items():
        assert f"| `{name}` |" in page
        assert dimension.may_differ in page
