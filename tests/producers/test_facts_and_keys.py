"""Facts reach the broker; markers and keys come from content."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.producers.epoch import EpochMarker
from kvtrail.producers.facts import (
    epoch_bumped,
    make_fact,
    publish_fact,
    publish_facts,
    publish_facts_async,
    template_published,
)
from kvtrail.producers.identity import Deployment
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.digests import digest_template, digest_tools
from kvtrail.schemas.errors import BrokerError, EmptyTenant, InvalidField, KvtrailError, NameInDigestPlace
from kvtrail.schemas.facts import EpochFact, StoreFact, TemplateFact, decode_fact
from kvtrail.schemas.topics import FACTS

from .reading import read_topic

SERVING = Deployment(model_id="smol", weights_digest="ab" * 32, kv_dtype="float32", tokenizer_id="smol")
PREFIX: dict[str, Any] = {
    "tenant_id": "northwind",
    "template_id": "support_v7",
    "rendered_template": "You may return it within 90 days.",
    "token_ids": [1, 2, 3],
}


@pytest.mark.kafka
def test_facts_arrive_in_order_from_threads_and_loops(topics: KafkaConfig) -> None:
    facts = [template_published("support_v7", digest_template(f"text {n}"), source="test") for n in range(3)]
    publish_facts(topics, facts[:2])

    async def inside_a_loop() -> None:
        await publish_facts_async(topics, facts[2:])
        publish_fact(topics, epoch_bumped("2", {"template_id": "support_v7"}, why="edited"))

    asyncio.run(inside_a_loop())
    publish_facts(topics, [])
    arrived = [decode_fact(value) for _, _, value in read_topic(topics, FACTS)]
    assert arrived[:3] == facts
    assert arrived[3].body == EpochFact(epoch="2", where={"template_id": "support_v7"}, why="edited")


def test_a_dead_broker_is_an_error_with_a_remedy() -> None:
    with pytest.raises(BrokerError, match="publish them again"):
        publish_fact(KafkaConfig(bootstrap="127.0.0.1:1"), make_fact(StoreFact(store="kv")), timeout_s=1)


def test_a_fact_has_the_id_of_its_content() -> None:
    one, other = (make_fact(StoreFact(store="kv"), effective_at_us=5) for _ in range(2))
    assert one == other
    assert one.id != make_fact(StoreFact(store="kv"), effective_at_us=6).id
    assert one.id != make_fact(StoreFact(store="kv2"), effective_at_us=5).id
    assert make_fact(StoreFact(store="kv"), fact_id="mine").id == "mine"
    assert make_fact(TemplateFact(template_id="a", template_digest="b" * 64)).effective_at_us > 1_700_000_000_000_000


def test_a_fact_no_reader_takes_is_refused_at_its_source() -> None:
    with pytest.raises(KvtrailError):
        make_fact(StoreFact(store=7))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidField, match="epoch"):
        epoch_bumped("two words")


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True), st.text())
def test_a_marker_is_found_only_at_the_very_front(epoch: str, prompt: str) -> None:
    marker = EpochMarker(epoch)
    marked = marker.mark(prompt)
    assert marked.startswith(marker.prefix())
    assert EpochMarker.of(marked) == marker
    assert EpochMarker.of(" " + marked) is None
    assert EpochMarker("next").mark(marked) == EpochMarker("next").prefix() + marked.removeprefix(marker.prefix())


def test_the_markers_form_is_stable() -> None:
    assert EpochMarker("2026-11-29.1").prefix() == "[epoch:2026-11-29.1]\n"
    for text in ("", "a b", "a]", "-a", "x" * 65, "é", "a\n"):
        with pytest.raises(InvalidField):
            EpochMarker(text)


def test_a_key_is_made_of_content() -> None:
    tools = [{"name": "lookup", "parameters": {}}]
    key = SERVING.prefix_key(**PREFIX, tools=tools, corpus=[("doc", "1")], epoch="3", isolation="northwind-salt")
    assert key.template_digest == digest_template(PREFIX["rendered_template"])
    assert key.tool_schema_digest == digest_tools(tools)
    assert key.epoch == "3" and key.corpus_digest and len(key.isolation_domain or "") == 64
    assert SERVING.prefix_key(**PREFIX).tool_schema_digest == ""
    assert SERVING.prefix_key(**PREFIX).corpus_digest is None
    assert SERVING.prefix_key(**PREFIX, corpus=[]).corpus_digest == ""


@pytest.mark.parametrize(
    "change",
    [
        {"tenant_id": "contoso"},
        {"template_id": "support_v8"},
        {"rendered_template": "You may return it within 14 days."},
        {"token_ids": [1, 2, 4]},
        {"tools": [{"name": "lookup"}]},
        {"corpus": [("doc", "2")]},
        {"epoch": "2"},
        {"principal": "ann"},
        {"isolation": "salt"},
        {"adapter_name": "legal"},
    ],
)
def test_every_part_of_the_content_changes_the_key(change: dict[str, Any]) -> None:
    assert SERVING.prefix_key(**(PREFIX | change)).fingerprint() != SERVING.prefix_key(**PREFIX).fingerprint()


def test_guessable_content_is_keyed_where_there_is_a_secret() -> None:
    keyed = Deployment("smol", "ab" * 32, "float32", "smol", secret=b"s3cret", secret_id="k1")
    key = keyed.prefix_key(**PREFIX, isolation="northwind")
    assert key.template_digest.startswith("k1:") and (key.isolation_domain or "").startswith("k1:")
    assert "s3cret" not in repr(keyed)


def test_a_key_that_cannot_be_made_names_the_dimension() -> None:
    with pytest.raises(EmptyTenant):
        SERVING.prefix_key(**(PREFIX | {"tenant_id": " "}))
    with pytest.raises(NameInDigestPlace, match="adapter_digest"):
        SERVING.prefix_key(**PREFIX, adapter_digest="latest")
    with pytest.raises(InvalidField):
        SERVING.prefix_key(**PREFIX, colour="blue")
