"""The resolver on a real broker: from a gateway's word and an engine's event to a judged hit, also through kills."""

import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from kvtrail.audit.history import Question
from kvtrail.audit.stored import StoredArchive
from kvtrail.producers.context import ContextPublisher
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import ClickHouseConfig, KafkaConfig, PublisherConfig, ResolverConfig
from kvtrail.schemas.context import RESOLVER
from kvtrail.schemas.dead_letters import DeadLetter, decode_dead_letter
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.errors import BadInput
from kvtrail.schemas.events import Event, Resolve
from kvtrail.schemas.topics import CONTEXT, DEAD_LETTER, FACTS, FINDINGS, LIFECYCLE
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.tests.streams.harness import (
    Worker,
    all_judged,
    all_stored,
    answer_of,
    committed,
    config_of,
    final,
    publish,
    published_findings,
    read_topic,
    samples_of,
    sum_of,
    undisturbed,
    until,
)

pytestmark = pytest.mark.kafka

FAST = PublisherConfig(linger_s=0.0)
A, B = "a" * 64, "b" * 64


def resolutions(kafka: KafkaConfig) -> list[Event]:
    """Every resolve on the lifecycle topic, in its order."""
    decoder = EnvelopeDecoder()
    batches = [decoder.decode(record.value) for record in read_topic(kafka, LIFECYCLE)]
    assert not any(batch.rejects for batch in batches)
    return [event for batch in batches for event in batch.events if isinstance(event.body, Resolve)]


def resolved(kafka: KafkaConfig) -> dict[str, str]:
    """Request id -> tenant, as resolved."""
    return {made.request_id: made.identity.tenant_id for made in resolutions(kafka) if made.identity is not None}


def _are_resolved(kafka: KafkaConfig, count: int) -> bool:
    return len(resolved(kafka)) >= count


