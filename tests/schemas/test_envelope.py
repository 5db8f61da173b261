"""The envelope: lossless for anything the schemas allow; bad input is named, and what is good beside it survives."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvtrail.schemas.dead_letters import dead_letter, decode_dead_letter, encode_dead_letter
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder, EnvelopeEncoder, encode_plain
from kvtrail.schemas.errors import BrokenRun
from kvtrail.schemas.events import Create, Event, Hit
from kvtrail.schemas.identity import Identity
from kvtrail.schemas.wire import MAX_EVENTS
from msgspec.structs import replace

from .strategies import runs

IDENTITY = Identity(tenant_id="northwind", template_digest="ab" * 32)
OTHER = Identity(tenant_id="contoso", template_digest="cd" * 32)


def three() -> list[Event]:
    """Three good events of one lane."""

    def event(seq: int, body: Create | Hit, identity: Identity, **fields: str) -> Event:
        plain = Event(
            node="node-a", incarnation="i1", home="n:node-a", seq=seq, time_us=seq * 1000, body=body, key="k",
            identity=identity,
        )  # fmt: skip
        return replace(plain, **fields)

    return [
        event(5, Create(tokens=9), IDENTITY, request_id="r1"),
        event(6, Hit(reused_tokens=9), OTHER, request_id="r2"),
        event(7, Hit(reused_tokens=9), IDENTITY, place="p"),
    ]


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The three events as an envelope, something about its JSON changed."""
    envelope = json.loads(EnvelopeEncoder().encode(three()))
    change(envelope)
    return json.dumps(envelope).encode()


def decode(raw: bytes) -> Batch:
    return EnvelopeDecoder().decode(raw)


def named(cases: Sequence[tuple[object, str, str]]) -> list[str]:
    """Test ids that say what is refused."""
    return [f"{number}-{code}-{field}" for number, (_, code, field) in enumerate(cases)]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(runs())
def test_whatever_goes_in_comes_out(events: list[Event]) -> None:
    encoder, decoder = EnvelopeEncoder(), EnvelopeDecoder()
    for _ in range(2):  # the second time from the caches
        batch = decoder.decode(encoder.encode(events))
        assert batch.rejects == []
        assert batch.events == events
        assert (batch.first, batch.last) == (events[0].seq, events[-1].seq)
        assert (batch.node, batch.incarnation, batch.home) == (events[0].node, events[0].incarnation, events[0].home)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(runs(size=1))
def test_plain_and_envelope_are_the_same_event(events: list[Event]) -> None:
    plain = decode(encode_plain(events[0]))
    assert plain.rejects == []
    assert plain.events == events
    assert (plain.first, plain.last) == (events[0].seq, events[0].seq)
    assert decode(EnvelopeEncoder().encode(plain.events)).events == plain.events


def test_identities_are_shared() -> None:
    decoder = EnvelopeDecoder()
    raw = EnvelopeEncoder().encode(three())
    one, two = decoder.decode(raw), decoder.decode(raw)
    assert one.events[0].identity is one.events[2].identity is two.events[0].identity


WHOLE = [
    (b"\xff\xfe", "undecodable_record", "record"),
    (b"", "undecodable_record", "record"),
    (b"{", "undecodable_record", "record"),
    (b"[]", "undecodable_record", "record"),
    (b'"text"', "undecodable_record", "record"),
    (b"[" * 100_000, "undecodable_record", "record"),
    (b"{}", "unknown_schema_version", "v"),
    (changed(lambda e: e.pop("v")), "unknown_schema_version", "v"),
    (changed(lambda e: e.update(v=2)), "unknown_schema_version", "v"),
    (changed(lambda e: e.update(v=True)), "unknown_schema_version", "v"),
    (changed(lambda e: e.update(v="1")), "unknown_schema_version", "v"),
    (changed(lambda e: e.pop("node")), "invalid_field", ""),
    (changed(lambda e: e.update(node="")), "invalid_field", "node"),
    (changed(lambda e: e.update(incarnation="")), "invalid_field", "incarnation"),
    (changed(lambda e: e.update(home="elsewhere")), "invalid_field", "home"),
    (changed(lambda e: e.update(home=7)), "invalid_field", "home"),
    (changed(lambda e: e.update(first=0, last=2)), "invalid_field", "seq"),
    (changed(lambda e: e.update(first=-1, last=1)), "invalid_field", "first"),
    (changed(lambda e: e.update(first=2**63, last=2**63 + 2)), "invalid_field", "first"),
    (changed(lambda e: e.update(t0=2**70)), "invalid_field", "t0"),
    (changed(lambda e: e.update(strings={})), "invalid_field", "strings"),
    (changed(lambda e: e.update(last=9)), "broken_run", "last"),
    (changed(lambda e: e.update(first=6)), "broken_run", "last"),
    (changed(lambda e: e["events"].pop()), "broken_run", "last"),
    (changed(lambda e: e.update(events=[], first=5, last=4)), "broken_run", "last"),
    (changed(lambda e: e.update(events=e["events"] * MAX_EVENTS, last=4 + 3 * MAX_EVENTS)), "broken_run", "events"),
    (b'{"v":1,"node":"n"}', "invalid_field", ""),
]


