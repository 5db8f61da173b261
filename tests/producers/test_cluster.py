"""A cluster of three brokers that is restarted one broker after the other, under load."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.kafka import KafkaTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import PublisherConfig
from kvtrail.streams.topics import ensure_topics
from kvtrail.tests.fixtures.kafka import Cluster

from .agents import Running, spooled
from .load import Load, nothing_lost
from .reading import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


def test_a_rolling_restart_loses_nothing_and_keeps_the_order(cluster: Cluster, tmp_path: Path) -> None:
    asyncio.run(ensure_topics(cluster.config))
    config = PublisherConfig(linger_s=0.01, max_events=50_000)
    line = spooled(KafkaTransport(cluster.config, ack_timeout_s=10), tmp_path / "spool", "1")
    inside = LifecyclePublisher("gpu-1", KafkaTransport(cluster.config, ack_timeout_s=10), config)
    with Running(tmp_path / "agent.sock", line) as running:
        outside = AgentPublisher("gpu-2", running.path, linger_s=0.01, max_events=50_000)
        with Load(inside) as first, Load(outside) as second:
            for broker in cluster.brokers:
                _both_arrive(inside, line.sent, lambda: line.sent)
                assert broker.stop(60), "an orderly stop, which moves its leaders to others"
                _both_arrive(inside, line.sent, lambda: line.sent)
                broker.start()
            _both_arrive(inside, line.sent, lambda: line.sent)
        assert inside.close(60) and outside.close(60)
        until(lambda: line.spool.records == 0, "the spool is emptied", 60)
    nothing_lost(cluster.config, (inside, first), (outside, second))


def _both_arrive(inside: LifecyclePublisher, records: int, sent: Callable[[], int]) -> None:
    arrived = inside.stats().sent
    until(lambda: inside.stats().sent > arrived + 200, "the publisher's events arrive", 60)
    until(lambda: sent() > records, "the agent's records arrive", 60)
