"""The shipped examples: one for each event type, scrubbed, and good for every codec."""

import importlib.resources
import json
from importlib.resources.abc import Traversable

import pytest
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder, encode_plain
from kvtrail.schemas.events import BODIES, EVENT_TYPES, Event

from .test_export import VALIDATORS

EXAMPLES = importlib.resources.files("kvtrail.schemas.examples")
# What a real deployment's event could leak, and an example must not.
FOREIGN = ("http", "@", "/home", "Bearer", "sk-", "password", "prompt")


def example(name: str) -> Traversable:
    return EXAMPLES / f"{name}.json"


def load(name: str) -> Event:
    batch = EnvelopeDecoder().decode(example(name).read_bytes())
    assert batch.rejects == []
    (event,) = batch.events
    return event


def test_one_for_each_type_and_no_other() -> None:
    names = {entry.name.removesuffix(".json") for entry in EXAMPLES.iterdir() if entry.name.endswith(".json")}
    assert names == {*EVENT_TYPES, "context"}


@pytest.mark.parametrize("name", EVENT_TYPES)
def test_it_validates_and_survives_both_codecs(name: str) -> None:
    text = example(name).read_text()
    VALIDATORS["event"].validate(json.loads(text))
    event = load(name)
    assert event.type == name
    # Written again it says the same, field for field.
    assert json.loads(encode_plain(event)) == json.loads(text)
    assert EnvelopeDecoder().decode(EnvelopeEncoder().encode([event])).events == [event]
    VALIDATORS["envelope"].validate(json.loads(EnvelopeEncoder().encode([event])))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.__struct_config__.tag))
def test_it_shows_every_field_of_its_body(body: type) -> None:
    tag = str(body.__struct_config__.tag)  # type: ignore[attr-defined]  # every body is a msgspec struct
    shown = set(json.loads(example(tag).read_text())["body"]) - {"type"}
    assert shown == set(body.__struct_fields__)  # type: ignore[attr-defined]  # every body is a msgspec struct


@pytest.mark.parametrize("name", EVENT_TYPES)
def test_it_is_scrubbed(name: str) -> None:
    text = example(name).read_text()
    assert not [word for word in FOREIGN if word in text]


def test_together_they_are_one_lane() -> None:
    events = sorted((load(name) for name in EVENT_TYPES), key=lambda event: event.seq)
    assert EnvelopeDecoder().decode(EnvelopeEncoder().encode(events)).events == events
