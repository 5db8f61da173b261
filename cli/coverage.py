"""`kvtrail coverage`: what the sources of this fleet can reveal, what not, and what to add."""

import time
from pathlib import Path

import click
import msgspec

from ..audit import wording
from ..audit.asking import parse_span
from ..judging.offline import History
from ..judging.sight import IDLE, DimensionSight, Sight, Tally, Told, counted, look
from ..schemas.config import load_config
from ..schemas.facts import Fact
from ..store import queries
from ..store.client import connect
from .judge import HISTORIES, Lines
from .local.running import current_config

SCHEMA = "kvtrail.coverage/1"


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--since", default="24h", show_default=True, metavar="24h", help="In the store: the last 15m, 1h, 7d ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def coverage(paths: tuple[Path, ...], since: str, as_json: bool) -> None:
    """Say which failures the sources can reveal, which not, and what to add.

    Reads the store, or recorded histories: PATHS are JSON Lines files as for `kvtrail judge`, or folders of them. What
    nobody sends cannot be compared, and a rule that cannot speak is no all-clear.

    Exit status: 0 every rule that has something to find can see it, 1 some cannot, 2 an error.
    """
    sight = look(_recorded(paths) if paths else _stored(since))
    if as_json:
        document = {"schema": SCHEMA, **msgspec.to_builtins(sight)}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        for line in _lines(sight):
            click.echo(line)
    raise SystemExit(1 if sight.invisible else 0)


def _recorded(paths: tuple[Path, ...]) -> Told:
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if not path.is_dir() or file.suffix in HISTORIES
    ]
    config = load_config()
    history, tally = History(config.judging, config.deployment), Tally()
    for record in Lines(files):
        history.take(record)
        if isinstance(record, Fact):
            tally.fact(record)
        else:
            for event in record.events:
                tally.event(event)
    stats = history.judge.stats()
    compared, both = stats["compared"], stats["coverage"]
    assert isinstance(compared, int) and isinstance(both, dict)
    tally.told.compared, tally.told.both = compared, both
    return tally.told


def _stored(since: str) -> Told:
    now_us = int(time.time() * 1e6)
    window = {"since_us": now_us - parse_span(since) * 1_000_000, "until_us": now_us}
    with connect(current_config().clickhouse) as client:
        (tells,) = queries.TELLS.run(client, **window)
        facts = queries.FACT_COUNTS.run(client)
        known = queries.COVERAGE.run(client, **window)
        resolved = dict(queries.RESOLVED_DIMENSIONS.run(client, **window))
    return counted(
        {**tells, **{f"f:{kind}": count for kind, count in facts}},
        [(one.dimension, one.known_hits, one.known_creates) for one in known],
        resolved,
    )


def _lines(sight: Sight) -> list[str]:
    if not sight.hits and not sight.creates:
        return ["Neither creates nor hits were seen: nothing can be judged."]
    lines = [sight.summary, *(f"  {sentence}" for sentence in sight.sentences), ""]
    counts = f"{wording.plural(sight.hits, 'hit')}, {wording.plural(sight.creates, 'create')}."
    lines.append(
        f"{counts} Known on both sides of a hit:" if sight.exact else f"{counts} Known on both sides of a hit, at most:"
    )
    width = max(len(one.title) for one in sight.dimensions)
    known = [one for one in sight.dimensions if one.share or one.hits or one.creates]
    lines += [_known(one, width) for one in known]
    unknown = [one.title for one in sight.dimensions if one not in known]
    if unknown:
        lines.append(f"Never sent: {', '.join(unknown)}.")
    idle = [f"{one.rule} (no {one.missing[0]})" for one in sight.rules if one.status == IDLE]
    if idle:
        lines += ["", f"Nothing to find here, as far as events tell: {', '.join(idle)}."]
    if sight.invisible:
        lines += ["", "What a fleet does not have (adapters, media), send empty: known to be none is known."]
    return lines


def _known(one: DimensionSight, width: int) -> str:
    sides = "" if one.hits == one.creates == one.share else f"   (hits {one.hits:.0%}, creates {one.creates:.0%})"
    return f"  {one.title:<{width}}  {one.share:>4.0%}{sides}"
