"""`kvtrail epoch cost`: what a bump would cost, before it is done."""

from typing import TYPE_CHECKING

import click
import msgspec

from ..audit import wording
from .epoch_scope import scope_from, scope_options, scope_words
from .local.running import current_config

if TYPE_CHECKING:
    from ..audit.epochs import Cost

SCHEMA = "kvtrail.epoch-cost/1"


@click.command()
@scope_options
@click.option("--history", default="7d", show_default=True, help="How far back to look for entries.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def cost(history: str, as_json: bool, where: tuple[str, ...], **named: str | None) -> None:
    """Estimate the cold prefills that a bump of a scope would cause, from what is stored. Nothing is changed."""
    from ..audit.asking import parse_span
    from ..audit.epochs import ASSUMPTIONS, read_cost
    from ..store import queries
    from ..store.client import connect

    scope = scope_from(where, **named)
    with connect(current_config().clickhouse) as client:
        found = read_cost(client, scope, queries.FACTS.run(client), history_s=parse_span(history, "history"))
    if as_json:
        document = {
            "schema": SCHEMA, "scope": dict(scope), "at_us": found.at_us, "prefill_tokens": found.prefill_tokens,
            "prefill_tokens_at_most": found.live.tokens, "share_of_hits": found.share, "times_last_hour": found.times,
            "entries": msgspec.to_builtins(found.live), "last_hour": msgspec.to_builtins(found.traffic),
            "assumptions": ASSUMPTIONS,
        }  # fmt: skip
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return
    for line in lines_of(found):
        click.echo(line)


def lines_of(found: "Cost") -> list[str]:
    """The estimate for a person."""
    live, traffic = found.live, found.traffic
    words = f"A bump of {scope_words(found.scope)}"
    if not live.entries:
        return [f"{words} would make nothing unreachable: no live entry of it is stored.", *_assumed()]
    lines = [
        f"{words} would make {wording.plural(live.entries, 'live entry', 'live entries')} unreachable: "
        f"{wording.plural(live.prefixes, 'prefix', 'prefixes')} in {wording.plural(live.homes, 'place')}, "
        f"{wording.number(live.tokens)} tokens.",
        f"Hit in the last hour: {wording.plural(live.hot_entries, 'entry', 'entries')} of "
        f"{wording.plural(live.hot_prefixes, 'prefix', 'prefixes')}. Expect these cold prefills soon: "
        f"{wording.number(found.prefill_tokens)} tokens; at most, over time: {wording.number(live.tokens)}.",
    ]
    if found.share is not None:
        lines.append(
            f"Traffic of the last hour: {found.share:.1%} of hits "
            f"({wording.number(traffic.scope_hits)} of {wording.number(traffic.hits)}), "
            f"{wording.number(traffic.scope_reused_tokens)} of {wording.number(traffic.reused_tokens)} reused tokens."
        )
    else:
        lines.append("Traffic of the last hour: no hits are stored, so nothing can be said of what comes soon.")
    if found.times is not None:
        lines.append(
            f"In that hour {wording.number(traffic.computed_tokens)} tokens were computed for new entries: "
            f"the bump adds {found.times:.1f} hours' worth of that."
        )
    return [*lines, *_assumed()]


def _assumed() -> list[str]:
    from ..audit.epochs import ASSUMPTIONS

    return ["Assumed:", *(f"  {sentence}" for sentence in ASSUMPTIONS)]
