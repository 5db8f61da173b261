"""`kvtrail facts`: what the fleet knows outside the cache, told and listed."""

import difflib
import shutil
import sys
from typing import Any, get_args, get_origin, get_type_hints

import click
import msgspec

from ..audit import wording
from ..producers.facts import make_fact, publish_fact
from ..schemas.digests import require_digest
from ..schemas.epochs import CORPUS_ID, require_epoch
from ..schemas.errors import InvalidField
from ..schemas.facts import EpochFact, Fact, FactBody, Tick, encode_fact
from ..schemas.identity import DIMENSIONS
from .local.running import current_config

BODIES: dict[str, type[msgspec.Struct]] = {
    str(body.__struct_config__.tag): body for body in get_args(FactBody) if body is not Tick
}
"""Kind of fact -> its fields."""


@click.group()
def facts() -> None:
    """Tell kvtrail what the fleet knows, or see what it was told."""


def _kinds() -> str:
    return "\n".join(f"  {kind}: {' '.join(body.__struct_fields__)}" for kind, body in BODIES.items())


@facts.command(epilog=f"\b\nKinds and their values:\n{_kinds()}")
@click.argument("kind", type=click.Choice(list(BODIES)))
@click.argument("values", nargs=-1, metavar="NAME=VALUE...")
@click.option("--source", default="kvtrail facts", show_default=True, help="Who says so.")
def publish(kind: str, values: tuple[str, ...], source: str) -> None:
    """Publish a fact, effective now, and wait until the broker has it.

    `where` takes one dimension at a time: `where.tenant_id=contoso`. Publish a fact before the change it tells of
    takes effect: what workers judge in ignorance of it is judged wrongly.
    """
    fact = make_fact(body_of(kind, values), source=source)
    config = current_config()
    publish_fact(config.kafka, fact)
    click.echo(f"published {line_of(fact)}")
    click.echo("It holds for every event from now on. `kvtrail facts list` shows it once the sink has stored it.")


@facts.command(name="list")
@click.option("--kind", type=click.Choice(list(BODIES)), help="Only this kind.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, which `kvtrail judge` reads.")
def list_(kind: str | None, as_json: bool) -> None:
    """Every fact that is stored, in the order in which the broker had them."""
    from ..store import queries
    from ..store.client import connect

    with connect(current_config().clickhouse) as client:
        found = queries.FACTS.run(client)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    wanted = BODIES[kind] if kind else tuple(BODIES.values())
    told = [fact for fact in found if isinstance(fact.body, wanted)]
    if not told and not as_json:
        click.echo("No fact is stored." if kind is None else f"No fact of kind {kind} is stored.")
    for fact in told:
        if as_json:
            click.echo(f'{{"fact":{encode_fact(fact).decode()}}}')
        else:
            line = line_of(fact)
            click.echo(line if not width or len(line) <= width else f"{line[: width - 1]}…")


def body_of(kind: str, words: tuple[str, ...]) -> FactBody:
    """The fact's content from `name=value` words. Raises `InvalidField` or `NameInDigestPlace`, naming the value."""
    body = BODIES[kind]
    hints = get_type_hints(body)
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        outer, _, inner = name.partition(".")
        if not equals or outer not in hints or bool(inner) is not (get_origin(hints[outer]) is dict):
            raise InvalidField(
                "is no value of this kind of fact.", field=f"{kind}.{name}",
                remedy=f"Write name=value, of: {', '.join(_written(name, hint) for name, hint in hints.items())}.",
            )  # fmt: skip
        if inner:
            values.setdefault(outer, {})[inner] = text
        else:
            values[outer] = require_digest(text, f"{kind}.{name}") if name.endswith("_digest") else text
    try:
        made: FactBody = msgspec.convert({"type": kind, **values}, FactBody, strict=False)
    except msgspec.ValidationError:
        missing = [name for name in body.__struct_fields__[: _required(body)] if name not in values]
        raise InvalidField(
            f"lacks {', '.join(missing)}." if missing else "has a value that does not fit.", field=kind,
            remedy="`kvtrail facts publish --help` lists the kinds and their values.",
        ) from None  # fmt: skip
    if isinstance(made, EpochFact):
        require_epoch(made.epoch)
    checked_where(getattr(made, "where", {}), f"{kind}.where")
    return made


def checked_where(where: dict[str, str], field: str) -> dict[str, str]:
    """`where` itself. Raises `InvalidField` for what is neither a dimension nor a corpus: nothing would agree."""
    for name, value in where.items():
        if name == CORPUS_ID:
            continue
        if name not in DIMENSIONS:
            near = difflib.get_close_matches(name, DIMENSIONS, 1)
            raise InvalidField(
                "is no dimension.", field=f"{field}.{name}",
                remedy=f"Did you mean {near[0]}?" if near else "docs/reference/dimensions.md lists them.",
            )  # fmt: skip
        if DIMENSIONS[name].form == "digest":
            require_digest(value, f"{field}.{name}")
    return where


def line_of(fact: Fact) -> str:
    """A fact as one line for a person: when, what kind, what it says, its id."""
    told = msgspec.to_builtins(fact.body)
    kind = told.pop("type")
    where = told.pop("where", {})
    parts = [f"{name}={_short(value)}" for name, value in told.items() if value not in ("", None)]
    parts += [f"where.{name}={_short(value)}" for name, value in where.items()]
    return "  ".join([wording.clock(fact.effective_at_us), f"{kind:<12}", *parts, f"id={fact.id[:16]}"])


def _short(value: object) -> str:
    return wording.person_key(str(value))


def _written(name: str, hint: Any) -> str:
    return f"{name}.DIMENSION" if get_origin(hint) is dict else name


def _required(body: type[msgspec.Struct]) -> int:
    return len(body.__struct_fields__) - len(body.__struct_defaults__)
