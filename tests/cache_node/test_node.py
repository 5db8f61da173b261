"""The node on the real model: what it reuses, what it publishes, and what it does when the store cannot help."""

import errno
from pathlib import Path

import pytest
from kvtrail.cache_node.entry_file import Tensor
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.keys import name_and_model, prefix_key
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.node import CacheNode
from kvtrail.cache_node.prefix import Prefix
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.errors import InvalidField
from kvtrail.schemas.events import Create, Event, Hit, LookupCount, Lookups

from .test_entry_store import Failing

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
PREFIX = Prefix("contoso", "support_v7", "You are a support assistant. Returns are accepted within 14 days.")
QUESTION = "How many days do I have to return an item?"


class Bench:
    """Stores one after the other in one folder, with all their events."""

    def __init__(self, model: LanguageModel, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.transport = MemoryTransport()

    def publisher(self) -> LifecyclePublisher:
        return LifecyclePublisher("node-1", self.transport)

    def events(self) -> list[Event]:
        decoder = EnvelopeDecoder()
        return [event for _, record in self.transport.records for event in decoder.decode(record).events]


@pytest.fixture
def bench(language_model: LanguageModel, tmp_path: Path) -> Bench:
    return Bench(language_model, tmp_path / "nvme")


def test_an_answer_survives_the_process(bench: Bench) -> None:
    answers = []
    for _ in range(2):
        with bench.publisher() as publisher, EntryStore(bench.folder, publisher, capacity_bytes=1 << 30) as store:
            node = CacheNode(bench.model, store, publisher, prefix_key)
            answers.append(node.answer(PREFIX, QUESTION, "r1"))
            node.report_lookups()
            node.report_lookups()
    first, second = answers
    assert (first.hit, second.hit) == (False, True)
    assert first.text == second.text
    assert "14 days" in first.text
    assert second.reused_tokens == first.prefix_tokens
    assert second.computed_tokens < first.computed_tokens
    assert [event.type for event in bench.events()] == [
        "node_start", "create", "lookups", "node_start", "hit", "lookups",
    ]  # fmt: skip


def test_what_no_event_could_tell_of_is_not_looked_up(bench: Bench) -> None:
    with bench.publisher() as publisher, EntryStore(bench.folder, publisher, capacity_bytes=1 << 30) as store:
        node = CacheNode(bench.model, store, publisher, name_and_model)
        long_key = Prefix("contoso", "t" * 512, "Be brief.", "e" * 62 + ("+tenant_id:" + "e" * 64) * 6)
        for prefix, request_id in ((PREFIX, "r" * 1025), (long_key, "r1")):
            with pytest.raises(InvalidField, match="key or request id"):
                node.answer(prefix, QUESTION, request_id)
        node.report_lookups()
    assert [event.type for event in bench.events()] == ["node_start"]


def test_events_carry_the_requesters_identity_and_the_key(bench: Bench) -> None:
    with bench.publisher() as publisher, EntryStore(bench.folder, publisher, capacity_bytes=1 << 30) as store:
        node = CacheNode(bench.model, store, publisher, name_and_model, ttl_s=300.0)
        answer = node.answer(PREFIX, QUESTION, "r1")
        other = Prefix("northwind", "support_v7", "You are a support assistant. Returns are accepted within 90 days.")
        wrong = node.answer(other, QUESTION, "r2")
        node.report_lookups()
    assert wrong.text == answer.text
    _, create, hit, lookups = bench.events()
    assert isinstance(create.body, Create)
    assert isinstance(hit.body, Hit)
    assert create.identity is not None
    assert create.identity.to_wire() == answer.identity.to_wire()
    assert hit.identity is not None
    assert hit.identity.to_wire() == wrong.identity.to_wire()
    assert (create.key, create.key_origin, create.request_id) == ("support_v7:SmolLM2-135M-Instruct", "asserted", "r1")
    assert (create.body.tokens, create.body.computed_tokens) == (answer.prefix_tokens, answer.prefix_tokens)
    assert (create.body.ttl_s, create.body.rederived_key) == (300.0, None)
    assert hit.body.reused_tokens == answer.prefix_tokens
    assert lookups.body == Lookups(
        counts=(
            LookupCount(tenant_id="contoso", template_id="support_v7", model_id=bench.model.name, tier="nvme", miss=1),
            LookupCount(tenant_id="northwind", template_id="support_v7", model_id=bench.model.name, tier="nvme", hit=1),
        )
    )


def test_a_store_that_cannot_write_costs_nothing_but_the_reuse(bench: Bench) -> None:
    engine = Failing(errno.ENOSPC)
    with (
        bench.publisher() as publisher,
        EntryStore(bench.folder, publisher, capacity_bytes=1 << 30, engine=engine) as store,
    ):
        node = CacheNode(bench.model, store, publisher, prefix_key)
        answers = [node.answer(PREFIX, QUESTION, "r1") for _ in range(2)]
        assert [answer.hit for answer in answers] == [False, False]
        assert answers[0].text == answers[1].text
        assert store.stats().full == 2


def test_an_entry_that_is_not_this_models_is_computed_again(bench: Bench) -> None:
    with bench.publisher() as publisher, EntryStore(bench.folder, publisher, capacity_bytes=1 << 30) as store:
        node = CacheNode(bench.model, store, publisher, name_and_model)
        key = f"support_v7:{bench.model.name}"
        identity = PREFIX.key(bench.model, bench.model.encode(PREFIX.text))
        assert store.put(key, [Tensor("t", "uint8", (4,), b"abcd")], identity, tokens=7)
        answer = node.answer(PREFIX, QUESTION, "r1")
        assert "14 days" in answer.text
        assert not answer.hit
        assert node.answer(PREFIX, QUESTION, "r2").hit


def test_a_bypass_neither_reads_nor_writes_and_is_counted(bench: Bench) -> None:
    with bench.publisher() as publisher, EntryStore(bench.folder, publisher, capacity_bytes=1 << 30) as store:
        node = CacheNode(bench.model, store, publisher, prefix_key)
        computed = node.answer(PREFIX, QUESTION, "r1", bypass=True)
        assert node.store.stats().entries == 0
        node.answer(PREFIX, QUESTION, "r2")
        again = node.answer(PREFIX, QUESTION, "r3", bypass=True)
        reused = node.answer(PREFIX, QUESTION, "r4", limit=3)
        node.report_lookups()
    assert (computed.reused_tokens, again.reused_tokens) == (0, 0)
    assert reused.hit
    assert [one.token for one in reused.chosen] == [one.token for one in computed.chosen][:3]
    assert again.chosen == computed.chosen
    assert bench.model.decode([one.token for one in computed.chosen]) == computed.text
    assert all(dict(one.top)[one.token] == one.logprob <= 0 for one in computed.chosen)
    events = bench.events()
    assert [event.type for event in events] == ["node_start", "create", "hit", "lookups"]
    assert isinstance(events[-1].body, Lookups)
    (counted,) = events[-1].body.counts
    assert (counted.hit, counted.miss, counted.bypassed) == (1, 1, 2)
