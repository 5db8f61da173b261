"""`kvtrail alive`: is this worker doing its work, by the broker's own word?"""

import asyncio
import sys
import time
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import click
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from ..producers.kafka_client import connection
from ..schemas.config import Config, load_config
from ..schemas.errors import BrokerError

GROUPS = {
    "detect": "kvtrail-detect", "sink": "kvtrail-sink", "resolve": "kvtrail-resolve", "notify": "kvtrail-notify",
    "fleet": "kvtrail-fleet",
}  # fmt: skip
"""Worker -> its consumer group."""
TIMEOUT_S = 5.0

T = TypeVar("T")


@click.command()
@click.argument("worker", type=click.Choice([*GROUPS, "heartbeat"]))
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1, max=600),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long the broker may take to answer.",
)
def alive(worker: str, timeout_s: float) -> None:
    """Exit status 0 if this instance's worker is a member of its group, 1 if not: for health checks.

    Kafka drops a member that stops sending heartbeats, so that a hung process is not taken for a healthy one; right
    after a crash the answer can be late by the worker's session timeout. The heartbeat is in no group: it is alive
    while its events reach every partition.
    """
    config = load_config()
    if worker == "heartbeat":
        _beats(config, timeout_s)
        return
    instances = {
        "detect": config.detector.instance, "sink": config.sink.instance, "resolve": config.resolver.instance,
        "notify": config.notify.instance, "fleet": config.fleet.instance,
    }  # fmt: skip
    instance = instances[worker]
    if asyncio.run(is_member(config, GROUPS[worker], f"kvtrail-{instance}", timeout_s)):
        click.echo(f"{worker} {instance}: in its group")
        return
    click.echo(f"{worker} {instance}: not in its group", err=True)
    sys.exit(1)


def _beats(config: Config, timeout_s: float) -> None:
    from ..streams.silence import beating

    since_us = time.time_ns() // 1000 - round(config.heartbeat.deadline_s * 1e6)
    reached = asyncio.run(_in_time(beating(config.kafka, "alive", since_us, timeout_s / 2), timeout_s))
    missed = sorted(set(range(config.kafka.partitions)) - reached)
    if not missed:
        click.echo("heartbeat: reaches every partition")
        return
    click.echo(f"heartbeat: nothing came lately in partition {', '.join(map(str, missed))}", err=True)
    sys.exit(1)


async def is_member(config: Config, group: str, client_id: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether a consumer of this client id is in the group. Raises `BrokerError` when Kafka does not say in time."""
    return client_id in set(_client_ids(await _in_time(_described(config, group), timeout_s)))


async def _described(config: Config, group: str) -> Any:
    admin = AIOKafkaAdminClient(**connection(config.kafka))
    try:
        await admin.start()
        return await admin.describe_consumer_groups([group])
    finally:
        await admin.close()


async def _in_time(asked: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """What was asked, within one deadline: a broker that hangs takes connections and answers nothing."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asked
    except (KafkaError, OSError, TimeoutError) as error:
        raise _silent(error, timeout_s) from error


def _silent(error: Exception, timeout_s: float) -> BrokerError:
    if isinstance(error, TimeoutError):
        return BrokerError(
            f"does not answer within {timeout_s:g} s.", field="kafka.bootstrap",
            remedy="Does the broker there hang? --timeout gives it longer.",
        )  # fmt: skip
    return BrokerError(
        f"does not answer ({type(error).__name__}).", field="kafka.bootstrap", remedy="Is the broker running there?"
    )


def _client_ids(answers: Iterable[Any]) -> Iterable[str]:
    for answer in answers:
        for _error, _group, _state, _type, _protocol, members, *_ in answer.groups:
            for _member_id, client_id, *_ in members:
                yield client_id
