"""`kvtrail demo`: the incident, live, on a real model, a real broker and a real ClickHouse engine."""

import sys
from pathlib import Path

import click

from ..schemas.config import load_config
from .incident.loading import Loading, require_everything
from .local.signals import stoppable
from .screen import say, step

_PATH = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--keep", is_flag=True, help="Keep everything running afterwards, until Ctrl-C.")
@click.option("--once", is_flag=True, help="End by itself (the default).")
@click.option("--crash", is_flag=True, help="kill -9 detector and sink in the middle.")
@click.option("--record", type=_PATH, help="Write a recording for `kvtrail tour`.")
@click.option("--config", "path", type=_PATH, help="A TOML file; the environment wins over it.")
def demo(keep: bool, once: bool, crash: bool, record: Path | None, path: Path | None) -> None:
    """Two tenants share a template's name, and a cache key that says no more: watch it go wrong, and be found.

    A real language model answers on this machine's CPU; KV tensors, Kafka and ClickHouse's engine are real too.
    Exit status: 0 all went as it must, 1 it did not.
    """
    if keep and once:
        raise click.UsageError("--keep and --once exclude each other.")
    require_everything()
    from .incident.live import Live
    from .local.stack import LocalStack

    config = load_config(path)
    failed: list[str] | None = None
    stack = LocalStack(config, config.local.home() / "demo", ephemeral=True)
    with stoppable():
        try:
            loading = Loading()
            with stack:
                live = Live(stack, loading, crash=crash)
                failed = live.run()
                if record is not None and not failed:
                    live.write(record)
                if keep and not failed:
                    live.invite()
                    stack.wait()
                else:
                    live.farewell(failed)
                with step("Stopping"):
                    stack.stop()
        except KeyboardInterrupt:
            say("stopped")
            if failed is None:
                sys.exit(130)
    sys.exit(1 if failed else 0)
