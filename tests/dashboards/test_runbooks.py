"""Commands that runbooks and READMEs tell somebody to type exist, with the options they name."""

import re
import shlex
from pathlib import Path

import click
import kvtrail
import pytest
from kvtrail.cli.main import COMMANDS
from kvtrail.cli.main import kvtrail as command
from kvtrail.dashboards.integrity import RULES
from kvtrail.schemas.config import Config
from kvtrail.tests.compose.project import SERVICE_NAMES

ROOT = Path(kvtrail.__file__).parent
STARTED_BY_PEOPLE = {"complaint-to-cause.md"}
"""Pages for which no alert rings."""
PAGES = [*sorted((ROOT / "docs" / "runbooks").glob("*.md")), ROOT / "dashboards/README.md", ROOT / "compose/README.md"]


def told(page: Path) -> list[list[str]]:
    """Every `kvtrail ...` in code on the page, as words."""
    text = page.read_text()
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks = [re.sub(r"\s*\\\n\s*", " ", block) for block in blocks]
    lines = [line.split("  #")[0].split(" > ")[0] for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    found = []
    for piece in [*lines, *inline]:
        match = re.search(r"(?:^|serve )kvtrail (.+)$", piece.strip())
        if match:
            found.append(shlex.split(match[1].split("   ")[0]))
    return found


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and the rest."""
    found: click.Command = command
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        inner = found.get_command(click.Context(found), words[0])
        assert inner is not None, f"no command {words[0]}"
        found, words = inner, words[1:]
    return found, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_command_on_the_page_exists_with_its_options(page: Path) -> None:
    commands = [words for words in told(page) if "|" not in words[-1]]
    assert commands
    for words in commands:
        if words[0] not in COMMANDS:
            raise AssertionError(f"{page.name}: kvtrail {words[0]}")
        found, rest = resolve(words)
        known = {name for parameter in found.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= known, f"{page.name}: {words}"


def test_services_named_on_the_pages_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"compose\.yaml (?:exec|logs(?: --tail \d+)?) (\w+)", page.read_text()):
            assert name in SERVICE_NAMES, f"{page.name}: {name}"


def test_settings_named_on_the_pages_exist() -> None:
    known = {
        f"KVTRAIL_{section.upper()}__{field.upper()}"
        for section, value in Config()
        if hasattr(value, "__class__") and hasattr(type(value), "model_fields")
        for field in type(value).model_fields
    }
    for page in PAGES:
        assert set(re.findall(r"KVTRAIL_[A-Z_]+", page.read_text())) <= known, page.name


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    pages = {page.name for page in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert {rule.runbook for rule in RULES} == pages - STARTED_BY_PEOPLE


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
