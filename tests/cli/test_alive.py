"""`kvtrail alive` believes the broker, not the process."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer
from click.testing import CliRunner
from kvtrail.cli.alive import GROUPS, alive, is_member
from kvtrail.schemas.config import Config, KafkaConfig
from kvtrail.schemas.errors import BrokerError
from kvtrail.schemas.topics import LIFECYCLE

pytestmark = pytest.mark.kafka


def test_a_worker_is_alive_while_it_is_in_its_group(topics: KafkaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", topics.bootstrap)

    async def during() -> tuple[bool, bool]:
        consumer = AIOKafkaConsumer(
            LIFECYCLE,
            bootstrap_servers=topics.bootstrap,
            group_id="kvtrail-alive-test",
            client_id="kvtrail-sink-9",
        )
        await consumer.start()
        try:
            await consumer.getmany(timeout_ms=200)
            config = Config(kafka=topics)
            return (
                await is_member(config, "kvtrail-alive-test", "kvtrail-sink-9"),
                await is_member(config, "kvtrail-alive-test", "kvtrail-sink-0"),
            )
        finally:
            await consumer.stop()

    assert asyncio.run(during()) == (True, False)
    result = CliRunner().invoke(alive, ["sink"])
    assert result.exit_code == 1 and "not in its group" in result.output


def test_a_broker_that_is_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(kafka=KafkaConfig(bootstrap="127.0.0.1:1"))
    with pytest.raises(BrokerError, match=r"kafka\.bootstrap"):
        asyncio.run(is_member(config, GROUPS["detect"], "kvtrail-detector-0"))
