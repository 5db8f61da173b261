"""`kvtrail producers drain`: send what a host that will not come back has left in its spool, once."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from ..producers.incarnation import new_incarnation
from ..producers.kafka import KafkaTransport
from ..producers.spool import Spool
from ..producers.spooled import SpooledTransport
from ..producers.tally import TALLY, folder_name, read_head
from ..schemas.config import Config, load_config
from ..schemas.errors import ConfigError, KvtrailError
from .screen import say

TIMEOUT_S = 60.0


@dataclass
class Drained:
    """What became of one node's spool."""

    node: str
    found: int = 0
    sent: int = 0
    declared: int = 0
    lost: int = 0
    unknown: int = 0
    left: int = 0
    why: str = ""


@click.command()
@click.option("--spool", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Default: the configured.")
@click.option("--node", "only", help="One node's only; `agent` is an agent's.")
@click.option("--timeout", default=TIMEOUT_S, show_default=True, help="Seconds for each node.")
@click.option(
    "--config", "path", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file; the environment wins."
)
def drain(spool: Path | None, only: str | None, timeout: float, path: Path | None) -> None:
    """Send what processes that are gone have left in a spool, then say what became of it.

    What a running process owns is left alone, and its next start would do the same as this: it is for disks whose host
    does not come back. Records go in order, then the ends of lanes that a kill cut off are declared. Exit status 1 when
    something is left.
    """
    config = load_config(path)
    root = spool or config.publisher.spool_directory
    if root is None:
        raise ConfigError("is empty.", field="publisher.spool_directory", remedy="Set it, or give --spool FOLDER.")
    nodes = sorted({node for node in _nodes(root) if only is None or node == only})
    accounts = [asyncio.run(_drain(root, node, config, timeout)) for node in nodes]
    for account in accounts:
        _tell(account)
    if not accounts:
        say("nothing is left there")
    if any(account.left for account in accounts):
        sys.exit(1)


def _nodes(root: Path) -> Iterator[str]:
    """Whose spools are there. Raises `ConfigError` for what cannot be read: it may be left there, too."""
    try:
        for folder in (folder for node in root.iterdir() if node.is_dir() for folder in node.iterdir()):
            with suppress(FileNotFoundError, NotADirectoryError):  # no spool, or sent meanwhile
                head = read_head(folder / TALLY)
                if head is not None and folder.parent.name == folder_name(head.node):
                    yield head.node
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror}: {error.filename}).",
            field="publisher.spool_directory",
            remedy="Run it as the user whose producers wrote there; a damaged disk's folder can be moved away.",
        ) from error


async def _drain(root: Path, node: str, config: Config, timeout_s: float) -> Drained:
    account = Drained(node)
    try:
        spool = Spool(root, node, new_incarnation(), max_bytes=config.publisher.spool_bytes)
    except KvtrailError as error:
        account.left, account.why = 1, str(error)
        return account
    line = SpooledTransport(KafkaTransport(config.kafka), spool)
    try:
        await line.start()
        account.found, account.unknown = spool.records, len(spool.unknown)
        await line.emptied(timeout_s)
    finally:
        account.sent, account.declared, account.lost = line.sent, spool.declared, spool.lost
        account.left, account.why = spool.records, line.last_error
        await line.stop()
    return account


def _tell(account: Drained) -> None:
    parts = [f"{account.found} records found, {account.sent} sent"]
    if account.declared:
        parts.append(f"{account.declared} of them ends of lanes that a kill cut off")
    if account.lost:
        parts.append(f"{account.lost} events could not be read or will never be taken: gaps")
    if account.unknown:
        parts.append(f"{account.unknown} incarnation(s) of another boot: what they had in memory is unknown")
    if account.left:
        parts.append(f"{account.left} left ({account.why or 'no time'}): run it again when the broker is up")
    say(f"{account.node}: {'; '.join(parts)}", style="red" if account.left else "")
