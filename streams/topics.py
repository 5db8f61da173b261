"""Creates kvtrail's topics and refuses a broker whose topics are not what the workers need.

Runs before any worker: a Faust worker that subscribed to a missing topic stays silent, and a topic with another
partition count or without append time would give wrong verdicts, not errors.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from ..producers.kafka_client import connection
from ..schemas.config import KafkaConfig
from ..schemas.errors import BrokerError
from ..schemas.topics import TOPICS, TopicSpec

LARGEST_BATCH = 1_048_588
"""Bytes of a batch that every topic must take: the broker's own default, which all producers here stay below."""
DEADLINE_S = 30.0
POLL_S = 0.05


async def ensure_topics(config: KafkaConfig, deadline_s: float = DEADLINE_S) -> None:
    """Create the missing topics, wait until every partition has a leader, and verify all of them.

    Safe to run from several workers at once. Raises `BrokerError` naming topic, setting and remedy.
    """
    async with _admin(config) as admin:
        present = set(await admin.list_topics())
        missing = [spec for spec in TOPICS if spec.name not in present]
        if missing:
            await _create(admin, config, missing)
        await _verify(admin, config, time.monotonic() + deadline_s)


async def verify_topics(config: KafkaConfig, deadline_s: float = DEADLINE_S) -> None:
    """As `ensure_topics`, but creates nothing: a missing topic is an error."""
    async with _admin(config) as admin:
        present = set(await admin.list_topics())
        for spec in TOPICS:
            if spec.name not in present:
                raise BrokerError(
                    f"topic {spec.name} does not exist.",
                    field="kafka.bootstrap",
                    remedy="`kvtrail up` or any worker allowed to create topics makes it; "
                    "check that this is the right broker.",
                )
        await _verify(admin, config, time.monotonic() + deadline_s)


async def delete_topics(config: KafkaConfig, deadline_s: float = DEADLINE_S) -> None:
    """Delete kvtrail's topics with all their data, and wait until they are gone. For tests and discarded stacks."""
    until = time.monotonic() + deadline_s
    async with _admin(config) as admin:
        while names := {spec.name for spec in TOPICS} & set(await admin.list_topics()):
            if time.monotonic() > until:
                raise BrokerError(
                    f"topic {min(names)} could not be deleted in time.",
                    field="kafka.bootstrap",
                    remedy="Check the health of the Kafka cluster.",
                )
            await admin.delete_topics(sorted(names))
            await asyncio.sleep(POLL_S)


def settings(spec: TopicSpec, config: KafkaConfig) -> dict[str, str]:
    """The topic settings that a new topic gets."""
    wanted = {
        "cleanup.policy": spec.cleanup,
        "message.timestamp.type": "LogAppendTime" if spec.append_time else "CreateTime",
        "min.insync.replicas": "2" if config.replication >= 3 else "1",
        "max.message.bytes": str(LARGEST_BATCH),
    }
    if spec.cleanup == "delete":
        wanted["retention.ms"] = str(spec.retention_ms)
        wanted["retention.bytes"] = "-1"
    else:
        wanted["segment.ms"] = str(spec.segment_ms)
    return wanted


def partitions(spec: TopicSpec, config: KafkaConfig) -> int:
    """How many partitions the topic must have."""
    return config.partitions if spec.partitioned else 1


@asynccontextmanager
async def _admin(config: KafkaConfig) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(**connection(config), request_timeout_ms=10_000)
    try:
        try:
            await admin.start()
            yield admin
        except (KafkaError, OSError, TimeoutError) as error:
            raise BrokerError(
                f"the broker could not be used ({type(error).__name__}).",
                field="kafka.bootstrap",
                remedy="Check that Kafka runs at this address and may be used from here.",
            ) from error
    finally:
        await admin.close()


