"""`kvtrail lint-key`: what a key expression covers, what it misses, and what that invites. It is never run."""

import sys

import click
import msgspec

from ..judging.keys import Assessment, assess
from ..judging.keys.assessment import Problem
from ..schemas.dimensions import ENTRY_KINDS, EntryKind

SCHEMA = "kvtrail.lint-key/1"


@click.command("lint-key")
@click.argument("expression")
@click.option(
    "--kind", default="kv", show_default=True, type=click.Choice(sorted(ENTRY_KINDS)), help="What the key leads to."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def lint_key(expression: str, kind: EntryKind, as_json: bool) -> None:
    """Say which dimensions a Python key expression covers, and by what.

    EXPRESSION is the right-hand side, in quotes: "f'{template_name}:{model}'". It is read and never run. What its
    variables stand for is told from their names; a name that says nothing is reported as unknown. `-` reads stdin.

    Exit status: 0 every core dimension is covered, 1 one is not or the key can be wrong otherwise, 2 an error.
    """
    text = sys.stdin.read(100_000) if expression == "-" else expression
    assessment = assess(text, kind)
    if as_json:
        document = {"schema": SCHEMA, **msgspec.to_builtins(assessment)}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        for line in _lines(assessment):
            click.echo("".join(letter if letter.isprintable() else "�" for letter in line))
    sys.exit(0 if assessment.ok else 1)


def _lines(assessment: Assessment) -> list[str]:
    width = max(len(one.title) for one in assessment.dimensions)
    lines = [assessment.verdict, ""]
    for one in assessment.dimensions:
        source = f" by {one.source}" if one.source and one.status in ("covered", "settled", "by name only") else ""
        source = f": {one.source}" if one.status in ("by name only", "truncated") else source
        lines.append(f"{one.title:<{width}}  {one.status}{source}".rstrip())
        if one.because:
            lines.append(f"{'':<{width}}  {one.because}{_seen(one.rule, one.case)}")
    if assessment.problems:
        lines += ["", "Also"]
        for problem in assessment.problems:
            lines += _told(problem)
    if assessment.unknown:
        lines += ["", f"Not understood, and not guessed: {', '.join(assessment.unknown)}"]
    if not assessment.ok:
        lines += ["", "A key that cannot leave one out:", "", *assessment.suggestion.splitlines()]
    return lines


def _told(problem: Problem) -> list[str]:
    return [f"  {problem.what}", f"    {problem.because}{_seen(problem.rule, problem.case)}"]


def _seen(rule: str, case: str) -> str:
    if not rule:
        return ""
    return f" [{rule}, case {case}]" if case else f" [{rule}]"
