"""Topics are created as they must be, and a broker whose topics differ is refused with a remedy."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from kvtrail.cli.local.ports import free_ports
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.errors import BrokerError
from kvtrail.schemas.topics import FACTS, FINDINGS, LIFECYCLE, STATE, TOPICS
from kvtrail.streams.topics import delete_topics, ensure_topics, partitions, settings, verify_topics

pytestmark = pytest.mark.kafka
_COMPACTED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


async def _with_admin(config: KafkaConfig, use: Callable[[Any], Awaitable[Any]]) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=config.bootstrap)
    await admin.start()
    try:
        return await use(admin)
    finally:
        await admin.close()


async def _settings(admin: Any, topic: str) -> dict[str, str]:
    answer = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {entry[0]: entry[1] for entry in answer[0].resources[0][4]}


def _alter(config: KafkaConfig, topic: str, values: dict[str, str]) -> None:
    async def use(admin: Any) -> None:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, values)])
        async with asyncio.timeout(20):  # the broker shows a change some time after it is acknowledged
            while not values.items() <= (await _settings(admin, topic)).items():
                await asyncio.sleep(0.02)

    asyncio.run(_with_admin(config, use))


def test_every_topic_is_made_as_it_must_be(topics: KafkaConfig) -> None:
    async def use(admin: Any) -> dict[str, tuple[int, dict[str, str]]]:
        found = {}
        for spec in TOPICS:
            described = (await admin.describe_topics([spec.name]))[0]
            found[spec.name] = (len(described["partitions"]), await _settings(admin, spec.name))
        return found

    found = asyncio.run(_with_admin(topics, use))
    for spec in TOPICS:
        count, values = found[spec.name]
        assert count == partitions(spec, topics) == (4 if spec.partitioned else 1)
        assert settings(spec, topics).items() <= values.items()
        assert values["message.timestamp.type"] == "LogAppendTime"
    assert found[STATE][1]["cleanup.policy"] == "compact"
    assert found[FACTS][1]["cleanup.policy"] == "compact"
    assert found[FACTS][1]["segment.ms"] == "3600000"


def test_ensuring_twice_and_at_once_changes_nothing(kafka: KafkaConfig) -> None:
    async def at_once() -> None:
        await delete_topics(kafka)
        await asyncio.gather(*(ensure_topics(kafka) for _ in range(4)))
        await verify_topics(kafka)

    asyncio.run(at_once())


def test_a_missing_topic_is_named_where_nothing_may_be_created(kafka: KafkaConfig) -> None:
    asyncio.run(delete_topics(kafka))
    with pytest.raises(BrokerError, match=f"topic {LIFECYCLE} does not exist"):
        asyncio.run(verify_topics(kafka))


def test_another_partition_count_is_refused(topics: KafkaConfig) -> None:
    with pytest.raises(BrokerError, match=f"kafka.partitions: topic {LIFECYCLE} has 4 partitions, needs 6.*to 4"):
        asyncio.run(ensure_topics(topics.model_copy(update={"partitions": 6})))


def test_a_facts_topic_with_several_partitions_is_refused(topics: KafkaConfig) -> None:
    async def use(admin: Any) -> None:
        await delete_topics(topics)
        await admin.create_topics([NewTopic(FACTS, 2, 1)])

    asyncio.run(_with_admin(topics, use))
    with pytest.raises(BrokerError, match=f"topic {FACTS} has 2 partitions, needs 1"):
        asyncio.run(ensure_topics(topics))


@pytest.mark.parametrize(
    ("topic", "values", "setting"),
    [
        (LIFECYCLE, {"message.timestamp.type": "CreateTime"}, "message.timestamp.type"),
        (STATE, {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}, "cleanup.policy"),
        (FINDINGS, {"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}, "retention.ms"),
        (LIFECYCLE, {"retention.bytes": "1000000", "message.timestamp.type": "LogAppendTime"}, "retention.bytes"),
        (STATE, {"max.message.bytes": "1000", **_COMPACTED}, "max.message.bytes"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_command_that_mends_it(
    topics: KafkaConfig, topic: str, values: dict[str, str], setting: str
) -> None:
    _alter(topics, topic, values)
    with pytest.raises(BrokerError, match=f"topic {topic} has {setting}=.*--add-config {setting}="):
        asyncio.run(ensure_topics(topics))


def test_longer_retention_is_the_operators_choice(topics: KafkaConfig) -> None:
    _alter(topics, LIFECYCLE, {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    asyncio.run(verify_topics(topics))


def test_more_copies_than_brokers_is_refused(kafka: KafkaConfig) -> None:
    asyncio.run(delete_topics(kafka))
    with pytest.raises(BrokerError, match=r"kafka\.replication: topic .* cannot be created"):
        asyncio.run(ensure_topics(kafka.model_copy(update={"replication": 3})))


def test_no_broker_is_one_clear_error() -> None:
    config = KafkaConfig(bootstrap=f"127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(BrokerError, match=r"kafka\.bootstrap: the broker could not be used"):
        asyncio.run(ensure_topics(config))
