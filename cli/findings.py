"""`kvtrail findings`: what was found, one by one or folded into incidents."""

import shutil
import sys
import time

import click
import msgspec

from ..audit.asking import MOST, known_cause, wanted
from ..audit.document import FINDINGS, INCIDENTS, finding_document, incident_document
from ..audit.listing import render_findings, render_incidents
from ..audit.stored import StoredArchive
from ..schemas.dimensions import Severity
from ..store.client import connect
from .local.running import current_config
from .screen import colourful


@click.command()
@click.option("--since", default="", metavar="1h", help="Only about events of the last 90s, 15m, 1h, 7d ...")
@click.option("--severity", default="", metavar="LEVEL", help=f"At least this: {', '.join(Severity)}.")
@click.option("--cause", default="", metavar="CAUSE", help="Only this cause, as CROSS_TENANT_REUSE.")
@click.option("--status", default="open", show_default=True, metavar="STATUS", help="open, retracted or all.")
@click.option("--limit", type=int, default=None, help=f"At most so many.  [default: 100; {MOST} with --json]")
@click.option("--incidents", "folded", is_flag=True, help="Fold open findings by root cause.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def findings(
    since: str, severity: str, cause: str, status: str, limit: int | None, folded: bool, as_json: bool
) -> None:
    """List findings, open ones first, then the loudest and newest; or incidents.

    Exit status: 0 none is open, 1 there are open findings, 2 an error.
    """
    now_s = time.time()
    # A machine's list, as the verdicts recommend it for telling the owners, must be whole.
    limit = (MOST if as_json else 100) if limit is None else limit
    cause = known_cause(cause) if cause else ""
    asked = wanted(now_us=int(now_s * 1e6), since=since, severity=severity, cause=cause, status=status, limit=limit)
    config = current_config()
    archive = StoredArchive(lambda: connect(config.clickhouse))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    colour = colourful(sys.stdout)
    if folded:
        incidents = archive.incidents(msgspec.structs.replace(asked, names=as_json))
        if as_json:
            _print({"schema": INCIDENTS, "incidents": [incident_document(one) for one in incidents]})
        else:
            click.echo(render_incidents(incidents, now_s=now_s, width=width, colour=colour))
        sys.exit(1 if incidents else 0)
    found = archive.findings(asked)
    if as_json:
        _print({"schema": FINDINGS, "findings": [finding_document(one) for one in found]})
    else:
        click.echo(render_findings(found, width=width, colour=colour))
    if len(found) == limit:
        more = "--limit shows more." if limit < MOST else "narrow it down with --since or --cause."
        click.echo(f"The first {limit} are shown; {more}", err=True)
    sys.exit(1 if any(one.status == "open" for one in found) else 0)


def _print(document: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
