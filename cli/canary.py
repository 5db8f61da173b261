"""`kvtrail canary`: whose marker an answer shows, and the sentence that puts one into a prompt."""

import sys
from dataclasses import asdict

import click
import msgspec

from ..audit import wording
from ..producers.canary import Canary
from ..producers.canary_keys import keys_of
from ..schemas.config import load_config

SCHEMA = "kvtrail.canary/1"
LARGEST = 1 << 20


@click.group()
def canary() -> None:
    """Tenants' markers in cached prefixes. Needs the secrets: canary.keys_file."""


def _canary(tenants: tuple[str, ...]) -> Canary:
    config = load_config().canary
    return Canary(keys_of(config), (*config.tenants, *tenants))


@canary.command()
@click.argument("asked_by")
@click.option("--tenant", "tenants", multiple=True, help="A tenant to recognise, beside canary.tenants; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def whose(asked_by: str, tenants: tuple[str, ...], as_json: bool) -> None:
    """Whose marker the answer on standard input shows, that ASKED_BY was given.

    Exit status: 0 its own, 1 another tenant's, 3 none that can be read, 2 an error.
    """
    result = _canary(tenants).check(asked_by, [sys.stdin.read(LARGEST)])
    if as_json:
        click.echo(msgspec.json.encode({"schema": SCHEMA, **asdict(result)}))
    else:
        shown = wording.name(result.observed) if result.observed else ""
        click.echo(f"{result.result}: {result.detail}" + (f" ({shown})" if result.result == "fail" and shown else ""))
    raise SystemExit({"pass": 0, "fail": 1}.get(result.result, 3))


@canary.command()
@click.argument("tenant")
def sentence(tenant: str) -> None:
    """The sentence for the front of TENANT's prompts: states its marker and asks for it in every answer."""
    click.echo(_canary(()).sentence(tenant))
