"""`kvtrail agent`: one process a host that publishes for all engines of the host."""

import asyncio
import grp
import os
import pwd
import signal
from collections.abc import Callable
from pathlib import Path

import click

from ..producers.agent import Agent
from ..producers.agent_metrics import AgentMetrics
from ..producers.incarnation import new_incarnation
from ..producers.offering import to_kafka
from ..producers.spool import Spool
from ..producers.spooled import SpooledTransport
from ..schemas.config import Config, load_config
from ..schemas.errors import ConfigError
from ..streams.logs import log_to_stderr
from .screen import say


@click.command()
@click.option(
    "--config", "path", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file; the environment wins."
)
def agent(path: Path | None) -> None:
    """Publish for all engines of this host, until told to stop (SIGTERM, Ctrl-C).

    Engines connect to a Unix socket with kvtrail.producers.agent_client. What the broker does not take waits in the
    spool on disk, also over a restart. Logs are JSON Lines on stderr.
    """
    config = load_config(path)
    log_to_stderr()
    asyncio.run(_serve(config))


async def _serve(config: Config) -> None:
    socket = config.agent.socket or config.local.home() / "agent.sock"
    group = _group(config.agent.group)
    spool = Spool(
        config.publisher.spool_directory or config.local.home() / "spool",
        "agent",
        new_incarnation(),
        max_bytes=config.publisher.spool_bytes,
    )
    line = SpooledTransport(to_kafka(config.kafka), spool, patience_s=config.publisher.spool_after_s)
    serving = Agent(socket, line, config.publisher, group=group, allowed=may_publish(config, group))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = None
    if config.agent.metrics:
        host, _, port = config.agent.metrics.rpartition(":")
        try:
            server = await AgentMetrics(serving, line).serve(host, int(port))
        except OSError as error:
            raise ConfigError(
                f"cannot be listened on ({error.strerror}).", field="agent.metrics", remedy="Choose another port."
            ) from error
    try:
        await serving.run(stop, lambda: say(f"ready: agent on {socket}"))
    finally:
        if server is not None:
            server.close()


def may_publish(config: Config, group: int | None) -> Callable[[int, int], bool]:
    """Whether a process may publish, by its user and group id. Raises `ConfigError` for a name that is not there."""
    users = {0, os.geteuid()} | {_user(name) for name in config.agent.users}

    def allowed(uid: int, gid: int) -> bool:
        # With a group the socket's own rights have let in its members only.
        return uid in users or group is not None

    return allowed


def _user(name: str) -> int:
    try:
        return int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError("names a user that is not there.", field="agent.users", remedy="Create it.") from None


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError:
        raise ConfigError("names a group that is not there.", field="agent.group", remedy="Create it.") from None
