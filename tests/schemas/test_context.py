"""The context codec: what a gateway says, and the events that wait for it."""

import importlib.resources
import json
from typing import Any

import pytest
from kvtrail.schemas.context import (
    RESOLVER,
    RequestContext,
    decode_context,
    decode_record,
    encode_context,
    lacks_identity,
    offer,
    resolution,
    trace_of,
)
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.errors import BadInput
from kvtrail.schemas.events import Create, Event, Expire, Hit, Resolve
from msgspec.structs import replace

from .test_export import VALIDATORS

EXAMPLE = (importlib.resources.files("kvtrail.schemas.examples") / "context.json").read_bytes()
WAITING = Event(
    node="gpu-17/0", incarnation="i", home="s:pool:3", seq=7, time_us=5_000, body=Hit(reused_tokens=8), store="pool",
    tier="shared", key="K", request_id="req-2044",
)  # fmt: skip


def test_the_example_shows_every_field_and_comes_back_equal() -> None:
    given = json.loads(EXAMPLE)
    assert set(given) == set(RequestContext.__struct_fields__)
    VALIDATORS["context"].validate(given)
    context = decode_context(EXAMPLE)
    assert json.loads(encode_context(context)) == {key: value for key, value in given.items() if key != "v"}
    assert decode_record(EXAMPLE, EnvelopeDecoder()) == context
    assert context.identity().tool_schema_digest == "" and context.identity().weights_digest is None


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"tenant_id": " "}, "empty_tenant", "context.tenant_id"),
        ({"template_digest": "support_v7"}, "name_in_digest_place", "context.template_digest"),
        ({"isolation_domain": "the salt itself"}, "name_in_digest_place", "context.isolation_domain"),
        ({"request_id": ""}, "invalid_field", "context.request_id"),
        ({"request_id": "r" * 257}, "invalid_field", "context.request_id"),
        ({"at_us": "now"}, "invalid_field", "context.at_us"),
        ({"principal": 7}, "invalid_field", "context.principal"),
        ({"v": 2}, "unknown_schema_version", "v"),
    ],
)
def test_what_is_refused_is_named_without_its_value(change: dict[str, Any], code: str, field: str) -> None:
    raw = json.dumps({**json.loads(EXAMPLE), **change}).encode()
    with pytest.raises(BadInput) as caught:
        decode_record(raw, EnvelopeDecoder())
    assert (caught.value.code, caught.value.field) == (code, field)
    assert all(
        str(value) not in str(caught.value) for value in change.values() if isinstance(value, str) and value.strip()
    )
    assert not VALIDATORS["context"].is_valid(json.loads(raw))


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b"7", b'{"body":{}}', b"{}"])
def test_what_is_neither_is_refused(raw: bytes) -> None:
    with pytest.raises(BadInput):
        decode_record(raw, EnvelopeDecoder())


def test_an_event_waits_where_a_context_can_complete_it() -> None:
    assert lacks_identity(WAITING) and lacks_identity(replace(WAITING, body=Create()))
    assert not lacks_identity(replace(WAITING, request_id=""))
    assert not lacks_identity(replace(WAITING, body=Expire(reason="ttl")))
    assert not lacks_identity(replace(WAITING, identity=decode_context(EXAMPLE).identity()))
    assert decode_record(offer(WAITING), EnvelopeDecoder()) == WAITING


@pytest.mark.parametrize(
    "raw",
    [
        offer(replace(WAITING, request_id="")),
        offer(replace(WAITING, body=Expire(reason="ttl"))),
        offer(replace(WAITING, seq=0)),
        b'{"body":{},' + EnvelopeEncoder().encode([WAITING, replace(WAITING, seq=8)])[1:],
    ],
)
def test_other_events_do_not_wait(raw: bytes) -> None:
    with pytest.raises(BadInput):
        decode_record(raw, EnvelopeDecoder())


def test_a_resolution_follows_from_its_event_alone() -> None:
    context = decode_context(EXAMPLE)
    made = resolution(WAITING, context)
    assert made.id == f"{RESOLVER}/{WAITING.id}"
    assert made.body == Resolve(event_id=WAITING.id) and made.identity == context.identity()
    assert (made.home, made.store, made.tier, made.key) == (WAITING.home, "pool", "shared", "K")
    assert made == resolution(WAITING, context)
    assert EnvelopeDecoder().decode(offer(made)).events == [made]


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", TRACE),
        (" cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-later ", TRACE),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", ""),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", ""),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", ""),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", ""),
        ("", ""),
    ],
)
def test_trace_ids(header: str, trace: str) -> None:
    assert trace_of(header) == trace
