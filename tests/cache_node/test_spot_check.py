"""What a spot check concludes from errors, which hits and positions it takes; and the checker on the real model."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kvtrail.cache_node import kv
from kvtrail.cache_node.entry_file import Tensor
from kvtrail.cache_node.entry_store import EntryStore, StoredEntry
from kvtrail.cache_node.errors import UnsupportedCache
from kvtrail.cache_node.keys import name_and_model, prefix_key
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.node import CacheNode
from kvtrail.cache_node.prefix import Prefix
from kvtrail.cache_node.recomputing import Errors, measure
from kvtrail.cache_node.spot_check import (
    TOLERANCES,
    Conclusion,
    SpotCheckSettings,
    Tolerance,
    chosen,
    conclude,
    positions_of,
)
from kvtrail.cache_node.spot_checker import Restored, SpotChecker
from kvtrail.judging.offline import judge_history
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Check, Event

TOLERANCE = Tolerance(first=0.01, deep=0.1)
REQUESTS = [f"request-{number}" for number in range(4000)]


def errors(keys: list[float], values: list[float], deep: float = 0.0) -> Errors:
    return Errors((tuple(keys), tuple(values)), ((deep, 0.0), (0.0, 0.0)))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_the_share_of_hits_is_checked_and_the_same_ones_every_time(share: float) -> None:
    taken = [request for request in REQUESTS if chosen(request, share)]
    assert len(taken) / len(REQUESTS) == pytest.approx(share, abs=0.03)
    assert all(chosen(request, min(1.0, share + 0.1)) for request in taken)


def test_positions_are_few_distinct_and_hold_the_last() -> None:
    seen = set()
    for request in REQUESTS[:50]:
        positions = positions_of(request, 100, 4)
        assert positions == sorted(set(positions)) == positions_of(request, 100, 4)
        assert len(positions) == 4 and positions[-1] == 99 and positions[0] >= 0
        seen.update(positions)
    assert len(seen) > 50
    assert positions_of("r", 1, 4) == [0] and positions_of("r", 3, 9) == [0, 1, 2] and positions_of("r", 0, 4) == []


def test_small_errors_pass() -> None:
    found = conclude(errors([0.0, 0.009], [0.009, 0.0], deep=0.09), [0, 1], TOLERANCE)
    assert (found.result, found.observed, found.first_divergence) == ("pass", "0.09", None)


def test_another_token_is_told_with_its_place() -> None:
    found = conclude(errors([0.0, 0.0, 1.2, 1.1], [0.0, 0.0, 1.0, 0.9], deep=1.0), [3], TOLERANCE)
    assert (found.result, found.first_divergence) == ("fail", 2)
    assert found.detail.startswith("2 of 4 positions hold another token")


def test_keys_alone_are_other_positions() -> None:
    found = conclude(errors([0.0, 0.4], [0.0, 0.0]), [1], TOLERANCE)
    assert found.result == "fail" and "other positions or another rotation" in found.detail


def test_deep_layers_alone_are_other_weights() -> None:
    found = conclude(errors([0.0], [0.0], deep=0.2), [0], TOLERANCE)
    assert found.result == "fail" and "keys of layer 1" in found.detail and found.first_divergence is None


@pytest.mark.parametrize("first", [True, False])
def test_what_is_no_number_never_passes(first: bool) -> None:
    found = conclude(errors([math.inf if first else 0.0], [0.0], deep=0.0 if first else math.inf), [0], TOLERANCE)
    assert (found.result, found.observed) == ("fail", "inf")


@pytest.mark.model
@pytest.mark.timeout(400)
class TestOnTheModel:
    """Northwind and contoso, one template, on the real model."""

    NORTHWIND = Prefix("northwind", "support_v7", "You are a support assistant. Returns are accepted within 90 days.")
    CONTOSO = Prefix("contoso", "support_v7", "You are a support assistant. Returns are accepted within 14 days.")
    LONGER = Prefix(
        "contoso", "support_v7", "You are a support assistant. Returns are accepted within 14 days. Be kind."
    )
    QUESTION = "How many days do I have?"

    @pytest.fixture
    def transport(self) -> MemoryTransport:
        return MemoryTransport()

    @pytest.fixture
    def publisher(self, transport: MemoryTransport) -> Iterator[LifecyclePublisher]:
        with LifecyclePublisher("node-1", transport) as publisher:
            yield publisher

    @pytest.fixture
    def store(self, publisher: LifecyclePublisher, tmp_path: Path) -> Iterator[EntryStore]:
        with EntryStore(tmp_path / "nvme", publisher, capacity_bytes=1 << 30) as store:
            yield store

    @staticmethod
    def events(transport: MemoryTransport, publisher: LifecyclePublisher) -> list[Event]:
        assert publisher.close()
        decoder = EnvelopeDecoder()
        return [event for _, record in transport.records for event in decoder.decode(record).events]

    def test_a_node_checks_its_hits_behind_the_answers(
        self,
        language_model: LanguageModel,
        transport: MemoryTransport,
        publisher: LifecyclePublisher,
        store: EntryStore,
    ) -> None:
        checker = SpotChecker(language_model, publisher, store.name, SpotCheckSettings(share=1.0, waiting=8))
        node = CacheNode(language_model, store, publisher, name_and_model, spot_checker=checker)
        for number, prefix in enumerate((self.NORTHWIND, self.NORTHWIND, self.CONTOSO, self.LONGER), 1):
            node.answer(prefix, self.QUESTION, f"r{number}", limit=4)
        node.key_function = prefix_key
        for number in (5, 6):
            node.answer(self.CONTOSO, self.QUESTION, f"r{number}", limit=4)
        checker.settle()
        checker.close()
        assert checker.stats() == {"pass": 2, "fail": 2}
        events = self.events(transport, publisher)
        checks = {event.request_id: event for event in events if isinstance(event.body, Check)}
        results = {request: event.body.result for request, event in checks.items() if isinstance(event.body, Check)}
        assert results == {"r2": "pass", "r3": "fail", "r4": "fail", "r6": "pass"}
        wrong = checks["r3"]
        assert isinstance(wrong.body, Check) and wrong.body.first_divergence and wrong.body.reused_tokens
        assert "hold another token" in wrong.body.detail
        assert (wrong.key, wrong.store, wrong.tier) == ("support_v7:SmolLM2-135M-Instruct", store.name, "nvme")
        found = [one for one in judge_history(events) if one.cause == "SPOT_CHECK_FAILED"]
        assert [(one.severity.value, one.requester and one.requester.request_id) for one in found] == [
            ("critical", "r3"), ("critical", "r4"),
        ]  # fmt: skip
        assert all(one.creator is not None and one.creator.tenant_id == "northwind" for one in found)

    @pytest.fixture
    def restored(self, language_model: LanguageModel, publisher: LifecyclePublisher, store: EntryStore) -> Restored:
        """A right entry under its fingerprint, as a hit gets it."""
        CacheNode(language_model, store, publisher, prefix_key).answer(self.CONTOSO, self.QUESTION, "r1", limit=1)
        token_ids = language_model.encode(self.CONTOSO.text)
        identity = self.CONTOSO.key(language_model, token_ids)
        key = prefix_key(identity)
        entry = store.get(key.text, identity)
        assert entry is not None
        return Restored(entry, token_ids, key, identity, "r2")

    @pytest.fixture
    def checker(self, language_model: LanguageModel, publisher: LifecyclePublisher, store: EntryStore) -> SpotChecker:
        return SpotChecker(language_model, publisher, store.name)

    def test_the_right_entry_passes_whatever_the_request(self, checker: SpotChecker, restored: Restored) -> None:
        found = [checker.check(replace(restored, request_id=f"r{number}")).result for number in range(5)]
        assert found == ["pass"] * 5

    def test_one_token_among_all_is_found_and_its_place_named(self, checker: SpotChecker, restored: Restored) -> None:
        for place in (0, 9, len(restored.token_ids) - 1):
            token_ids = list(restored.token_ids)
            token_ids[place] += 1
            found = checker.check(replace(restored, token_ids=token_ids))
            assert (found.result, found.first_divergence) == ("fail", place)

    def test_a_prefix_of_another_length_fails(self, checker: SpotChecker, restored: Restored) -> None:
        found = checker.check(replace(restored, token_ids=restored.token_ids[:-3]))
        assert found == Conclusion(
            "fail", str(len(restored.token_ids)), str(len(restored.token_ids) - 3),
            "the entry covers another number of tokens", len(restored.token_ids) - 3,
        )  # fmt: skip

    def test_other_weights_in_a_deep_layer_are_found(
        self, language_model: LanguageModel, checker: SpotChecker, restored: Restored
    ) -> None:
        weights = language_model.network.model.layers[20].mlp.down_proj.weight.data
        weights *= 1.1
        try:
            found = checker.check(restored)
        finally:
            weights /= 1.1
        assert found.result == "fail" and "tokens agree" in found.detail and "from layer 21 on" in found.detail
        assert checker.check(restored).result == "pass"

    def test_a_zeroed_layer_and_a_number_that_is_none_are_found(self, checker: SpotChecker, restored: Restored) -> None:
        entry = restored.entry
        for content in (b"\x00", b"\xff"):
            last = entry.tensors[-1]
            data = bytearray(content * len(last.data))
            spoilt = (*entry.tensors[:-1], Tensor(last.name, last.dtype, last.shape, data))
            found = checker.check(replace(restored, entry=StoredEntry(entry.header, spoilt)))
            assert found.result == "fail" and "values of layer 29" in found.detail

    def test_another_dtype_fails_and_an_unknown_one_proves_nothing(
        self, language_model: LanguageModel, publisher: LifecyclePublisher, store: EntryStore, restored: Restored
    ) -> None:
        checker = SpotChecker(language_model, publisher, store.name, SpotCheckSettings(tolerances={}))
        assert checker.check(restored).result == "inconclusive"
        halves = tuple(replace(one, dtype="float16", shape=(*one.shape[:3], 128)) for one in restored.entry.tensors)
        found = checker.check(replace(restored, entry=StoredEntry(restored.entry.header, halves)))
        assert (found.result, found.observed, found.expected) == ("fail", "float16", "float32")

    def test_a_check_that_cannot_run_says_so_and_raises_nothing(
        self, checker: SpotChecker, restored: Restored, transport: MemoryTransport, publisher: LifecyclePublisher
    ) -> None:
        broken = StoredEntry(restored.entry.header, restored.entry.tensors[:2])
        assert checker.check(replace(restored, entry=broken)).result == "inconclusive"
        shapeless = tuple(replace(one, shape=(len(one.data) // 4,)) for one in restored.entry.tensors)
        assert checker.check(replace(restored, entry=StoredEntry(broken.header, shapeless))).result == "inconclusive"
        results = [e.body.result for e in self.events(transport, publisher) if isinstance(e.body, Check)]
        assert results == ["inconclusive", "inconclusive"]

    def test_what_finds_no_room_is_left_out(
        self, language_model: LanguageModel, publisher: LifecyclePublisher, store: EntryStore, restored: Restored
    ) -> None:
        checker = SpotChecker(language_model, publisher, store.name, SpotCheckSettings(share=0.0))
        assert not checker.offer(restored)
        eager = SpotChecker(language_model, publisher, store.name, SpotCheckSettings(share=1.0, waiting=1))
        taken = sum(eager.offer(replace(restored, request_id=f"r{number}")) for number in range(20))
        eager.close()
        assert eager.stats() == {"pass": taken, "left_out": 20 - taken}
        assert 1 <= taken < 20

    def test_shapes_that_are_not_the_models_are_refused(
        self, language_model: LanguageModel, restored: Restored
    ) -> None:
        stored = kv.pairs(restored.entry.tensors)
        with pytest.raises(UnsupportedCache):
            measure(language_model, stored[:-1], restored.token_ids, [0])
        with pytest.raises(UnsupportedCache):
            measure(language_model, [(keys[..., :32], values) for keys, values in stored], restored.token_ids, [0])

    def test_the_tolerance_leaves_room_on_both_sides(self, language_model: LanguageModel, restored: Restored) -> None:
        found = measure(language_model, kv.pairs(restored.entry.tensors), restored.token_ids, [3, 9])
        assert max(map(max, found.first)) * 10 < TOLERANCES["float32"].first
        assert max(map(max, found.deep)) * 10 < TOLERANCES["float32"].deep
