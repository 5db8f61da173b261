"""`kvtrail replay`: history judged again with today's rules, against what is stored. Writes nothing."""

import re
import shutil
import sys
import time
from datetime import UTC, datetime

import click
import msgspec

from ..audit import wording
from ..audit.asking import BadQuestion, known_cause, parse_span
from ..audit.document import finding_document
from ..audit.listing import render_findings
from ..schemas.findings import Finding
from ..store.client import connect
from ..streams.history import LoggedHistory
from ..streams.rejudging import Change, Outcome, Span, rejudge
from .local.running import current_config
from .screen import colourful

REPLAY = "kvtrail.replay/1"
_TITLES = {
    "new": "new: today's rules find these",
    "gone": "gone: today's rules do not find these",
    "changed": "changed: found with another verdict",
}


@click.command()
@click.option("--from", "from_", required=True, metavar="T", help="2026-11-29T12:00Z, or how long ago: 90s, 1h, 7d.")
@click.option("--to", default="0s", metavar="T", help="The same; now, if left out.")
@click.option("--rules", "causes", multiple=True, metavar="CAUSE", help="Only findings of this cause; repeatable.")
@click.option(
    "--source",
    type=click.Choice(["clickhouse", "kafka"]),
    default="clickhouse",
    show_default=True,
    help="Whose records are judged: what the sink stored, or what the broker still has.",
)
@click.option("--warm-up", default="", metavar="7d", help="Judge only so much history before it, instead of all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def replay(from_: str, to: str, causes: tuple[str, ...], source: str, warm_up: str, as_json: bool) -> None:
    """Judge stored history again with today's rules, and show what is new, gone or changed.

    Reads exact bytes in the order of the log, as the sink stored them or as Kafka still has them, compares with the
    findings in ClickHouse, and writes nothing anywhere. Events between the two times are compared; the history before
    is judged too, so that entries are known.

    Exit status: 0 nothing differs, 1 something does, 2 an error.
    """
    now_s = time.time()
    span = Span(
        from_us=moment(from_, "from", now_s),
        to_us=moment(to, "to", now_s),
        warm_up_us=parse_span(warm_up, "warm-up") * 1_000_000 if warm_up else 0,
    )
    if span.from_us > span.to_us:
        raise BadQuestion("lies before --from.", field="to", remedy="Exchange them.")
    config = current_config()
    wanted = frozenset(known_cause(cause, "rules") for cause in causes)
    with connect(config.clickhouse) as client:
        if source == "kafka":
            with LoggedHistory(config.kafka) as log:
                outcome = rejudge(client, config, span, causes=wanted, history=log)
        else:
            outcome = rejudge(client, config, span, causes=wanted)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_document(outcome)), indent=2))
    else:
        _print(outcome)
    sys.exit(1 if outcome.changes else 0)


def moment(text: str, field: str, now_s: float) -> int:
    """Microseconds since the epoch of a time (UTC where it names no zone) or of so long ago. Raises `BadQuestion`."""
    if re.fullmatch(r"\s*\d+[smhdw]\s*", text):
        return int((now_s - parse_span(text, field)) * 1_000_000)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadQuestion("is no time.", field=field, remedy="Write 2026-11-29T12:00Z, or 90s, 1h, 7d.") from None
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _print(outcome: Outcome) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for kind, title in _TITLES.items():
        found = [change for change in outcome.changes if change.kind == kind]
        if not found:
            continue
        click.echo(f"{title} ({len(found)})")
        click.echo(render_findings([change.finding for change in found], width=width, colour=colourful(sys.stdout)))
        for change in found:
            if kind == "changed":
                click.echo(
                    f"  {change.finding.id[:12]}: {', '.join(_difference(change, field) for field in change.fields)}"
                )
        click.echo()
    click.echo(
        f"{wording.plural(outcome.records, 'record')} judged again: "
        f"{wording.plural(outcome.same, 'finding')} the same, "
        + ", ".join(f"{sum(change.kind == kind for change in outcome.changes)} {kind}" for kind in _TITLES)
    )
    for one in outcome.left_out:
        click.echo(f"not compared: {', '.join(one.causes)}: {one.reason}")
    if not outcome.whole:
        click.echo("History was not judged from its first record on: hits on what was created before are unattributed.")


def _difference(change: Change, field: str) -> str:
    before, now = getattr(change.stored, field), getattr(change.judged, field)
    if isinstance(before, str | bool) and isinstance(now, str | bool):
        return f"{field} {wording.column(str(before) or '-')} -> {wording.column(str(now) or '-')}"
    return field


def _document(outcome: Outcome) -> dict[str, object]:
    def side(finding: Finding | None) -> object:
        return finding_document(finding) if finding is not None else None

    return {
        "schema": REPLAY,
        "records": outcome.records,
        "events": outcome.events,
        "same": outcome.same,
        "left_out": [{"causes": list(one.causes), "reason": one.reason} for one in outcome.left_out],
        "whole": outcome.whole,
        "changes": [
            {"kind": change.kind, "id": change.finding.id, "fields": list(change.fields),
             "stored": side(change.stored), "judged": side(change.judged)}
            for change in outcome.changes
        ],
    }  # fmt: skip
