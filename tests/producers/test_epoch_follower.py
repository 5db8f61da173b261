"""Epochs from a real broker's fact stream: read whole at the start, followed as they come, kept while it is away."""

import asyncio
import os
import time
from collections.abc import Callable

import pytest
from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.producers.epoch_follower import EpochFollower
from kvtrail.producers.epochs import epoch_source
from kvtrail.producers.facts import epoch_bumped, publish_fact, publish_facts, template_published
from kvtrail.schemas.config import Config, EpochConfig, KafkaConfig
from kvtrail.streams.topics import ensure_topics

pytestmark = pytest.mark.kafka


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_what_was_published_before_the_start_holds_and_what_comes_after_is_followed(topics: KafkaConfig) -> None:
    publish_facts(
        topics, [epoch_bumped("7", why="first"), template_published("a", "ab" * 32), epoch_bumped("8", why="second")]
    )
    source = epoch_source(Config(kafka=topics, epoch=EpochConfig(value="1", follow=True)))
    try:
        assert source.of(tenant_id="contoso") == "8"
        publish_fact(topics, epoch_bumped("2", {"tenant_id": "contoso"}, why="INC-42"))
        assert until(lambda: source.of(tenant_id="contoso") == "8+tenant_id:2")
        assert source.of(tenant_id="northwind") == "8"
        assert source.mark("[epoch:7]\nHi", tenant_id="northwind") == "[epoch:8]\nHi"
        publish_fact(topics, epoch_bumped("9"))
        assert until(lambda: source.of(tenant_id="northwind") == "9")
    finally:
        source.close()


def test_a_forked_child_follows_by_itself(topics: KafkaConfig) -> None:
    publish_fact(topics, epoch_bumped("7"))
    with EpochFollower(topics) as source:
        child = os.fork()
        if child == 0:
            known = source.of() == "7"
            os._exit(0 if known and until(lambda: source.of() == "8") else 1)
        publish_fact(topics, epoch_bumped("8"))
        assert until(lambda: source.of() == "8")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_last_epoch_known_holds_while_the_broker_is_away(broker: KafkaBroker) -> None:
    asyncio.run(ensure_topics(broker.config))
    publish_fact(broker.config, epoch_bumped("7"))
    with EpochFollower(broker.config) as source:
        assert source.of() == "7"
        broker.kill()
        assert until(lambda: source.lag_s > 2)
        assert source.of() == "7"
        broker.start()
        assert until(lambda: source.lag_s < 1)
        publish_fact(broker.config, epoch_bumped("8"))
        assert until(lambda: source.of() == "8")
