"""`kvtrail init`: what must exist before any worker starts."""

import asyncio

import click

from ..schemas.config import load_config
from ..store.client import connect_wait
from ..store.migrate import migrate, verify
from ..streams.topics import ensure_topics
from .screen import say


@click.command()
@click.option("--wait", "wait_s", default=60.0, show_default=True, help="Seconds to wait for ClickHouse.")
def init(wait_s: float) -> None:
    """Create and check the Kafka topics, and bring ClickHouse to this version's schema.

    Safe to run again, and from several machines at once.
    """
    config = load_config()
    asyncio.run(ensure_topics(config.kafka))
    say("topics: as they must be")
    with connect_wait(config.clickhouse, wait_s) as client:
        ran = migrate(client, config)
        verify(client)
    say(f"schema: {ran} statements ran" if ran else "schema: up to date")
