"""What must not matter: redelivery, envelopes, order of arrival inside a lane, snapshots, names, unrelated traffic."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import as_batch, judge_history
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Event
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.findings import Finding

from .cases import scenario

TENANTS = ["acme", "beta", "gamma"]
_tenant = st.sampled_from(TENANTS)
_key = st.sampled_from(["K1", "K2", "K3"])
_fields = st.fixed_dictionaries(
    {},
    optional={
        "in": st.sampled_from(["I1", "I2"]),
        "tmpl": st.sampled_from(["chat@d1", "chat@d2"]),
        "weights": st.sampled_from(["W1", "W2"]),
        "iso": st.sampled_from(["sA", "sB", "pub"]),
        "keysrc": st.sampled_from(["derived", "asserted", "client"]),
        "kind": st.sampled_from(["kv", "response"]),
        "payload": st.sampled_from(["P1", "P2"]),
        "loc": st.sampled_from(["b1#g1", "b1#g2", "b2#g1"]),
        "tier": st.sampled_from(["gpu", "disk"]),
        "finish": st.sampled_from(["stop", "none"]),
        "state": st.sampled_from(["pending", "committed"]),
        "who": st.sampled_from(["u1", "u2"]),
        "mode": st.just("semantic"),
        "req": st.sampled_from(["r1", "r2"]),
        "part": st.sampled_from(["attn", "state"]),
        "age": st.sampled_from(["1", "900"]),
        "maxage": st.just("600"),
    },
)


def _text(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}={value}" for name, value in fields.items()) + "}"


_line = st.one_of(
    st.tuples(st.just("create"), _key, _tenant, _fields),
    st.tuples(st.just("hit"), _key, _tenant, _fields),
    st.tuples(st.just("hit"), _key, _tenant, _fields),
    st.tuples(st.just("expire"), _key, st.just("-"), st.just({})),
    st.tuples(st.just("commit"), _key, st.just("-"), st.just({})),
    st.tuples(st.just("fail"), _key, st.just("-"), st.just({})),
    st.tuples(st.just("invalidate"), _key, st.just("-"), st.just({})),
    st.tuples(st.just("invalidate"), st.just("*"), st.just("-"), st.just({"scope": "node"})),
)
_lines = st.lists(_line, min_size=1, max_size=24)
_mixed = st.lists(st.tuples(st.sampled_from(["n1", "n1/i2", "n2"]), _line), min_size=1, max_size=24)


def history(lines: Sequence[tuple[Any, ...]], node: str = "n1") -> list[Event | Fact]:
    """One node's lines, numbered in order."""
    return nodes([(node, line) for line in lines])


def nodes(lines: Sequence[tuple[str, Any]]) -> list[Event | Fact]:
    """Lines of several nodes, each numbered in order; a second incarnation comes after the first."""
    ordered = [one for one in lines if "/" not in one[0]] + [one for one in lines if "/" in one[0]]
    numbers: dict[str, int] = {}
    text = ["r:1 registry policy acme {sharing=none}"]
    for node, (type_, key, tenant, fields) in ordered:
        numbers[node] = numbers.get(node, 0) + 1
        text.append(f"{node}:{numbers[node]} {type_} {key} {tenant} {_text(fields)}")
    return [record for _, record in scenario("\n".join(text)).steps]


def final(records: Sequence[Event | Fact | Batch]) -> dict[str, Finding]:
    """Findings that stand at the end, without what tells only how they came to stand."""
    return {one.id: msgspec.structs.replace(one, revision=0, reason="") for one in judge_history(records)}


@given(lines=_mixed, data=st.data())
@settings(max_examples=80, deadline=None)
def test_delivering_twice_changes_nothing(lines: list[tuple[str, Any]], data: st.DataObject) -> None:
    records = nodes(lines)
    again = list(records)
    for _ in range(data.draw(st.integers(1, 6))):
        one = data.draw(st.integers(0, len(again) - 1))
        again.insert(data.draw(st.integers(one + 1, len(again))), again[one])
    assert final(again) == final(records)


