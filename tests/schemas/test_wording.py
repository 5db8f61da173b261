"""What a refusal says: the field and what it may hold, never what it held."""

import json
from typing import Any

import pytest
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.errors import BadInput, InvalidField
from kvtrail.schemas.facts import decode_fact
from kvtrail.schemas.findings import decode_finding

SECRET = "my secret - at `$.prompt`"
PLAIN: dict[str, Any] = {
    "v": 1, "node": "n1", "incarnation": "i1", "home": "n:n1", "seq": 1, "time_us": 1, "body": {"type": "hit"},
}  # fmt: skip
ENVELOPE: dict[str, Any] = {
    "v": 1, "node": "n1", "incarnation": "i1", "home": "n:n1", "first": 1, "last": 1, "t0": 1, "strings": ["", "k"],
    "scopes": [[0, "gpu", 0, 0, "derived", "kv", 0]], "identities": [], "events": [[0, 0, 1, -1, -1, {"type": "hit"}]],
}  # fmt: skip


def refusal(record: dict[str, Any]) -> BadInput:
    """The one thing that is wrong with a record."""
    batch = EnvelopeDecoder().decode(json.dumps(record).encode())
    assert len(batch.rejects) == 1
    return batch.rejects[0].error


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"tier": SECRET}, "tier", "gpu, host, nvme, shared"),
        ({"key_origin": SECRET}, "key_origin", "asserted, client, derived"),
        ({"body": {"type": SECRET}}, "body.type", "check, commit, create"),
        ({"body": {"type": "expire", "reason": SECRET}}, "body.reason", "aborted, capacity"),
        ({"body": {"type": "hit", "match_mode": SECRET}}, "body.match_mode", "exact"),
        ({"body": {"type": "create", "state": SECRET}}, "body.state", "committed, pending"),
    ],
)
def test_a_value_outside_a_set_names_the_set(changes: dict[str, Any], field: str, allowed: str) -> None:
    error = refusal(PLAIN | changes)
    assert isinstance(error, InvalidField) and error.field == field
    assert "secret" not in str(error) and "prompt" not in str(error)
    assert allowed in error.message


def test_envelopes_name_the_place_in_a_row_and_in_a_scope() -> None:
    row = refusal(ENVELOPE | {"events": [[0, 0, 1, -1, -1, {"type": "hit", "match_mode": SECRET}]]})
    assert row.field == "events.0.body.match_mode" and "secret" not in str(row)
    scope = refusal(ENVELOPE | {"scopes": [[0, SECRET, 0, 0, "derived", "kv", 0]]})
    assert scope.field == "events.0.scope.tier" and "secret" not in str(scope)
    assert "gpu, host, nvme, shared" in scope.message


@pytest.mark.parametrize("field", ["tokens", "bytes", "weights_version"])
def test_a_number_that_fits_no_column_is_refused_with_its_field(field: str) -> None:
    error = refusal(PLAIN | {"body": {"type": "create", field: 2**63}})
    assert error.field == f"body.{field}"
    batch = EnvelopeDecoder().decode(json.dumps(PLAIN | {"body": {"type": "create", field: 2**63 - 1}}).encode())
    assert batch.rejects == []


def test_facts_and_findings_keep_values_to_themselves() -> None:
    with pytest.raises(InvalidField) as fact:
        decode_fact(json.dumps({"id": "1", "effective_at_us": 1, "body": {"type": SECRET}}).encode())
    assert fact.value.field == "fact.body.type" and "secret" not in str(fact.value) and "epoch" in str(fact.value)
    with pytest.raises(InvalidField) as finding:
        decode_finding(json.dumps({"id": "1", "revision": 1, "status": SECRET}).encode())
    assert finding.value.field == "finding.status" and "secret" not in str(finding.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": "You are a helpful assistant. " * 20}, "record"),
        ({"token_ids": list(range(300))}, "record"),
        ({"body": {"type": "hit", "messages": ["hello"] * 300}}, "body"),
    ],
)
def test_prompts_and_tokens_under_names_of_their_own_are_refused(changes: dict[str, Any], field: str) -> None:
    error = refusal(PLAIN | changes)
    assert (error.code, error.field) == ("foreign_content", field)
    assert "helpful" not in str(error)


def test_a_small_field_of_a_newer_producer_is_passed_over() -> None:
    batch = EnvelopeDecoder().decode(json.dumps(PLAIN | {"colour": "blue", "marks": [1, 2]}).encode())
    assert batch.rejects == [] and len(batch.events) == 1


def test_no_field_has_room_for_a_prompt() -> None:
    text = "a prompt " * 1000
    assert refusal(PLAIN | {"key": text}).field == "key"
    assert refusal(PLAIN | {"body": {"type": "create", "finish": text}}).field == "body.finish"
    assert refusal(ENVELOPE | {"strings": ["", text]}).field.startswith("strings")
