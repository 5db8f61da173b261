"""`kvtrail notify`: who is told of incidents; run the notifier, try the targets, and see what was told."""

import asyncio
import sys
import time

import click
import msgspec
from aiokafka.errors import KafkaError

from ..audit import wording
from ..audit.asking import parse_span
from ..schemas.config import load_config
from ..schemas.errors import BrokerError, ConfigError
from ..schemas.notifications import Attempt, Decided, Entry
from .local.running import current_config


@click.group(invoke_without_command=True)
@click.pass_context
def notify(ctx: click.Context) -> None:
    """Tell webhooks and Alertmanagers of incidents, until told to stop.

    One root cause pages once: when it is first found, when it grows or gets worse, and when it is over. Where the
    heartbeat's finding stays away, that is told too. Targets: notify.webhooks.NAME and notify.alertmanagers.NAME in
    the configuration. SIGTERM leaves the group for good; SIGHUP keeps the worker's place for a restart.
    """
    if ctx.invoked_subcommand is not None:
        return
    from ..streams.logs import log_to_stderr
    from ..streams.notifier import run_notifier

    config = load_config()
    log_to_stderr()
    run_notifier(config)


@notify.command()
@click.option("--since", default="", metavar="1h", help="Only the last 90s, 15m, 1h, 7d ...")
@click.option("--target", default="", help="Only deliveries to this target.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as on kvtrail.notifications.")
def log(since: str, target: str, limit: int, as_json: bool) -> None:
    """Show what was told and each attempt to deliver it, oldest first, from the broker."""
    from ..streams.notifier_journal import read_journal

    since_us = int((time.time() - parse_span(since)) * 1e6) if since else 0
    try:
        entries, _ = asyncio.run(read_journal(current_config().kafka, "cli"))
    except (KafkaError, OSError) as error:
        raise BrokerError(
            f"what was told cannot be read ({type(error).__name__}).", field="kafka.bootstrap",
            remedy="Check the address, and that `kvtrail up` or your broker is running.",
        ) from error  # fmt: skip
    found = [entry for entry in entries if _at_us(entry) >= since_us and _concerns(entry, target)]
    for entry in found[-limit:]:
        click.echo(msgspec.json.encode(entry).decode() if as_json else _line(entry))
    if not found and not as_json:
        click.echo("Nobody was told anything.")
    if len(found) > limit:
        click.echo(f"The last {limit} of {len(found)} are shown; --limit shows more.", err=True)


@notify.command()
@click.argument("target")
def test(target: str) -> None:
    """Send a made-up notification to one configured target, and say what it answered.

    Exit status: 0 it was taken, 1 it was not.
    """
    from ..streams.notifier_trial import try_target

    config = current_config()
    names = [*config.notify.webhooks, *config.notify.alertmanagers]
    if target not in names:
        raise ConfigError(
            f"no target has this name; there {'are ' + ', '.join(names) if names else 'is none'}.", field="TARGET",
            remedy="Set notify.webhooks.NAME.url or notify.alertmanagers.NAME.url.",
        )  # fmt: skip
    answer = asyncio.run(try_target(config, target))
    if answer.delivered:
        click.echo(f"{target}: taken ({answer.code})")
        return
    detail = wording.clean(answer.detail)
    if answer.code:
        said = f"{answer.code} {detail}".rstrip()
    else:
        said = detail if detail.startswith("no answer") else f"no answer ({detail})"
        said += ". Can its address be reached from here?"
    click.echo(f"{target}: not taken: {said}", err=True)
    sys.exit(1)


def _at_us(entry: Entry) -> int:
    return entry.notification.at_us if isinstance(entry, Decided) else entry.at_us


def _concerns(entry: Entry, target: str) -> bool:
    if not target:
        return True
    return target in entry.targets if isinstance(entry, Decided) else entry.target == target


def _line(entry: Entry) -> str:
    at_us = _at_us(entry)
    stamp = f"{wording.day(at_us)} {wording.clock(at_us)}"
    if isinstance(entry, Attempt):
        code = f" {entry.code}" if entry.code else ""
        detail = f": {wording.clean(entry.detail)}" if entry.detail else ""
        return (
            f"{stamp}    {entry.status:<10} {wording.column(entry.target)}, attempt {entry.attempt}{code}, "
            f"{entry.took_ms} ms, {entry.id[:12]}{detail}"
        )
    told = entry.notification
    reason = "" if told.title.endswith(told.reason) else f" ({wording.clean(told.reason)})"
    return (
        f"{stamp}  {told.kind:<8} {told.severity:<8} {wording.clean(told.title)}{reason}, "
        f"incident {told.cause_id[:12]}.{told.episode}.{told.revision}, {told.id[:12]}"
    )
