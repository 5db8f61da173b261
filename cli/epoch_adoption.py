"""`kvtrail epoch adoption`: who still serves what is of an earlier epoch, until nobody does."""

import time
from typing import TYPE_CHECKING

import click
import msgspec

from ..audit import wording
from .epoch_scope import filled, scope_words
from .local.running import current_config

if TYPE_CHECKING:
    from ..audit.epochs import Adoption, NodeAdoption
    from ..store.client import Client

SCHEMA = "kvtrail.epoch-adoption/1"
POLL_S = 1.0
_SHOWN = 20


@click.command()
@click.option("--epoch", "value", callback=filled, help="Which bump. Default: the latest.")
@click.option("--why", callback=filled, help="The latest bump whose reason holds this text.")
@click.option("--wait", default="", metavar="10m", help="Look again until adoption is complete, at most this long.")
@click.option("--history", default="7d", show_default=True, help="Nodes that used it before the bump.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def adoption(value: str | None, why: str | None, wait: str, history: str, as_json: bool) -> None:
    """Who has moved on since a bump: hits still served on an earlier epoch, by node, template and tenant.

    A node has moved on when the last use of each of its templates and tenants was on the new epoch, prompt and entry.
    One that was not heard from is unknown, and never counts as moved on.

    Exit status: 0 every node has moved on, 1 something was last served on an earlier epoch, 3 nothing was, but nodes
    are unknown or nobody has used it, 2 an error.
    """
    from ..audit.asking import parse_span
    from ..store.client import connect

    end = time.monotonic() + (parse_span(wait, "wait") if wait else 0)
    with connect(current_config().clickhouse) as client:
        found = _look(client, value or "", why or "", parse_span(history, "history"))
        while not found.complete and time.monotonic() < end:
            time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
            found = _look(client, value or "", why or "", parse_span(history, "history"))
    if as_json:
        document = {
            "schema": SCHEMA, "adopted": found.adopted, "nodes_total": len(found.nodes), "complete": found.complete,
            **msgspec.to_builtins(found), "scope": dict(found.scope),
        }  # fmt: skip
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
    else:
        for line in lines_of(found, time.time()):
            click.echo(line)
    raise SystemExit(0 if found.complete else 1 if found.left else 3)


def _look(client: "Client", value: str, why: str, history_s: int) -> "Adoption":
    from ..audit.epochs import find_bump, known_epochs, read_adoption
    from ..store import queries

    facts = queries.FACTS.run(client)
    return read_adoption(client, find_bump(known_epochs(facts), epoch=value, why=why), facts, history_s=history_s)


def lines_of(found: "Adoption", now_s: float) -> list[str]:
    """Adoption for a person."""
    reason = f" ({wording.clean(found.why)})" if found.why else ""
    head = f"Epoch {found.epoch} of {scope_words(found.scope)}, since {wording.moment(found.since_us)}{reason}: "
    if not found.nodes:
        return [f"{head}no node has used it, before the bump or since."]
    share = found.adopted / len(found.nodes)
    lines = [f"{head}{found.adopted} of {wording.plural(len(found.nodes), 'node')} moved on ({share:.0%})."]
    width = max(len(wording.column(node.node)) for node in found.nodes)
    lines += [f"  {wording.column(node.node):<{width}}  {_node(node, found.since_us, now_s)}" for node in found.nodes]
    if found.left:
        lines.append("Last served on an earlier epoch:")
        for group in found.left[:_SHOWN]:
            epochs = wording.listing(wording.clean(epoch) or "none" for epoch in group.earlier_epochs)
            lines.append(
                f"  {wording.column(group.node)}  {wording.column(group.template_id or '-')}  "
                f"{wording.name(group.tenant_id)}: {wording.plural(group.earlier_hits, 'hit')}, "
                f"{wording.number(group.earlier_tokens)} tokens, epoch {epochs}, "
                f"last {wording.moment(group.last_earlier_us)}"
            )
        if len(found.left) > _SHOWN:
            lines.append(f"  and {wording.number(len(found.left) - _SHOWN)} more (--json)")
    return lines


def _node(node: "NodeAdoption", since_us: int, now_s: float) -> str:
    hits = sum(group.earlier_hits for group in node.groups)
    tail = f"; {wording.plural(hits, 'hit')} on earlier epochs since the bump" if hits else ""
    if node.state == "adopted":
        return f"moved on   {wording.plural(node.uses, 'use')} since the bump{tail}"
    if node.state == "earlier":
        last = max(group.last_earlier_us for group in node.groups)
        return f"earlier    last on an earlier epoch {wording.span(max(0.0, now_s - last / 1e6))} ago{tail}"
    if node.uses:
        return f"unknown    its events do not say of which epoch what it served is{tail}"
    if node.heard_us > since_us:
        return "unknown    nothing of this scope has been used there since the bump"
    return f"unknown    not heard from since {wording.moment(node.heard_us)}"
