"""What commands about epochs share: how a scope is named and shown, and what is stored."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..audit import wording
from ..producers.epochs import Scope
from ..schemas.epochs import CORPUS_ID
from ..schemas.errors import InvalidField
from ..schemas.reserved import PREFIX, is_reserved
from .facts import checked_where

F = TypeVar("F", bound=Callable[..., Any])
_SHORT = {"tenant": "tenant_id", "template": "template_id", "model": "model_id", "corpus": CORPUS_ID}
_EMPTY = "Write a value, or leave the option out."
_HELP = {
    "tenant": "Only this tenant's.",
    "template": "Only of this template.",
    "model": "Only of this model.",
    "corpus": "Only of this corpus, every revision of it that facts have told of.",
}


def scope_options(command: F) -> F:
    """Adds --tenant, --template, --model, --corpus and --where; nothing: the fleet."""
    command = click.option(
        "--where", multiple=True, metavar="DIMENSION=VALUE", help="Only what agrees with it; repeatable."
    )(command)
    for name in reversed(_SHORT):
        command = click.option(f"--{name}", metavar="NAME", help=_HELP[name])(command)
    return command


def scope_from(where: tuple[str, ...], **named: str | None) -> Scope:
    """The scope that the options name. Raises `InvalidField`, naming the option.

    A name that is empty (a variable that is not set, in a script) is refused: it would widen the scope to the fleet.
    """
    pairs: dict[str, str] = {}
    for name, value in named.items():
        if value is not None:
            pairs[_SHORT[name]] = _named(value, f"--{name}")
    for word in where:
        name, equals, text = word.partition("=")
        if not equals or not text.strip():
            raise InvalidField("is not DIMENSION=VALUE.", field="where", remedy="Write --where tenant_id=contoso.")
        if pairs.setdefault(name, text) != text:
            raise InvalidField("is given twice.", field=f"where.{name}", remedy="Say it once.")
        if name == "tenant_id":
            _named(text, "--where")
    return tuple(sorted(checked_where(pairs, "where").items()))


def filled(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """For options that may be left out, but mean nothing when empty. Raises `InvalidField`, naming the option."""
    if value is not None and not value.strip():
        raise InvalidField("is empty.", field=option.opts[0], remedy=_EMPTY)
    return value


def _named(value: str, option: str) -> str:
    if not value.strip():
        raise InvalidField("is empty.", field=option, remedy=_EMPTY)
    if option in ("--tenant", "--where") and is_reserved(value):
        raise InvalidField(
            f"begins with {PREFIX!r}: such tenants are kvtrail's own.", field=option, remedy="Name one of the fleet's."
        )
    return value


def scope_words(scope: Scope) -> str:
    """A scope as people read it."""
    return ", ".join(f"{name}={wording.column(value)}" for name, value in scope) or "the fleet"
