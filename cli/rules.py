"""`kvtrail rules`: what is looked for, why, and whether the rules hold together."""

import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from ..judging.examination import examine
from ..judging.rules import RULES, Rule
from ..judging.rules.registry import FAMILIES
from ..judging.rules.review import review
from ..judging.scenarios import parse_scenario
from ..schemas.errors import InvalidField
from ..schemas.identity import DIMENSIONS

ROOT = Path(__file__).parent.parent
CATALOGUE = ROOT / "tests" / "catalogue"


@click.group()
def rules() -> None:
    """What is looked for, why it matters, and what to do about it."""


@rules.command("list")
@click.option("--family", default="", metavar="NAME", help=f"Only one of: {', '.join(FAMILIES)}.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def list_rules(family: str, as_json: bool) -> None:
    """List the rules by family."""
    if family and family not in FAMILIES:
        raise InvalidField("is no family.", field="--family", remedy=f"Choose of {', '.join(FAMILIES)}.")
    found = [rule for rule in RULES.values() if family in ("", rule.family)]
    if as_json:
        _print({"schema": "kvtrail.rules/1", "rules": [_document(rule) for rule in found]})
        return
    width = max(len(rule.id) for rule in RULES.values())
    for name, what in FAMILIES.items():
        members = [rule for rule in found if rule.family == name]
        if members:
            click.echo(f"{name}: {what}")
            for rule in members:
                click.echo(f"  {rule.id:<{width}}  {rule.severity.value:<8}  {rule.title}")
    click.echo(f"{len(found)} rules. `kvtrail rules show ID` says more.")


@rules.command()
@click.argument("id_", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def show(id_: str, as_json: bool) -> None:
    """Show one rule: why it matters, what to do first, where it was seen, and the cases that hold it."""
    rule = RULES.get(id_.upper().replace("-", "_"))
    if rule is None:
        raise InvalidField("is no rule.", field="ID", remedy="`kvtrail rules list` names them.")
    if as_json:
        _print({"schema": "kvtrail.rule/1", **_document(rule)})
        return
    click.echo(
        f"{rule.id}  ({rule.family}, {rule.severity.value} or louder)\n{rule.title}\n\n{rule.why}\n\nFirst steps"
    )
    for number, step in enumerate(rule.first_steps, 1):
        click.echo(f"  {number}. {step}")
    for title, values in (
        ("Dimensions", [f"{name} ({DIMENSIONS[name].title})" for name in _dimensions(rule)]),
        ("Found in", rule.positive),
        ("Silent in", rule.negative),
        ("Seen in public", rule.references),
    ):
        if values:
            click.echo(f"\n{title}")
            for value in values:
                click.echo(f"  {value}")


@rules.command()
@click.argument("catalogue", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
def lint(catalogue: Path | None) -> None:
    """Check that each rule has its words, a case in which it speaks and a look-alike in which it is silent.

    CATALOGUE is a folder of scenario files; the project's own when left out. Every case in it is judged too. Exit
    status 1 when something is wrong.
    """
    folder = catalogue or CATALOGUE
    if not folder.is_dir():
        raise InvalidField("is not installed with the package.", field="CATALOGUE", remedy="Name the folder of cases.")
    documents = _documents(folder)
    problems = review(RULES, documents, _test_exists)
    for name, document in documents.items():
        problems += [f"case {name}: {wrong}" for wrong in examine(parse_scenario(document, name)).wrong]
    for problem in problems:
        click.echo(problem)
    click.echo(f"{len(RULES)} rules, {len(documents)} cases: {len(problems)} problem(s)")
    sys.exit(1 if problems else 0)


def _documents(folder: Path) -> dict[str, dict[str, Any]]:
    import yaml  # not part of the base installation

    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            document = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise InvalidField(f"is not YAML ({type(error).__name__}).", field=path.name, remedy="Mend it.") from None
        if not isinstance(document, dict):
            raise InvalidField("is no scenario.", field=path.name, remedy="See tests/catalogue/FORMAT.md.")
        found[path.stem] = document
    return found


def _test_exists(case: str) -> bool:
    file, _, name = case.partition("::")
    path = ROOT / file
    return path.is_file() and re.search(rf"^def {re.escape(name)}\b", path.read_text(), re.MULTILINE) is not None


def _dimensions(rule: Rule) -> list[str]:
    return [name for name, declared in DIMENSIONS.items() if declared.cause == rule.id]


def _document(rule: Rule) -> dict[str, Any]:
    return {**msgspec.to_builtins(rule), "dimensions": _dimensions(rule)}


def _print(document: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
