"""`kvtrail dead-letter`: refused input, why it was refused, and sending it again once it can be read."""

import asyncio
import sys
import time
from pathlib import Path

import click
import msgspec

from ..audit import wording
from ..audit.asking import parse_span
from ..schemas.dead_letters import DeadLetter
from ..schemas.errors import KvtrailError
from ..store import queries
from ..store.client import Client, connect
from ..streams.readmission import letter_id, readmit, sort_out
from .local.running import current_config

_SHOWN_BYTES = 4096


class UnknownLetter(KvtrailError):
    """No dead letter has this id."""

    code = "unknown_letter"


@click.group("dead-letter")
def dead_letter() -> None:
    """Look at refused input, and send it again once it can be read."""


_since = click.option(
    "--since", default="", metavar="1h", help="Only what was refused in the last 90s, 15m, 1h, 7d ..."
)
_stage = click.option(
    "--stage", default="", type=click.Choice(["", "decode", "judge", "insert", "resolve"]), help="Where it was refused."
)
_code = click.option("--code", default="", metavar="CODE", help="Only this reason, as undecodable_record.")
_limit = click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 100_000), help="At most so many."
)


@dead_letter.command("list")
@_since
@_stage
@_code
@_limit
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, raw bytes as base64.")
def list_letters(since: str, stage: str, code: str, limit: int, as_json: bool) -> None:
    """List refused input, newest first.

    Exit status: 0 there is none, 1 there is some, 2 an error.
    """
    with connect(current_config().clickhouse) as client:
        letters = _found(client, since, stage, code, limit)
    for letter in letters:
        if as_json:
            click.echo(msgspec.json.encode({"id": letter_id(letter), **msgspec.to_builtins(letter)}).decode())
        else:
            click.echo(_line(letter))
    if not letters and not as_json:
        click.echo("No dead letter.")
    if len(letters) == limit:
        click.echo(f"The first {limit} are shown; --limit shows more.", err=True)
    sys.exit(1 if letters else 0)


@dead_letter.command()
@click.argument("id_", metavar="ID")
@click.option("--raw", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the exact bytes to a file.")
@click.option("--full", is_flag=True, help="Show the whole record, however large.")
def show(id_: str, file: Path | None, full: bool) -> None:
    """Show one refused record: where it came from, why it was refused, what to do, and its bytes.

    Bytes that are not printable are shown as escapes.
    """
    with connect(current_config().clickhouse) as client:
        letters = _by_id(client, id_)
    for letter in letters:
        click.echo("\n".join(_page(letter)))
        click.echo()
    raw = letters[0].raw
    shown = raw if full else raw[:_SHOWN_BYTES]
    click.echo(f"record, {len(raw)} bytes:")
    click.echo(_escaped(shown))
    if len(shown) < len(raw):
        click.echo(f"... {len(raw) - len(shown)} bytes more; --full shows them, --raw FILE writes them.", err=True)
    if file is not None:
        file.write_bytes(raw)
        click.echo(f"{len(raw)} bytes written to {file}.", err=True)


@dead_letter.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All that the other options leave, instead of single ones.")
@_since
@_stage
@_code
@_limit
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
def replay(
    ids: tuple[str, ...], everything: bool, since: str, stage: str, code: str, limit: int, dry_run: bool
) -> None:
    """Send refused records again, to the topic they came from, with the key they belong under.

    Only what this build can read is sent: run it after the decoder or the schema was mended. What was stored before
    is not stored twice. A single event beside accepted ones cannot be sent again.

    Exit status: 0 everything was sent, 1 something was not, 2 an error.
    """
    if bool(ids) == everything:
        raise click.UsageError("name dead letters, or --all.")
    config = current_config()
    with connect(config.clickhouse) as client:
        letters = (
            _found(client, since, stage, code, limit + 1) if everything
            else [letter for each in ids for letter in _by_id(client, each)]
        )  # fmt: skip
    more = everything and len(letters) > limit
    good, bad = sort_out(letters[:limit] if everything else letters)
    for letter, error in bad:
        click.echo(f"{letter_id(letter)}  not sent: {wording.clean(str(error))}", err=True)
    if dry_run:
        for letter, key in good:
            click.echo(f"{letter_id(letter)}  would be sent under key {wording.clean(key.decode())}")
    elif good:
        for done in asyncio.run(readmit(config.kafka, good)):
            click.echo(f"{letter_id(done.letter)}  sent again as {done.letter.topic}/{done.partition}/{done.offset}")
    click.echo(f"{len(good)} {'to send' if dry_run else 'sent'}, {len(bad)} not.", err=True)
    if more:
        click.echo(f"There are older ones: the newest {limit} were taken; --limit takes more.", err=True)
    sys.exit(1 if bad or more else 0)


def _found(client: Client, since: str, stage: str, code: str, limit: int) -> list[DeadLetter]:
    since_us = int(time.time() - parse_span(since)) * 1_000_000 if since else 0
    return queries.DEAD_LETTERS_FOUND.run(client, since_us=since_us, stage=stage, code=code, limit=limit)


def _by_id(client: Client, text: str) -> list[DeadLetter]:
    topic, *numbers = text.split("/")
    if not topic.startswith("kvtrail."):
        topic = f"kvtrail.{topic}"
    if len(numbers) not in (2, 3) or not all(number.isascii() and number.isdigit() for number in numbers):
        raise UnknownLetter("is no id.", field="ID", remedy="Write it as `kvtrail dead-letter list` does.")
    partition, offset = int(numbers[0]), int(numbers[1])
    letters = queries.DEAD_LETTERS_OF_RECORD.run(client, topic=topic, partition=partition, offset=offset)
    if len(numbers) == 3:
        letters = [letter for letter in letters if letter.index == int(numbers[2])]
    if not letters:
        raise UnknownLetter(
            "no dead letter has this id.", field="ID", remedy="`kvtrail dead-letter list` says which there are."
        )
    return letters


def _line(letter: DeadLetter) -> str:
    where = f"{wording.day(letter.at_us)} {wording.clock(letter.at_us)}  {letter_id(letter)}"
    return f"{where}  {letter.stage}  {letter.code}  {wording.clean(letter.field)}: {wording.clean(letter.message)}"


def _page(letter: DeadLetter) -> list[str]:
    lines = [
        f"id       {letter_id(letter)}",
        f"refused  {wording.day(letter.at_us)} {wording.clock(letter.at_us)} UTC, stage {letter.stage}",
        f"why      {letter.code}: {wording.clean(letter.field)}: {wording.clean(letter.message)}",
        f"remedy   {wording.clean(letter.remedy)}",
    ]
    if letter.node:
        lane = (letter.node, letter.incarnation, letter.home)
        number = "" if letter.seq is None else f", number {letter.seq}"
        lines.append(f"from     {' '.join(map(wording.column, lane))}{number}")
    return lines


def _escaped(raw: bytes) -> str:
    return wording.clean(raw.decode("utf-8", "backslashreplace"))