@pytest.mark.parametrize(("raw", "code", "field"), WHOLE, ids=named(WHOLE))
def test_records_that_are_refused_whole(raw: bytes, code: str, field: str) -> None:
    batch = decode(raw)
    assert batch.events == []
    (reject,) = batch.rejects
    assert (reject.error.code, reject.error.field, reject.seq) == (code, field, None)
    assert reject.error.remedy
    assert batch.first is None
    assert batch.last is None


def body(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda envelope: change(envelope["events"][1][5])


def row(position: int, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda envelope: envelope["events"][1].__setitem__(position, value)


def identity(value: object) -> Callable[[dict[str, Any]], object]:
    return lambda envelope: envelope["identities"].__setitem__(1, value)


NAME = "name_in_digest_place"
ONE = [
    (body(lambda b: b.update(type="telepathy")), "invalid_field", "events.1.body.type"),
    (body(lambda b: b.update(reused_tokens=-1)), "invalid_field", "events.1.body.reused_tokens"),
    (body(lambda b: b.update(reused_tokens=2**63)), "invalid_field", "events.1.body.reused_tokens"),
    (body(lambda b: b.update(reused_tokens="9")), "invalid_field", "events.1.body.reused_tokens"),
    (body(lambda b: b.update(age_s=-0.5)), "invalid_field", "events.1.body.age_s"),
    (body(lambda b: b.update(match_mode="vibes")), "invalid_field", "events.1.body.match_mode"),
    (body(lambda b: b.update(payload_digest="v1")), NAME, "events.1.body.payload_digest"),
    (identity({"tenant_id": "t", "epoch": "e", "template_digest": "v7"}), NAME, "events.1.identity.template_digest"),
    (identity({"tenant_id": "t", "weights_digest": "llama"}), NAME, "events.1.identity.weights_digest"),
    (identity({"tenant_id": ""}), "empty_tenant", "events.1.identity.tenant_id"),
    (identity({}), "empty_tenant", "events.1.identity.tenant_id"),
    (identity({"tenant_id": "t", "principal": "x" * 600}), "invalid_field", "events.1.identity.principal"),
    (identity([]), "invalid_field", "events.1.identity"),
    (identity({"tenant_id": 7}), "invalid_field", "events.1.identity"),
    (row(0, 1.5), "invalid_field", "events.1.dt"),
    (row(0, 2**70), "invalid_field", "events.1.dt"),
    (row(1, 9), "invalid_field", "events.1"),
    (row(1, -1), "invalid_field", "events.1"),
    (row(2, 99), "invalid_field", "events.1"),
    (row(2, -1), "invalid_field", "events.1"),
    (row(3, -2), "invalid_field", "events.1"),
    (row(3, 99), "invalid_field", "events.1"),
    (row(4, "r"), "invalid_field", "events.1.request"),
    (row(6, {"generation": 2**70}), "invalid_field", "events.1.extra.generation"),
    (lambda e: e["events"].__setitem__(1, {}), "invalid_field", "events.1"),
    (lambda e: e["events"].__setitem__(1, None), "invalid_field", "events.1"),
    (lambda e: e["events"].__setitem__(1, [1]), "invalid_field", "events.1"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "code", "field"), ONE, ids=named(ONE))
def test_one_bad_event_is_named_and_its_neighbours_survive(
    change: Callable[[dict[str, Any]], object], code: str, field: str
) -> None:
    batch = decode(changed(change))
    (reject,) = batch.rejects
    assert (reject.error.code, reject.error.field) == (code, field)
    assert (reject.seq, reject.index) == (6, 1)
    assert reject.error.remedy
    assert batch.events == [three()[0], three()[2]]
    assert (batch.first, batch.last) == (5, 7), "a refused number counts as seen"


def test_a_bad_scope_takes_only_its_own_events() -> None:
    events = [*three(), replace(three()[0], seq=8, tier="nvme")]
    envelope = json.loads(EnvelopeEncoder().encode(events))
    envelope["scopes"][1][1] = "floppy"
    batch = decode(json.dumps(envelope).encode())
    assert [event.seq for event in batch.events] == [5, 6, 7]
    assert batch.rejects[0].error.field.startswith("events.3.scope")


PLAIN = [
    ({"seq": 0}, "invalid_field", "seq"),
    ({"node": ""}, "invalid_field", "node"),
    ({"home": "x"}, "invalid_field", "home"),
    ({"identity": {"tenant_id": " "}}, "empty_tenant", "tenant_id"),
    ({"identity": {"tenant_id": "t", "epoch": "e", "token_ids_digest": "tokens"}}, NAME, "token_ids_digest"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "code", "field"), PLAIN)
def test_plain_events_are_refused_by_field(values: dict[str, Any], code: str, field: str) -> None:
    batch = decode(json.dumps({**json.loads(encode_plain(three()[0])), **values}).encode())
    (reject,) = batch.rejects
    assert reject.error.code == code
    assert reject.error.field in (field, f"identity.{field}")
    assert batch.events == []


@pytest.mark.parametrize("missing", ["node", "incarnation", "home", "seq", "time_us", "body"])
def test_plain_events_need_their_header(missing: str) -> None:
    values = json.loads(encode_plain(three()[0]))
    del values[missing]
    (reject,) = decode(json.dumps(values).encode()).rejects
    assert reject.error.code == "invalid_field"
    assert missing in str(reject.error)


def test_values_stay_out_of_errors() -> None:
    secret = "the-prompt-itself"
    raws = [
        changed(identity({"tenant_id": "t", "template_digest": secret})),
        changed(body(lambda b: b.update(payload_digest=secret))),
        changed(body(lambda b: b.update(reused_tokens=secret))),
        changed(identity({"tenant_id": "t", "principal": secret * 60})),
        changed(lambda e: e.update(home=secret)),
        secret.encode(),
    ]
    for raw in raws:
        for reject in decode(raw).rejects:
            assert secret not in str(reject.error)


FIELDS = st.sampled_from(["v", "node", "incarnation", "home", "first", "last", "events", "strings", "body", "seq"])
SHAPES = st.recursive(
    st.none() | st.integers(0, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner),
)


@settings(deadline=None)
@given(st.binary(max_size=200) | SHAPES.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    batch = decode(raw)
    assert batch.events or batch.rejects


@settings(deadline=None)
@given(st.data())
def test_no_mutilation_makes_it_raise(data: st.DataObject) -> None:
    raw = bytearray(EnvelopeEncoder().encode(three()))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    batch = decode(bytes(raw))
    assert batch.events or batch.rejects
    seqs = [event.seq for event in batch.events] + [reject.seq for reject in batch.rejects if reject.seq is not None]
    assert len(set(seqs)) == len(seqs)


def test_the_encoder_takes_only_a_run() -> None:
    encoder, events = EnvelopeEncoder(), three()
    other = replace(events[1], incarnation="i2")
    for wrong in ([], [events[0], events[2]], [events[1], events[0]], [events[0], other]):
        with pytest.raises(BrokenRun):
            encoder.encode(wrong)


def test_dead_letters_keep_the_bytes_and_the_reason() -> None:
    raw = b"\xff\x00not JSON"
    reject = decode(raw).rejects[0]
    letter = dead_letter(reject.error, raw, topic="t", partition=1, offset=2, stage="decode", at_us=3, seq=4, index=5)
    again = decode_dead_letter(encode_dead_letter(letter))
    assert again == letter
    assert again.raw == raw
    assert (again.code, again.field, again.remedy) == ("undecodable_record", "record", "Send UTF-8 JSON.")
    assert msgspec.json.decode(encode_dead_letter(letter))["seq"] == 4
