"""`kvtrail fleet`: the rules that compare several homes."""

import click

from ..schemas.config import load_config
from ..streams.fleet import run_fleet
from ..streams.logs import log_to_stderr


@click.command()
def fleet() -> None:
    """Run the fleet worker until it is told to stop: key drift between nodes, missing parts of a request, probing.

    It folds what the detectors observe. SIGTERM leaves the group for good; SIGHUP keeps the worker's place for a
    restart.
    """
    config = load_config()
    log_to_stderr()
    run_fleet(config)