@given(lines=_lines, data=st.data())
@settings(max_examples=120, deadline=None)
def test_order_of_arrival_inside_a_lane_changes_nothing(lines: list[Any], data: st.DataObject) -> None:
    records = history(lines)
    facts, events = records[:1], records[1:]
    assert final([*facts, *data.draw(st.permutations(events))]) == final(records)


@given(lines=_lines, data=st.data())
@settings(max_examples=60, deadline=None)
def test_envelopes_change_nothing(lines: list[Any], data: st.DataObject) -> None:
    records = history(lines)
    events = [record for record in records if isinstance(record, Event)]
    batches: list[Batch] = []
    encoder, decoder = EnvelopeEncoder(), EnvelopeDecoder()
    while events:
        size = data.draw(st.integers(1, len(events)))
        batches.append(decoder.decode(encoder.encode(events[:size])))
        assert not batches[-1].rejects
        events = events[size:]
    assert final([*records[:1], *batches]) == final(records)


@given(lines=_mixed, data=st.data())
@settings(max_examples=120, deadline=None)
def test_a_snapshot_at_any_point_changes_nothing(lines: list[tuple[str, Any]], data: st.DataObject) -> None:
    records = nodes(lines)
    records = [*records[:1], *data.draw(st.permutations(records[1:]))]
    at = data.draw(st.integers(0, len(records)))
    facts = FactBook()
    config = JudgingConfig()
    judge = restored = Judge(config, "d", facts)
    for index, record in enumerate(records):
        if index == at:
            raw = judge.dump()
            restored = Judge.load(raw, config, "d", facts)
            assert restored.dump() == raw
        if isinstance(record, Fact):
            facts.add(record, index)
        else:
            expected = judge.batch(as_batch(record), index)
            if restored is not judge:
                assert restored.batch(as_batch(record), index) == expected
    assert restored.stats() == judge.stats()


@given(lines=_mixed, names=st.permutations(TENANTS))
@settings(max_examples=60, deadline=None)
def test_renaming_tenants_changes_only_names(lines: list[tuple[str, Any]], names: list[str]) -> None:
    lines = [(node, line) for node, line in lines]
    table = dict(zip(TENANTS, names, strict=True))
    renamed = [(node, (t, key, table.get(tenant, tenant), fields)) for node, (t, key, tenant, fields) in lines]
    one, two = _without_policy(nodes(lines)), _without_policy(nodes(renamed))
    before, after = final(one), final(two)
    assert {i: (f.cause, f.severity, _names(f)) for i, f in before.items()} == {
        i: (f.cause, f.severity, _names(f)) for i, f in after.items()
    }


@given(lines=_mixed, other=_lines, data=st.data())
@settings(max_examples=80, deadline=None)
def test_unrelated_traffic_changes_nothing(lines: list[tuple[str, Any]], other: list[Any], data: st.DataObject) -> None:
    records = nodes(lines)
    strange = [replace_key(record) for record in history(other, "n9") if isinstance(record, Event)]
    mixed = list(records)
    at = 1
    for one in strange:
        at = data.draw(st.integers(at, len(mixed)))
        mixed.insert(at, one)
    alone, together = final(records), final(mixed)
    assert {i: f for i, f in together.items() if not _about(f, "n9")} == {
        i: f for i, f in alone.items() if not _about(f, "n9")
    }


def replace_key(event: Event) -> Event:
    return msgspec.structs.replace(event, key=f"other-{event.key}" if event.key else "", request_id="")


def _about(finding: Finding, node: str) -> bool:
    return any(f"{node}/" in text for text in (finding.subject, *finding.evidence)) or finding.cause == (
        "KEY_CLIENT_CONTROLLED"
    )


def _without_policy(records: list[Event | Fact]) -> list[Event | Fact]:
    return [record for record in records if not isinstance(record, Fact)]


def _names(finding: Finding) -> tuple[str, ...]:
    return tuple(difference.dimension for difference in finding.differing)
