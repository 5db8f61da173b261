"""Records of every kind as the first version wrote them: they stay readable, and say the same, for ever.

`recorded-v1.jsonl` is never written anew. What is added to a schema needs a default; another version, lines of its own.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from kvtrail.schemas.context import decode_record, encode_context
from kvtrail.schemas.dead_letters import decode_dead_letter, encode_dead_letter
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder, encode_plain
from kvtrail.schemas.events import EVENT_TYPES
from kvtrail.schemas.facts import FactBody, decode_fact, encode_fact
from kvtrail.schemas.findings import decode_finding, encode_finding
from kvtrail.schemas.notifications import decode_entry, encode_entry

LINES = [json.loads(line) for line in Path(__file__).with_name("recorded-v1.jsonl").read_text().splitlines()]


def _event(raw: bytes) -> bytes:
    batch = EnvelopeDecoder().decode(raw)
    assert not batch.rejects, batch.rejects
    [event] = batch.events
    return encode_plain(event)


def _envelope(raw: bytes) -> bytes:
    batch = EnvelopeDecoder().decode(raw)
    assert not batch.rejects, batch.rejects
    return EnvelopeEncoder().encode(batch.events)


AGAIN: dict[str, Callable[[bytes], bytes]] = {
    "event": _event,
    "envelope": _envelope,
    "context": lambda raw: encode_context(decode_record(raw, EnvelopeDecoder())),  # type: ignore[arg-type]  # a context
    "fact": lambda raw: encode_fact(decode_fact(raw)),
    "finding": lambda raw: encode_finding(decode_finding(raw)),
    "dead letter": lambda raw: encode_dead_letter(decode_dead_letter(raw)),
    "notification": lambda raw: encode_entry(decode_entry(raw)),
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_what_the_first_version_wrote_is_read(line: dict[str, Any]) -> None:
    record = line["record"]
    again = json.loads(AGAIN[line["kind"]](json.dumps(record).encode()))
    # An envelope is packed anew: how is the encoder's choice, what it says is compared through its events.
    if line["kind"] == "envelope":
        once, twice = (EnvelopeDecoder().decode(json.dumps(one).encode()) for one in (record, again))
        assert once.events == twice.events and len(once.events) == len(EVENT_TYPES)
    else:
        assert {name: {"v": 1, **again}.get(name) for name in record} == record


def test_every_kind_is_recorded() -> None:
    assert {line["kind"] for line in LINES} == {*AGAIN}
    events = {line["record"]["body"]["type"] for line in LINES if line["kind"] == "event"}
    facts = {line["record"]["body"]["type"] for line in LINES if line["kind"] == "fact"}
    assert events == {*EVENT_TYPES}
    assert facts == {str(body.__struct_config__.tag) for body in get_args(FactBody)}
