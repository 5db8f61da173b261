"""Wherever a prompt or its tokens could be put into a record, they are refused; a newer producer is understood."""

import json
from typing import Any

import pytest
from kvtrail.schemas.context import decode_context
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder
from kvtrail.schemas.errors import ForeignContent
from kvtrail.schemas.events import Hit, Lookups

PROMPT = "You are a helpful assistant of northwind. " * 10
TOKENS = list(range(300))
SCOPE = [0, "gpu", 0, 0, "derived", "kv", 0]
TENANT = {"tenant_id": "northwind"}


def envelope(**changes: Any) -> dict[str, Any]:
    return {
        "v": 1, "node": "n1", "incarnation": "i1", "home": "n:n1", "first": 1, "last": 1, "t0": 1, "strings": ["", "k"],
        "scopes": [SCOPE], "identities": [TENANT], "events": [[0, 0, 1, 0, -1, {"type": "hit", "reused_tokens": 3}]],
    } | changes  # fmt: skip


def plain(**changes: Any) -> dict[str, Any]:
    return {
        "v": 1, "node": "n1", "incarnation": "i1", "home": "n:n1", "seq": 1, "time_us": 1, "body": {"type": "hit"},
        "identity": TENANT,
    } | changes  # fmt: skip


def decode(record: dict[str, Any]) -> Batch:
    return EnvelopeDecoder().decode(json.dumps(record).encode())


def row(body: dict[str, Any] | None = None, *more: Any) -> list[Any]:
    return [0, 0, 1, 0, -1, {"type": "hit"} | (body or {}), *more]


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (envelope(prompt=PROMPT), "record"),
        (envelope(events=[row({"prompt": PROMPT})]), "events.0.body"),
        (envelope(events=[row({"token_ids": TOKENS})]), "events.0.body"),
        (envelope(events=[row({"more": {"messages": [PROMPT]}})]), "events.0.body"),
        (envelope(events=[row({f"n{n}": "two hundred bytes of it " * 8 for n in range(9)})]), "events.0.body"),
        (envelope(events=[row({"finish": PROMPT})]), "events.0.body"),  # a field of another type
        (envelope(events=[row({"type": "lookups", "counts": [TENANT | {"prompt": PROMPT}]})]), "events.0.body.counts"),
        (envelope(events=[row(None, {"prompt": PROMPT})]), "events.0.extra"),
        (envelope(events=[row(None, {}, PROMPT)]), "events.0.row"),
        (envelope(scopes=[[*SCOPE, PROMPT]]), "events.0.scope"),
        (envelope(identities=[TENANT | {"prompt": PROMPT}]), "events.0.identity"),
        (envelope(strings=["", "k", *PROMPT.split()]), "strings"),
        (envelope(identities=[TENANT, TENANT]), "identities"),
        (envelope(scopes=[SCOPE, SCOPE]), "scopes"),
        (plain(prompt=PROMPT), "record"),
        (plain(body={"type": "hit", "token_ids": TOKENS}), "body"),
        (plain(identity=TENANT | {"prompt": PROMPT}), ""),
    ],
)
def test_content_at_length_is_refused_wherever_it_is_put(record: dict[str, Any], field: str) -> None:
    (reject,) = decode(record).rejects
    assert (reject.error.code, reject.error.field) == ("foreign_content", field)
    assert reject.error.remedy and "helpful" not in str(reject.error) and "299" not in str(reject.error)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (envelope(strings=["", PROMPT * 3]), "strings"),
        (envelope(node="n" * 2000), "node"),
        (envelope(home="n:" + PROMPT * 3), "home"),
        (envelope(events=[row({"parts_required": [str(n) for n in range(2000)]})]), "events.0.body.parts_required"),
        (envelope(events=[row({"parts_required": [PROMPT]})]), "events.0.body.parts_required"),
        (envelope(events=[row({"outcome": PROMPT * 3})]), "events.0.body.outcome"),
        (
            envelope(events=[row({"type": "invalidate", "where": {f"k{n}": PROMPT for n in range(99)}})]),
            "events.0.body.where",
        ),
    ],
)
def test_known_fields_have_no_room_for_it(record: dict[str, Any], field: str) -> None:
    (reject,) = decode(record).rejects
    assert reject.error.field.startswith(field) and "helpful" not in str(reject.error)


@pytest.mark.parametrize(
    "record",
    [
        envelope(colour="blue"),
        envelope(events=[row({"colour": "blue", "marks": [1, 2]})]),
        envelope(events=[row(None, {"colour": "blue"}, "blue")]),
        envelope(scopes=[[*SCOPE, "blue"]]),
        envelope(identities=[TENANT | {"colour": "blue"}]),
        plain(colour="blue", body={"type": "hit", "colour": "blue"}),
    ],
)
def test_what_a_newer_producer_adds_is_passed_over(record: dict[str, Any]) -> None:
    batch = decode(record)
    assert batch.rejects == [] and isinstance(batch.events[0].body, Hit)
    assert batch.events[0].identity is not None and batch.events[0].identity.tenant_id == "northwind"


def test_a_count_of_a_newer_producer_is_understood() -> None:
    body = {"type": "lookups", "counts": [TENANT | {"hit": 3, "colour": "blue"}]}
    (event,) = decode(envelope(events=[row(body)])).events
    assert isinstance(event.body, Lookups) and event.body.counts[0].hit == 3


def test_one_event_with_content_leaves_its_neighbours() -> None:
    events = [row(), row({"prompt": PROMPT}), row({"reused_tokens": 7})]
    batch = decode(envelope(events=events, last=3))
    assert [event.seq for event in batch.events] == [1, 3] and [reject.seq for reject in batch.rejects] == [2]


def test_a_context_has_no_room_for_it_either() -> None:
    context = {"request_id": "r1", "tenant_id": "northwind", "at_us": 1}
    assert decode_context(json.dumps(context | {"colour": "blue"}).encode()).tenant_id == "northwind"
    with pytest.raises(ForeignContent) as caught:
        decode_context(json.dumps(context | {"prompt": PROMPT}).encode())
    assert caught.value.field == "context" and "helpful" not in str(caught.value)
