"""`kvtrail producers doctor`: does publishing work from here, and if not, which part of it."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ..producers.agent_client import AgentPublisher
from ..producers.kafka import KafkaTransport
from ..producers.publisher import LifecyclePublisher
from ..producers.tally import TALLY, read_head, take
from ..schemas.config import Config, load_config
from ..schemas.errors import KvtrailError
from .drain import drain
from .screen import say

PROBE_S = 15.0


@click.group()
def producers() -> None:
    """Look after publishers."""


producers.add_command(drain)


@producers.command()
@click.option(
    "--config", "path", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file; the environment wins."
)
@click.option("--timeout", default=PROBE_S, show_default=True, help="Seconds to wait for each probe.")
def doctor(path: Path | None, timeout: float) -> None:
    """Send a probe each way that events can go, and say what works.

    The probe is an envelope of a node called kvtrail-doctor/HOST: its start, and a heartbeat. Exit status 1 when
    something does not work.
    """
    config = load_config(path)
    say("configuration  ok")
    failed = [name for name, works in _checks(config, timeout) if not _report(name, works)]
    if failed:
        sys.exit(1)


def _checks(config: Config, timeout_s: float) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "broker", lambda: _broker(config, timeout_s)
    if config.publisher.spool_directory is not None:
        yield "spool", lambda: _spool(config)
    agent = config.agent.socket or config.local.home() / "agent.sock"
    if config.agent.socket is not None or agent.exists():
        yield "agent", lambda: _agent(agent, timeout_s)


def _report(name: str, works: Callable[[], str]) -> bool:
    try:
        say(f"{name:14} ok: {works()}")
    except KvtrailError as error:
        say(f"{name:14} does not work: {error}", style="red")
        return False
    return True


def _broker(config: Config, timeout_s: float) -> str:
    """Address, credentials and topic, by an envelope that is acknowledged."""
    plain = config.publisher.model_copy(update={"spool_directory": None, "linger_s": 0.0})
    publisher = LifecyclePublisher(_node(), KafkaTransport(config.kafka), plain)
    took = _probe(publisher, timeout_s)
    return f"a probe was acknowledged after {took * 1000:.0f} ms ({config.kafka.security.protocol})"


def _agent(path: Path, timeout_s: float) -> str:
    took = _probe(AgentPublisher(_node(), path, linger_s=0.0), timeout_s)
    return f"a probe was safe after {took * 1000:.0f} ms"


def _probe(publisher: LifecyclePublisher | AgentPublisher, timeout_s: float) -> float:
    began = time.monotonic()
    publisher.check("", check="heartbeat", result="pass", detail="kvtrail producers doctor", store="", tier="gpu")
    arrived = publisher.flush(timeout_s)
    stats = publisher.stats()
    publisher.close(1.0 if arrived else 0.0)
    if not arrived:
        raise KvtrailError(
            f"nothing was acknowledged in {timeout_s:g} s (last: {stats.last_error or 'no answer'}).",
            remedy="Check the address, the credentials and that `kvtrail init` has made the topics.",
        )
    return time.monotonic() - began


def _spool(config: Config) -> str:
    """The folder takes files, the disk has room, and nobody's spool is left without a process to send it."""
    root = config.publisher.spool_directory
    assert root is not None
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".probe-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise KvtrailError(
            f"cannot be written ({error.strerror}).",
            field="publisher.spool_directory",
            remedy="Name a folder on a disk with room that this process may write to.",
        ) from error
    if free < config.publisher.spool_bytes:
        raise KvtrailError(
            f"the disk has room for {free // 2**20} MB, less than spool_bytes.",
            field="publisher.spool_bytes",
            remedy="Free some disk, or allow the spool less.",
        )
    waiting = sorted({_owner(tally) for tally in root.glob(f"*/*/{TALLY}") if _is_left(tally)})
    left = f"; waiting for their node to publish again: {', '.join(waiting)}" if waiting else ""
    return f"{free // 2**20} MB free{left}"


def _is_left(tally: Path) -> bool:
    lock = take(tally)
    if lock is None:
        return False
    os.close(lock)
    return True


def _owner(tally: Path) -> str:
    head = read_head(tally)
    return head.node if head is not None else "?"


def _node() -> str:
    return f"kvtrail-doctor/{socket.gethostname()}"
