"""`kvtrail serve`: the console and the HTTP API."""

import sys
from pathlib import Path

import click

from ..audit.console.server import address_of, console_link, listens
from ..audit.console.server import serve as run_console
from ..audit.stored import StoredArchive
from ..schemas.config import load_config
from ..schemas.errors import StackError
from ..store.client import connect
from ..streams.logs import log_to_stderr
from .local.running import current_config

_CONFIG = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--config", "path", type=_CONFIG, help="A TOML file; the environment wins over it.")
@click.option("--link", is_flag=True, help="Print a fresh sign-in link to the console that runs here, and end.")
def serve(path: Path | None, link: bool) -> None:
    """Serve the console until told to stop; loopback only, unless serve.host and a token say otherwise.

    Nobody reads without a token. People follow a link that works once, for ten minutes; programs send
    `Authorization: Bearer TOKEN`, where TOKEN is serve.token or what is kept in STATE/console-token.
    """
    if link:
        found = current_config(path)
        address = address_of(found)
        if not listens(address):
            raise StackError(
                f"nothing listens at {address}.", field="serve.port", remedy="Start it: kvtrail up, or kvtrail serve."
            )
        click.echo(console_link(found))
        return
    log_to_stderr()
    config = load_config(path)
    archive = StoredArchive(lambda: connect(current_config(path).clickhouse, timeout_s=30))

    def tell(address: str) -> None:
        if sys.stdout.isatty():  # a link is a secret: it belongs on a screen, not in a log
            click.echo(f"Sign in, once, within ten minutes: {address}")

    run_console(config, archive, tell)
