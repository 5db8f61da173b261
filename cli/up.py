"""`kvtrail up`: the local stack until stopped."""

import sys
import time
from pathlib import Path

import click

from ..audit.console.server import console_link
from ..schemas.config import load_config
from .local.signals import stoppable
from .local.stack import LocalStack
from .screen import say, step

_CONFIG = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--config", "path", type=_CONFIG, help="A TOML file; the environment wins over it.")
@click.option("--fresh", is_flag=True, help="Begin from nothing, on free ports.")
def up(path: Path | None, fresh: bool) -> None:
    """Run broker, store, workers and console on this machine until Ctrl-C.

    A broker (KVTRAIL_KAFKA__BOOTSTRAP) or a ClickHouse server (KVTRAIL_CLICKHOUSE__URL) that you name is used as it
    is. With a target in the configuration (notify.webhooks, notify.alertmanagers) the notifier and the heartbeat run
    too. Data and logs are kept in $XDG_STATE_HOME/kvtrail, or in KVTRAIL_LOCAL__DIRECTORY.
    """
    config = load_config(path)
    started = time.monotonic()
    stack = LocalStack(config, config.local.home(), ephemeral=fresh)
    with stoppable():
        try:
            with stack:
                announce(stack, time.monotonic() - started)
                try:
                    stack.wait()
                finally:
                    with step("Stopping"):
                        stack.stop()
        except KeyboardInterrupt:
            say("stopped")


def announce(stack: LocalStack, took_s: float) -> None:
    """Where everything is; on a terminal, with a link that signs in to the console."""
    config = stack.config
    say(f"kvtrail is up ({took_s:.1f} s)", style="green")
    say(f"  console     http://{config.serve.host}:{config.serve.port}")
    if sys.stdout.isatty():  # a link signs in: it belongs on a screen, not in a log
        say(f"  sign in     {console_link(config)} (once, within ten minutes; then: kvtrail serve --link)")
    else:
        say("  sign in     with the link that `kvtrail serve --link` prints")
    say(f"  Kafka       {config.kafka.bootstrap}")
    say(f"  ClickHouse  {config.clickhouse.url} (database {config.clickhouse.database})")
    say(f"  data, logs  {stack.directory}")
    say("Ctrl-C stops everything; a second Ctrl-C does it at once.")