@pytest.mark.engine
def test_a_gateways_word_and_an_engines_event_become_a_finding(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    """The incident again, by a cache that never knew whose requests it served."""
    config = config_of(topics, database, tmp_path)
    workers = [Worker(command, config, tmp_path) for command in ("detect", "sink", "resolve")]
    with workers[0], workers[1], workers[2] as resolver:
        with ContextPublisher.to_kafka(topics) as gateway, LifecyclePublisher.to_kafka("gpu-1", topics, FAST) as engine:
            gateway.publish("r1", "northwind", template_digest=A)
            engine.create("support_v7:m", None, store="kv", tier="nvme", request_id="r1", key_origin="asserted")
            engine.hit("support_v7:m", None, store="kv", tier="nvme", reused_tokens=9, request_id="r2")
            engine.hit("support_v7:m", None, store="kv", tier="nvme", reused_tokens=9, request_id="r3")
            engine.hit("support_v7:m", None, store="kv", tier="nvme", reused_tokens=9, request_id="nobody's")
            assert engine.flush(30)
            gateway.publish("r2", "contoso", template_digest=B)
            gateway.publish("r3", "northwind", template_digest=A)
            assert gateway.flush(30)
            until(lambda: len(resolved(topics)) == 3, "the resolutions")
        assert resolved(topics) == {"r1": "northwind", "r2": "contoso", "r3": "northwind"}
        until(all_judged(config), "the detector")
        (finding,) = [found for found in final(published_findings(topics)).values() if found.status == "open"]
        assert (finding.cause, finding.severity.value) == ("CROSS_TENANT_REUSE", "critical")
        assert finding.requester is not None and finding.requester.request_id == "r2"
        until(all_stored(config, LIFECYCLE, FINDINGS, FACTS), "the sink")
        with connect(database) as client:
            assert queries.RESOLUTIONS.run(client, ids=[finding.subject]) == [
                (finding.subject, {"tenant_id": "contoso", "template_digest": B})
            ]
        history = StoredArchive(lambda: connect(database)).investigate(Question(kind="request", value="r2"))
        (asked,) = [row.event for row in history.rows if row.event.request_id == "r2"]
        assert asked.identity is not None and asked.identity.tenant_id == "contoso"
        assert resolver.stop() == 0


def test_kill_9_loses_no_resolution_and_changes_no_finding(topics: KafkaConfig, tmp_path: Path) -> None:
    config = config_of(topics, None, tmp_path)
    with (
        Worker("resolve", config, tmp_path) as resolver,
        ContextPublisher.to_kafka(topics) as gateway,
        LifecyclePublisher.to_kafka("gpu-1", topics, FAST) as engine,
    ):
        engine.create("K", None, store="kv", tier="nvme", request_id="r0")
        gateway.publish("r0", "northwind", template_digest=A)
        for round_ in range(1, 4):
            enough = len(resolved(topics)) + 1
            for number in range(100):
                request = f"{round_}-{number}"
                engine.hit("K", None, store="kv", tier="nvme", request_id=request)
                if number % 2:
                    gateway.publish(request, "contoso" if number % 10 == 1 else "northwind", template_digest=A)
            assert engine.flush(30) and gateway.flush(30)
            until(partial(_are_resolved, topics, enough), "a resolution of this round")
            resolver.kill()
            # What was not told before the kill is told while nobody listens.
            for number in range(0, 100, 2):
                gateway.publish(f"{round_}-{number}", "northwind", template_digest=A)
            assert gateway.flush(30)
            resolver.start()
        until(lambda: len(resolved(topics)) == 301, "every resolution")
        assert resolver.stop(signal.SIGHUP) == 0
    tenants = resolved(topics)
    assert sum(tenant == "contoso" for tenant in tenants.values()) == 30
    # One sent twice is the same event, byte for byte.
    by_id = {made.id: made for made in resolutions(topics)}
    assert all(by_id[made.id] == made for made in resolutions(topics)) and len(by_id) == 301
    assert all(made.node == RESOLVER for made in by_id.values())
    wrong = [found for found in undisturbed(config).values() if found.status == "open"]
    assert {found.requester.tenant_id for found in wrong if found.requester is not None} <= {"contoso"}


def test_a_restart_sends_nothing_again_after_a_clean_stop(topics: KafkaConfig, tmp_path: Path) -> None:
    config = config_of(topics, None, tmp_path)
    with ContextPublisher.to_kafka(topics) as gateway, LifecyclePublisher.to_kafka("gpu-1", topics, FAST) as engine:
        engine.hit("K", None, store="kv", tier="nvme", request_id="early")
        gateway.publish("early", "northwind")
        gateway.publish("late", "contoso")
        assert engine.flush(30) and gateway.flush(30)
        with Worker("resolve", config, tmp_path) as resolver:
            until(lambda: resolved(topics) == {"early": "northwind"}, "the first")
            assert resolver.stop(signal.SIGHUP) == 0
            assert committed(topics, "kvtrail-resolve", CONTEXT)
            resolver.start()
            # A context from before the restart is known after it.
            engine.hit("K", None, store="kv", tier="nvme", request_id="late")
            until(lambda: resolved(topics) == {"early": "northwind", "late": "contoso"}, "the second")
            assert resolver.stop() == 0
    assert len(resolutions(topics)) == 2


@pytest.mark.engine
def test_bad_records_are_kept_in_topic_and_table_and_the_rest_goes_on(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path).model_copy(update={"resolver": ResolverConfig(window_s=60)})
    bad = [b"", b"nonsense", b'{"body":{}}', b'{"request_id":"r","tenant_id":"t","at_us":0,"template_digest":"v7"}']
    publish(topics, [("r", value) for value in bad], CONTEXT)
    publish(topics, [("x", b"no dead letter"), ("x", b'{"topic":"t"}')], DEAD_LETTER)
    with Worker("resolve", config, tmp_path) as resolver, Worker("sink", config, tmp_path) as sink:
        with ContextPublisher.to_kafka(topics) as gateway, LifecyclePublisher.to_kafka("gpu-1", topics, FAST) as engine:
            gateway.publish("r", "northwind")
            engine.hit("K", None, store="kv", tier="nvme", request_id="r")
            until(lambda: resolved(topics) == {"r": "northwind"}, "the resolution")
        until(lambda: _refused(topics), "the dead letters")
        assert resolver.stop(signal.SIGHUP) == 0
        resolver.start()
        assert resolver.stop() == 0
        until(lambda: all_stored(config, LIFECYCLE, DEAD_LETTER)(), "the sink")
        letters = _refused(topics)
        assert [letter.raw for letter in letters] == bad
        assert letters[3].field == "context.template_digest"
        with connect(database) as client:
            assert sorted(map(repr, queries.DEAD_LETTERS_FOUND.run(client, stage="resolve"))) == sorted(
                map(repr, letters)
            )
            assert {(found.topic, found.field) for found in queries.DEAD_LETTERS_FOUND.run(client, stage="decode")} == {
                (DEAD_LETTER, "dead_letter")
            }
        assert sink.stop() == 0


def _refused(kafka: KafkaConfig) -> list[DeadLetter]:
    """What the resolver has refused."""
    found = []
    for record in read_topic(kafka, DEAD_LETTER):
        with suppress(BadInput):
            found.append(decode_dead_letter(record.value))
    return [letter for letter in found if letter.stage == "resolve"]


def test_it_tells_how_it_is_and_stops_before_a_topic_is_drained(topics: KafkaConfig, tmp_path: Path) -> None:
    config = config_of(topics, None, tmp_path)
    config = config.model_copy(update={"resolver": ResolverConfig(window_s=60, metrics_port=0, refused_in_a_row=5)})
    with Worker("resolve", config, tmp_path) as resolver:
        with ContextPublisher.to_kafka(topics) as gateway, LifecyclePublisher.to_kafka("gpu-1", topics, FAST) as engine:
            gateway.publish("r", "northwind")
            gateway.publish("twice", "northwind")
            gateway.publish("twice", "contoso")
            engine.hit("K", None, store="kv", tier="nvme", request_id="r")
            until(lambda: resolved(topics) == {"r": "northwind"}, "the resolution")
            assert gateway.flush(30)
        publish(topics, [("r", b"nonsense")] * 3, CONTEXT)
        until(lambda: sum_of(samples_of(resolver), "kvtrail_refused_total", CONTEXT) == 3, "the refusals")
        assert answer_of(resolver, "/livez") == (200, '{"ok": true, "reasons": []}\n')
        assert answer_of(resolver, "/readyz")[0] == 200
        told = samples_of(resolver)
        assert told['kvtrail_worker_ready{worker="resolver"}'] == 1
        assert sum_of(told, "kvtrail_records_total", CONTEXT) == 7
        assert sum_of(told, "kvtrail_lag_records", CONTEXT) == 0
        # Three contexts, and the event where it came before its own: it is joined, and in the way of what follows.
        assert sum_of(told, "kvtrail_resolver_waiting", "") in (3, 4)
        assert told["kvtrail_resolver_joined_total"] == 1
        assert told["kvtrail_resolver_contradictions_total"] == 1
        publish(topics, [("r", b"nonsense")] * 40, CONTEXT)
        assert resolver.wait() == 1
        assert "5 records in a row were refused" in resolver.wait_for("giving up")["message"]
        before = len(_refused(topics))
        assert before <= 4
        resolver.start(wait=False)  # a restart forgives nothing
        assert resolver.wait() == 1
        assert len(_refused(topics)) == before
