"""The rules as pages: what `docs/rules/` holds, and `kvtrail rules show` prints in short."""

from collections.abc import Iterable

from ...schemas.identity import DIMENSIONS
from .registry import FAMILIES, RULES, Rule

_CATALOGUE = "../../tests/catalogue/"
_TESTS = "../../"


def rule_pages() -> dict[str, str]:
    """File name -> its text: one page a rule, and the index."""
    return {"README.md": _index(), **{f"{rule.id}.md": _page(rule) for rule in RULES.values()}}


def _index() -> str:
    lines = [
        "# Rules",
        "",
        "Every cause that a finding can name, generated from the rules themselves. Severities are the base: conditions",
        "only raise them, and whatever lets content of another isolation domain reach a requester is critical.",
    ]
    for family, what in FAMILIES.items():
        lines += ["", f"## {family.capitalize()}", "", what, "", "| rule | base | what it finds |", "|---|---|---|"]
        rules = [rule for rule in RULES.values() if rule.family == family]
        lines += [f"| [{rule.id}]({rule.id}.md) | {rule.severity} | {rule.title} |" for rule in rules]
    return "\n".join(lines) + "\n"


def _page(rule: Rule) -> str:
    lines = [f"# {rule.id}", "", f"**{rule.title}.** Family: {rule.family}. Base severity: {rule.severity}."]
    lines += ["", "## Why it matters", "", rule.why, "", "## First steps", ""]
    lines += [f"{number}. {step}" for number, step in enumerate(rule.first_steps, 1)]
    dimensions = [(name, declared) for name, declared in DIMENSIONS.items() if declared.cause == rule.id]
    if dimensions:
        lines += ["", "## Dimensions", "", "| dimension | base | may it differ legitimately? |", "|---|---|---|"]
        lines += [f"| `{name}` ({each.title}) | {each.severity} | {each.may_differ} |" for name, each in dimensions]
    lines += ["", "## Cases", "", f"Found in: {_cases(rule.positive)}.", ""]
    lines += [f"Silent, where a careless rule would speak: {_cases(rule.negative)}."]
    if rule.references:
        lines += ["", "## Seen in public", "", *(f"* <{reference}>" for reference in rule.references)]
    lines += ["", "[All rules](README.md)"]
    return "\n".join(lines) + "\n"


def _cases(cases: Iterable[str]) -> str:
    return ", ".join(map(_case, cases))


def _case(case: str) -> str:
    if "::" in case:
        file, _, name = case.partition("::")
        return f"[`{name}`]({_TESTS}{file})"
    name, _, at = case.partition("@")
    return f"[{name}]({_CATALOGUE}{name}.yaml)" + (f" (event `{at}`)" if at else "")
