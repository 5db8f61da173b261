"""A run is written exactly where a reader takes all of it, however many of its values are the same."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.producers.buffer import NOTHING, PLAIN, Item
from kvtrail.producers.packing import Unpackable, Writer
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Create, Hit
from kvtrail.schemas.identity import Identity

HOME = "n:gpu-17"
WHO = [None, Identity(tenant_id="northwind"), Identity(tenant_id="contoso", model_id="m")]
START_NS = 1_700_000_000_000_000_000
ODD: Any = "x"

bodies = st.sampled_from([Hit(reused_tokens=16), Hit(reused_tokens=32), Create(tokens=8), Create(tokens=8, ttl_s=1.5)])
plain_items: st.SearchStrategy[Item] = st.builds(
    lambda at, body, key, who, tier, request, more: (
        START_NS + at, body, key, WHO[who], "kv", tier, "", request, PLAIN, more
    ),
    st.integers(-(10**12), 10**12),
    bodies,
    st.sampled_from(["a", "b", "c" * 64, "ü\n\"'"]),
    st.integers(0, 2),
    st.sampled_from(["gpu", "nvme"]),
    st.sampled_from(["", "r1", "r2"]),
    st.sampled_from([NOTHING, NOTHING, NOTHING, ("", "", "", None, "trace")]),
)  # fmt: skip


def written(items: list[Item]) -> bytes:
    return Writer("gpu-17", "1-a").write(HOME, 5, items)


@settings(max_examples=150, deadline=None)
@given(st.lists(plain_items, min_size=1, max_size=12))
def test_what_is_written_is_what_a_reader_reads(items: list[Item]) -> None:
    batch = EnvelopeDecoder().decode(written(items))
    assert not batch.rejects
    assert [event.seq for event in batch.events] == list(range(5, 5 + len(items)))
    for event, (time_ns, body, key, identity, store, tier, _, request, _, more) in zip(
        batch.events, items, strict=True
    ):
        assert (event.time_us, event.body, event.key, event.identity) == (time_ns // 1000, body, key, identity)
        assert (event.store, event.tier, event.request_id, event.trace_id) == (store, tier, request, more[4])


BAD: dict[str, dict[int, Any]] = {
    "body": {1: Hit(reused_tokens=-1)},
    "body of another type": {1: Hit(reused_tokens=ODD)},
    "text in a body": {1: Hit(outcome="x" * 1025)},
    "key": {2: "k" * 1025},
    "key of another type": {2: b"k"},
    "key that is no text": {2: "\ud800"},
    "identity": {3: {"tenant_id": "northwind"}},
    "store": {4: "s" * 1025},
    "tier": {5: "tape"},
    "request": {7: "r" * 1025},
    "how": {8: (0, "", "elsewhere", "kv", "")},
    "more": {9: ("", "", "", "x", "")},
    "span of another type": {9: (b"s", "", "", None, "")},
    "version of another type": {9: ("", b"v", "", None, "")},
    "place of another type": {9: ("", "", b"p", None, "")},
    "trace of another type": {9: ("", "", "", None, b"t")},
    "time": {0: START_NS + 2**62 * 1000},
    "time before": {0: -(2**63) * 1000},
    "time of another type": {0: "noon"},
}


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("at", [0, 7, 15])
def test_one_bad_value_among_many_that_are_alike_stops_a_run(fault: str, at: int) -> None:
    item: Item = (START_NS, Hit(reused_tokens=16), "k", WHO[1], "kv", "gpu", "", "r", PLAIN, NOTHING)
    items = [item] * 16
    fields: list[Any] = list(items[at])
    for place, value in BAD[fault].items():
        fields[place] = value
    items[at] = tuple(fields)
    with pytest.raises((Unpackable, ValueError, TypeError)):
        written(items)


def test_an_item_of_another_shape_stops_a_run() -> None:
    item: Item = (START_NS, Hit(), "k", WHO[1], "kv", "gpu", "", "r", PLAIN, NOTHING)
    with pytest.raises(ValueError):
        written([item, item[:9]])  # type: ignore[list-item]  # that is the point
