"""`kvtrail backfill`: recorded events into Kafka."""

import asyncio
import sys
from pathlib import Path

import click

from ..audit import wording
from ..schemas.errors import BadInput
from ..streams.backfill import Tally, read
from ..streams.backfill import backfill as send
from .local.running import current_config

_SHOWN = 20


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only read and check the files.")
def backfill(files: tuple[Path, ...], dry_run: bool) -> None:
    """Send recorded events to Kafka, as if their producers had sent them now.

    FILES are JSON Lines as `kvtrail judge` reads them: envelopes, plain events, {"fact": {...}}. They keep their lanes
    and numbers, so that sending a file twice, or what is there already, changes nothing.

    Exit status: 0 everything was sent, 1 some lines were refused, 2 an error.
    """
    tally = Tally()
    config = current_config()
    for file in files:

        def refuse(number: int, error: BadInput, name: str = file.name) -> None:
            tally.refused += 1
            if tally.refused <= _SHOWN:
                click.echo(f"{name}:{number}: refused: {error}", err=True)

        found = read(file, refuse)
        if dry_run:
            for line in found:
                tally.records += line.fact is None
                tally.facts += line.fact is not None
                tally.events += line.last - line.first + 1 if line.fact is None else 0
        else:
            asyncio.run(send(config.kafka, found, tally=tally))
    what = "would be sent" if dry_run else "sent"
    click.echo(
        f"{wording.plural(tally.records, 'record')} with {wording.plural(tally.events, 'event')} and "
        f"{wording.plural(tally.facts, 'fact')} {what}, {wording.number(tally.refused)} refused"
    )
    sys.exit(1 if tally.refused else 0)
