"""`kvtrail hit-rate`: hit rates from lookups as nodes counted them, with what they leave out."""

import time
from typing import Any

import click
import msgspec

from ..audit import wording
from ..audit.asking import parse_span
from ..schemas.errors import InvalidField
from ..store import queries
from ..store.client import connect
from ..store.results import LookupTotal, Unaccounted
from .local.running import current_config

GROUPS = {"tenant": "tenant", "template": "template", "model": "model", "tier": "tier_name"}
"""What to group by -> the field of `LookupTotal`."""
SCHEMA = "kvtrail.hit-rate/1"
COUNTS = (
    "A lookup is one question to a cache, whatever its size: rates are not weighted by tokens. "
    "hit rate = hit / (hit + partial + miss); bypassed lookups never asked."
)


@click.command("hit-rate")
@click.option("--by", default="tenant", show_default=True, help=f"Any of {', '.join(GROUPS)}, apart by commas.")
@click.option("--since", default="1h", show_default=True, metavar="1h", help="The last 90s, 15m, 1h, 7d ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def hit_rate(by: str, since: str, as_json: bool) -> None:
    """Hit rates by tenant, template, model and tier, from the `lookups` counters that nodes publish.

    Hits alone give no rate: these counters hold the misses too. What is missing from them is said beneath the table.
    """
    groups = [name.strip() for name in by.split(",") if name.strip()]
    if not groups or not set(groups) <= GROUPS.keys():
        raise InvalidField("is nothing to group by.", field="--by", remedy=f"Choose of {', '.join(GROUPS)}.")
    now_us = int(time.time() * 1e6)
    since_us = now_us - parse_span(since) * 1_000_000
    with connect(current_config().clickhouse) as client:
        flags = {f"by_{name}": int(name in groups) for name in GROUPS}
        totals = queries.LOOKUPS.run(client, since_us=since_us, until_us=now_us, **flags)
        (unaccounted,) = queries.LOOKUPS_UNACCOUNTED.run(client, since_us=since_us)
    if as_json:
        document = _document(groups, since_us, totals, unaccounted)
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return
    for line in _table(groups, totals):
        click.echo(line)
    click.echo(f"\n{COUNTS}")
    click.echo(_left_out(unaccounted))


def rate_of(total: LookupTotal) -> float | None:
    """The share of lookups that asked and found the whole entry; None where none asked."""
    asked = total.hit + total.partial + total.miss
    return total.hit / asked if asked else None


def _document(
    groups: list[str], since_us: int, totals: list[LookupTotal], unaccounted: Unaccounted
) -> dict[str, Any]:  # fmt: skip
    rows = []
    for total in totals:
        row: dict[str, Any] = {name: getattr(total, GROUPS[name]) for name in groups}
        row |= {name: getattr(total, name) for name in ("hit", "partial", "miss", "bypassed")}
        rows.append({**row, "hit_rate": rate_of(total)})
    return {
        "schema": SCHEMA, "since_us": since_us, "counts": COUNTS, "rows": rows,
        "unaccounted": msgspec.to_builtins(unaccounted),
    }  # fmt: skip


def _table(groups: list[str], totals: list[LookupTotal]) -> list[str]:
    if not totals:
        return ["No lookups were reported in this time (publisher.lookups)."]
    rows = [[*groups, "lookups", "hit", "partial", "miss", "bypassed", "hit rate"]]
    for total in totals:
        rate = rate_of(total)
        counts = (total.hit, total.partial, total.miss, total.bypassed)
        rows.append(
            [
                *(wording.column(value) if (value := getattr(total, GROUPS[name])) else "-" for name in groups),
                *map(wording.number, (sum(counts), *counts)),
                "-" if rate is None else f"{rate:.1%}",
            ]
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(_cell(row, at, widths, len(groups)) for at in range(len(row))).rstrip() for row in rows]


def _cell(row: list[str], at: int, widths: list[int], names: int) -> str:
    return row[at].ljust(widths[at]) if at < names else row[at].rjust(widths[at])


def _left_out(unaccounted: Unaccounted) -> str:
    told = []
    if unaccounted.missing:
        lanes = wording.plural(unaccounted.lanes, "lane")
        told.append(f"{wording.plural(unaccounted.missing, 'event')} missing from {lanes}")
    if unaccounted.refused:
        told.append(f"{wording.plural(unaccounted.refused, 'event')} refused")
    if unaccounted.quiet_nodes:
        told.append(f"{wording.plural(unaccounted.quiet_nodes, 'node')} with hits and no lookups reported")
    if not told:
        return "Nothing is known to be missing: every lane is whole, and every node with hits reports lookups."
    return f"Not accounted for, each may hold lookups: {', '.join(told)}."