async def _create(admin: Any, config: KafkaConfig, specs: list[TopicSpec]) -> None:
    answer = await admin.create_topics(
        [
            NewTopic(spec.name, partitions(spec, config), config.replication, topic_configs=settings(spec, config))
            for spec in specs
        ]
    )
    for name, code, *rest in answer.topic_errors:
        if code in (0, TopicAlreadyExistsError.errno):  # another worker was faster: its topic is verified below
            continue
        error = for_code(code)
        raise BrokerError(
            f"topic {name} cannot be created ({error.__name__}: {rest[0] if rest else ''}).",
            field="kafka.replication" if "Replication" in error.__name__ else "kafka.bootstrap",
            remedy="Set kafka.replication to at most the number of brokers."
            if "Replication" in error.__name__
            else "Give this principal the right to create topics, or have an operator create them.",
        )


async def _verify(admin: Any, config: KafkaConfig, until: float) -> None:
    for spec in TOPICS:
        described = await _with_leaders(admin, spec, until)
        _check_shape(spec, config, described)
        _check_settings(spec, config, await _topic_settings(admin, spec))


async def _with_leaders(admin: Any, spec: TopicSpec, until: float) -> list[dict[str, Any]]:
    """The topic's partitions, once each has a leader: a topic is usable some time after its creation is answered."""
    while True:
        topic = (await admin.describe_topics([spec.name]))[0]
        found: list[dict[str, Any]] = topic["partitions"]
        if topic["error_code"] == 0 and found and all(each["leader"] >= 0 for each in found):
            return found
        if time.monotonic() > until:
            raise BrokerError(
                f"topic {spec.name} has partitions without a leader.",
                field="kafka.bootstrap",
                remedy="Check the health of the Kafka cluster.",
            )
        await asyncio.sleep(POLL_S)


def _check_shape(spec: TopicSpec, config: KafkaConfig, found: list[dict[str, Any]]) -> None:
    wanted = partitions(spec, config)
    if len(found) != wanted:
        raise BrokerError(
            f"topic {spec.name} has {len(found)} partitions, needs {wanted}.",
            field="kafka.partitions",
            remedy=f"Set kafka.partitions to {len(found)}: the count is fixed for the life of a deployment."
            if spec.partitioned
            else "Delete the topic when its data may go, and start again: it must have one partition.",
        )
    copies = min(len(each["replicas"]) for each in found)
    if copies < config.replication:
        raise BrokerError(
            f"topic {spec.name} has replication {copies}, needs {config.replication}.",
            field="kafka.replication",
            remedy="Reassign the topic to more brokers, or lower kafka.replication.",
        )


async def _topic_settings(admin: Any, spec: TopicSpec) -> dict[str, str]:
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, spec.name)])
    code, message, _, _, entries = answers[0].resources[0]
    if code != 0:
        raise BrokerError(
            f"the settings of topic {spec.name} cannot be read ({for_code(code).__name__}: {message}).",
            field="kafka.bootstrap",
            remedy="Give this principal the right DescribeConfigs on kvtrail's topics.",
        )
    return {entry[0]: entry[1] for entry in entries}


def _check_settings(spec: TopicSpec, config: KafkaConfig, found: dict[str, str]) -> None:
    for name, wanted in settings(spec, config).items():
        value = found.get(name, "")
        if name == "max.message.bytes":
            holds = int(value or 0) >= int(wanted)
            wanted = f"at least {wanted}"
        elif name == "retention.ms":
            holds = _as_ms(value) >= _as_ms(wanted)
            wanted = "-1 (for ever)" if wanted == "-1" else f"at least {wanted}"
        elif name == "min.insync.replicas":
            holds = int(value or 0) >= int(wanted)
        else:
            holds = value == wanted
        if not holds:
            raise BrokerError(
                f"topic {spec.name} has {name}={value}, needs {wanted}.",
                field="kafka.bootstrap",
                remedy=f"Run: kafka-configs.sh --alter --topic {spec.name} --add-config "
                f"{name}={settings(spec, config)[name]}",
            )


def _as_ms(value: str) -> float:
    return float("inf") if value == "-1" else float(value or 0)
