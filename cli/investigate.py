"""`kvtrail investigate`: who was served what, where it came from, and who else was hit."""

import shutil
import sys

import click
import msgspec

from ..audit.archive import AmbiguousQuestion
from ..audit.asking import question
from ..audit.document import history_document
from ..audit.render import render_history
from ..audit.stored import StoredArchive
from ..audit.verdict import Outcome, reach_verdict
from ..audit.wording import column_key
from ..store.client import connect
from .local.running import current_config
from .screen import colourful

GUILTY = frozenset({Outcome.IMPLICATED, Outcome.AT_RISK})


@click.command()
@click.option("--request", metavar="ID", help="Everything about one request.")
@click.option("--key", metavar="KEY", help="The history of a store key; a beginning is enough where it is unambiguous.")
@click.option("--finding", metavar="ID", help="What a finding rests on; a beginning is enough.")
@click.option("--store", metavar="NAME", default="", help="With --key: only in this store.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, nothing folded or shortened.")
@click.option("--rows", default=40, show_default=True, help="Lines before runs of ordinary hits are folded.")
def investigate(
    request: str | None, key: str | None, finding: str | None, store: str, as_json: bool, rows: int
) -> None:
    """The history behind a request, a key or a finding, and a verdict to act on.

    Exit status: 0 nothing was found wrong (cleared, or not enough known), 1 the cache is implicated or at risk,
    2 an error: unknown id, store not reachable.
    """
    asked = question(request=request, key=key, finding=finding, store=store)
    config = current_config()
    archive = StoredArchive(lambda: connect(config.clickhouse))
    try:
        history = archive.investigate(asked)
    except AmbiguousQuestion as error:
        _which(error)
        sys.exit(2)
    verdict = reach_verdict(history)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(history_document(history)), indent=2))
    else:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if terminal else None
        click.echo(render_history(history, width=width, colour=colourful(sys.stdout), rows=max(rows, 3)))
    sys.exit(1 if verdict.outcome in GUILTY else 0)


def _which(error: AmbiguousQuestion) -> None:
    click.echo(f"kvtrail: {error}", err=True)
    for candidate in error.candidates:
        where = f"  --store {column_key(candidate.store)}" if candidate.store else ""
        click.echo(f"  --{candidate.kind} {column_key(candidate.value)}{where}", err=True)
    if error.more:
        click.echo("  ...", err=True)
