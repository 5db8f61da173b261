"""`kvtrail sink`: the ClickHouse writer."""

import click

from ..schemas.config import load_config
from ..streams.logs import log_to_stderr
from ..streams.sink import run_sink


@click.command()
def sink() -> None:
    """Run the ClickHouse sink until it is told to stop.

    SIGTERM leaves the group for good; SIGHUP keeps the worker's place for a restart.
    """
    config = load_config()
    log_to_stderr()
    run_sink(config)
