"""`kvtrail resolve`: identities for events that know only a request id."""

import click

from ..schemas.config import load_config
from ..streams.logs import log_to_stderr
from ..streams.resolver import run_resolver


@click.command()
def resolve() -> None:
    """Run the resolver until it is told to stop: it completes events which carry only a request id.

    Gateways tell who asked (kvtrail.producers.context), caches which request they served; this brings them together.
    SIGTERM leaves the group for good; SIGHUP keeps the worker's place for a restart.
    """
    config = load_config()
    log_to_stderr()
    run_resolver(config)
