"""`kvtrail events tail` against a real broker."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.cli.events import tail
from kvtrail.cli.local.running import alone, publish
from kvtrail.cli.main import main
from kvtrail.producers.kafka import KafkaTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import Config, KafkaConfig, PublisherConfig
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Event, NodeStart
from kvtrail.schemas.identity import Identity
from kvtrail.schemas.reserved import HEARTBEAT_NODE
from kvtrail.streams.heartbeat import beat

pytestmark = pytest.mark.kafka

NORTHWIND, CONTOSO = Identity(tenant_id="northwind", template_id="support_v7"), Identity(tenant_id="contoso")


@pytest.fixture
def history(topics: KafkaConfig, monkeypatch: pytest.MonkeyPatch) -> KafkaConfig:
    """The incident's three events, 30 others, and one record that is no event."""
    monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", topics.bootstrap)
    with LifecyclePublisher.to_kafka("gpu-1", topics) as publisher:
        publisher.create("9f3c1a" * 8, NORTHWIND, store="kv", tier="nvme", tokens=8992, ttl_s=300)
        publisher.hit("9f3c1a" * 8, CONTOSO, store="kv", tier="nvme", reused_tokens=8992, request_id="r2")
        for n in range(30):
            publisher.hit(f"other{n}", NORTHWIND, store="pool", tier="shared")

    async def spoil() -> None:
        transport = KafkaTransport(topics)
        await transport.send("n:gpu-1", b"\x1b[31mnot json", 1, 1)
        await transport.stop()

    asyncio.run(spoil())
    return topics


def lines(*arguments: str) -> list[str]:
    ran = CliRunner().invoke(tail, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    return ran.output.splitlines()


def test_everything_is_one_line_an_event(history: KafkaConfig) -> None:
    shown = lines("--last", "100")
    assert len(shown) == 1 + 2 + 30 + 1
    created = next(line for line in shown if "cache.create" in line)
    assert "  key=9f3c1a9f3c1a9f3c…  tenant=northwind  template=support_v7  tokens=8992  ttl=300s  tier=nvme" in created
    assert any("node.start" in line and "survives=nothing" in line for line in shown)
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC  [a-z]", line) for line in shown)
    assert "refused" in shown[-1] and "is not JSON" in shown[-1] and "\x1b" not in shown[-1]


def test_a_clock_that_is_off_is_said(history: KafkaConfig) -> None:
    event = Event(node="n9", incarnation="i", home="n:n9", seq=1, time_us=1_000_000, body=NodeStart())

    async def send() -> None:
        transport = KafkaTransport(history)
        await transport.send("n:n9", EnvelopeEncoder().encode([event]), 1, 1)
        await transport.stop()

    asyncio.run(send())
    [line] = [line for line in lines("--last", "100") if "home=n:n9" in line]
    assert line.startswith("20") and "clock=off:1970-01-01T00:00:01" in line


def test_the_running_local_stack_is_found(
    history: KafkaConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KVTRAIL_KAFKA__BOOTSTRAP")
    monkeypatch.setenv("KVTRAIL_LOCAL__DIRECTORY", str(tmp_path))
    with alone(tmp_path):
        publish(tmp_path, Config(kafka=history))
        assert len(lines("--last", "5")) == 5


def test_filters_find_what_is_far_back(history: KafkaConfig) -> None:
    assert len(lines("--tenant", "contoso", "--last", "1")) == 1
    assert len(lines("--key", "9f3c1a9f3c1a9f3c…")) == 2
    assert len(lines("--type", "create", "--type", "node_start")) == 2
    assert lines("--type", "expire") == ["No event matches."]
    assert lines("--type", "expire", "--json") == []
    assert len(lines()) == 20
    assert lines("--last", "0") == []


def test_behind_a_running_heartbeat_is_what_the_fleet_did(
    history: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = lines("--last", "100")
    with LifecyclePublisher.to_kafka(HEARTBEAT_NODE, history, PublisherConfig(linger_s=0.0)) as publisher:
        for n in range(25):
            beat(publisher, history.partitions, f"beat-{n}")
            assert publisher.flush(30)
    monkeypatch.setattr("kvtrail.cli.events._FIRST_STEP", 3)
    assert lines("--last", "5") == everything[-5:]
    assert lines("--last", "100") == everything


def test_json_lines_are_events_again(history: KafkaConfig) -> None:
    shown = lines("--json", "--tenant", "contoso")
    assert json.loads(shown[0])["request_id"] == "r2"
    batch = EnvelopeDecoder().decode(shown[0].encode())
    assert [event.identity for event in batch.events] == [CONTOSO]


@pytest.fixture
def following(history: KafkaConfig) -> Iterator[subprocess.Popen[str]]:
    """A `tail --follow` that has shown what was there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtrail.cli", "events", "tail", "--follow", "--last", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_following_shows_what_comes(following: subprocess.Popen[str], history: KafkaConfig) -> None:
    assert following.stdout is not None
    timer = threading.Timer(60, following.kill)  # a deadline for the reads below
    timer.start()
    assert "refused" in following.stdout.readline()
    with LifecyclePublisher.to_kafka("gpu-2", history) as publisher:
        publisher.expire("k", "ttl", store="kv", tier="gpu")
    shown = [following.stdout.readline() for _ in range(2)]
    assert "node.start" in shown[0] and "cache.expire" in shown[1] and "reason=ttl" in shown[1]
    following.send_signal(2)
    assert following.wait(30) in (0, 130)
    timer.cancel()


def test_a_missing_topic_is_named(
    kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setattr("kvtrail.cli.events.LIFECYCLE", "kvtrail.nowhere")
    monkeypatch.setattr("kvtrail.cli.events._PATIENCE_S", 1.0)
    with pytest.raises(SystemExit):
        main(["events", "tail"])
    assert "kafka.bootstrap" in capsys.readouterr().err


def test_no_broker_is_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", "127.0.0.1:1")
    with pytest.raises(SystemExit):
        main(["events", "tail"])
    assert "kafka.bootstrap" in capsys.readouterr().err
