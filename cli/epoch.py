"""`kvtrail epoch`: make everything that was cached before unreachable, and see that it is."""

import time
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from ..audit import wording
from ..producers.epoch import EpochMarker
from ..producers.epoch_follower import EpochFollower
from ..producers.epochs import Scope, scope_of
from ..producers.facts import epoch_bumped, publish_fact
from ..schemas.config import KafkaConfig
from ..schemas.epochs import combined, label_of
from ..schemas.errors import InvalidField
from .epoch_adoption import adoption
from .epoch_cost import cost
from .epoch_scope import filled, scope_from, scope_options, scope_words
from .facts import line_of
from .local.running import current_config

SCHEMA = "kvtrail.epochs/1"


@click.group()
def epoch() -> None:
    """Put everything that was cached before now out of use.

    In order: `cost` before, `bump`, then `adoption --wait`; `show` says what holds.
    """


@epoch.command()
@click.option(
    "--why", required=True, callback=filled, help="The reason, as INC-42. It stands in every finding's evidence."
)
@scope_options
@click.option("--epoch", "value", callback=filled, help="The new epoch. Default: the time, as 2026-11-29T142009Z.")
def bump(why: str, value: str | None, where: tuple[str, ...], **named: str | None) -> None:
    """Declare a new epoch: an entry that carries an earlier one must not be served any more.

    This tells the auditors, and every prompt assembler that follows the facts. What makes the old entries unreachable
    is the marker at the front of the prompts: where assemblers do not follow, put it there.
    """
    scope = scope_from(where, **named)
    value = value or datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H%M%SZ")
    fact = epoch_bumped(value, dict(scope), why=why, source="kvtrail epoch bump")
    config = current_config()
    _require_new(value, scope, config.kafka)
    publish_fact(config.kafka, fact)
    part = combined({label_of(name for name, _ in scope): value})
    click.echo(f"published {line_of(fact)}")
    click.echo(
        f"From now on a hit on an entry of an earlier epoch{' there' if scope else ''} is a finding (STALE_EPOCH)."
    )
    click.echo("Assemblers that follow the facts (epoch.follow) change their prompts by themselves. In others,")
    click.echo(f"put {EpochMarker(part).prefix().rstrip()} at the very front of your prompts, and the epoch into")
    click.echo(f'their identity (epoch="{part}"): until then old entries are still found, and every such hit is told.')
    click.echo(f"Then: kvtrail epoch adoption --epoch {value} --wait 10m")


def _require_new(value: str, scope: Scope, kafka: KafkaConfig) -> None:
    """Raises `InvalidField` for an epoch that would bring back what is out, or that no judge would call later."""
    with EpochFollower(kafka) as known:
        before = [one.epoch for one in known.epochs.history(scope)]
    if value in before:
        raise InvalidField(
            "was an epoch of this scope already: what was cached in it would be found again.", field="epoch",
            remedy="Choose one that was never used, or leave --epoch out.",
        )  # fmt: skip
    if value.isdecimal() and any(one.isdecimal() and int(one) > int(value) for one in before):
        raise InvalidField(
            "is a smaller number than an epoch before it, so nothing would be stale.", field="epoch",
            remedy="Choose a larger one, or leave --epoch out.",
        )  # fmt: skip


@epoch.command()
@click.option(
    "--for", "prefix", metavar="DIMENSION=VALUE,...", callback=filled, help="The epoch and the marker of one prefix."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def show(prefix: str | None, as_json: bool) -> None:
    """The epoch of every scope, since when and why."""
    from ..audit.epochs import known_epochs
    from ..store import queries
    from ..store.client import connect

    with connect(current_config().clickhouse) as client:
        epochs = known_epochs(queries.FACTS.run(client))
    holds = epochs.current()
    rows = [
        {
            "scope": dict(one.scope), "epoch": one.epoch, "since_us": one.effective_at_us, "why": one.why,
            "fact": one.fact_id, "bumps": len(epochs.history(one.scope)),
        }
        for one in holds
    ]  # fmt: skip
    found = epochs.of(**dict(scope_of(prefix))) if prefix is not None else None
    if as_json:
        document: dict[str, Any] = {"schema": SCHEMA, "epochs": rows}
        if found is not None:
            document["of"] = {"epoch": found, "marker": EpochMarker(found).prefix() if found else ""}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return
    if found is not None:
        click.echo(
            f"{EpochMarker(found).prefix().rstrip()}  epoch={found}" if found else "No scope that covers it has one."
        )
        return
    if not rows:
        click.echo("No epoch was ever bumped, as far as facts are stored.")
    for one in holds:
        why = f"  ({wording.clean(one.why)})" if one.why else ""
        times = wording.plural(len(epochs.history(one.scope)), "bump")
        click.echo(f"{scope_words(one.scope)}  {one.epoch}  since {wording.moment(one.effective_at_us)}, {times}{why}")


epoch.add_command(cost)
epoch.add_command(adoption)
