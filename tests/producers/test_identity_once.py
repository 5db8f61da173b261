"""What is worked out of an identity is worked out once, however many events carry it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import PublisherConfig
from kvtrail.schemas.identity import Identity, PrefixKey

from .agents import Running
from .test_rotation import key


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The dimensions of each identity that was written out, as often as it was."""
    written: list[str] = []
    real = Identity.to_wire

    def to_wire(self: Identity) -> dict[str, str]:
        written.append(json.dumps(real(self)))
        return real(self)

    monkeypatch.setattr(Identity, "to_wire", to_wire)
    yield written


def test_a_fingerprint_is_made_once_for_equal_keys_and_never_shared_by_others(made: list[str]) -> None:
    first = key(b"secret", "hmac-2026a", "Only this test says so.")
    again = PrefixKey.model_validate(first.model_dump())
    other = first.model_copy(update={"tenant_id": "contoso"})
    found = {first.fingerprint(), first.fingerprint(), again.fingerprint()}
    assert len(found) == 1 and len(made) == 1
    assert other.fingerprint() not in found and len(made) == 2


def test_a_publisher_writes_an_identity_out_once(made: list[str]) -> None:
    who = Identity(tenant_id="northwind", principal="agent-3")
    with LifecyclePublisher("gpu-1", MemoryTransport(), PublisherConfig(linger_s=0.0, envelope_events=10)) as publisher:
        for _ in range(200):
            publisher.hit("k", who, store="kv", tier="gpu")
        assert publisher.flush(30)
        assert publisher.stats().records > 5 and len(made) == 1


def test_an_engine_behind_an_agent_writes_an_identity_out_once(made: list[str], tmp_path: Path) -> None:
    who = Identity(tenant_id="northwind", principal="agent-4")
    with (
        Running(tmp_path / "agent.sock", MemoryTransport()) as running,
        AgentPublisher("gpu-1", running.path, linger_s=0.0, envelope_events=10) as publisher,
    ):
        for _ in range(200):
            publisher.hit("k", who, store="kv", tier="gpu")
        assert publisher.flush(30)
        assert publisher.stats().records > 5 and len(made) == 2, "once in the engine, once in the agent"
