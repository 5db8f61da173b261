"""`kvtrail heartbeat`: a known-bad pair of events, now and then."""

import click

from ..schemas.config import load_config
from ..streams.heartbeat import run_heartbeat
from ..streams.logs import log_to_stderr


@click.command()
def heartbeat() -> None:
    """Publish a known-bad pair of events into every partition until told to stop.

    Their finding is what `kvtrail notify` expects: where it stays away, the pipeline is silent and somebody is paged.
    The tenants of these events are kvtrail's own and appear in no report.
    """
    config = load_config()
    log_to_stderr()
    run_heartbeat(config)
