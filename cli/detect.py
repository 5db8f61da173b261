"""`kvtrail detect`: one detector worker."""

import click

from ..schemas.config import load_config
from ..streams.detector import run_detector
from ..streams.logs import log_to_stderr


@click.command()
def detect() -> None:
    """Run a detector worker until it is told to stop.

    SIGTERM leaves the group for good; SIGHUP keeps the worker's place for a restart.
    """
    config = load_config()
    log_to_stderr()
    run_detector(config)
