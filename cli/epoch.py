"""`kvtrail epoch bump`: older entries are out, and a hit across the bump is a finding."""

import time
from datetime import UTC, datetime

import click

from ..producers.epoch import EpochMarker
from ..producers.facts import epoch_bumped, publish_fact
from ..schemas.errors import InvalidField
from .facts import checked_where, line_of
from .local.running import current_config


@click.group()
def epoch() -> None:
    """Put everything that was cached before now out of use."""


@epoch.command()
@click.option("--why", required=True, help="The reason, as INC-42. It stands in every finding's evidence.")
@click.option("--where", multiple=True, metavar="DIMENSION=VALUE", help="Only entries that agree; repeatable.")
@click.option("--epoch", "value", help="The new epoch. Default: the time, as 2026-11-29T142009Z.")
def bump(why: str, where: tuple[str, ...], value: str | None) -> None:
    """Declare a new epoch: an entry that carries an earlier one must not be served any more.

    This tells the auditors. What makes the old entries unreachable is the marker at the front of your prompts: put the
    printed one there.
    """
    value = value or datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H%M%SZ")
    fact = epoch_bumped(value, _pairs(where), why=why, source="kvtrail epoch bump")
    config = current_config()
    publish_fact(config.kafka, fact)
    click.echo(f"published {line_of(fact)}")
    click.echo(
        f"From now on a hit on an entry of an earlier epoch{' there' if where else ''} is a finding (STALE_EPOCH)."
    )
    click.echo(f"Now put {EpochMarker(value).prefix().rstrip()} at the very front of your prompts, and the epoch into")
    click.echo(f'their identity (epoch="{value}"): until then old entries are still found, and every such hit is told.')


def _pairs(words: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text:
            raise InvalidField("is not DIMENSION=VALUE.", field="where", remedy="Write --where tenant_id=contoso.")
        pairs[name] = text
    return checked_where(pairs, "where")
