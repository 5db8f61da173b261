"""Documentation that a machine can check: links lead somewhere, commands exist, decisions and guarantees have form."""

import re
from pathlib import Path

import pytest
from kvtrail.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in ("build", "node_modules") for part in path.relative_to(ROOT).parts)
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
AWAITED: set[str] = set()
"""Named before they are written. Take out what has come; at a release nothing is left here."""
TEST_ID = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?")


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(FENCE.sub("", page.read_text()))
    leads = {(page.parent / each).resolve() for each in targets if "://" not in each}
    assert not {str(each.relative_to(ROOT)) for each in leads if not each.exists()} - AWAITED


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_targets_exist(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    code = "\n".join([*re.findall(r"`([^`\n]+)`", text), *FENCE.findall(text)])
    assert set(re.findall(r"\bkvtrail ([a-z]+(?:-[a-z]+)*)\b", code)) <= COMMANDS.keys()
    assert set(re.findall(r"^(?:\$ )?make ([a-z-]+)\b", code, re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_tests_that_are_named_exist(page: Path) -> None:
    for file, name in TEST_ID.findall(page.read_text()):
        assert (ROOT / file).exists(), file
        assert not name or re.search(rf"def {name}\b", (ROOT / file).read_text()), f"{file}::{name}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=page_id)
def test_a_decision_says_its_choice_and_consequence(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"\d{4}-[a-z0-9-]+\.md$", page.name)
    assert re.match(rf"# {page.name[:4]}[:.]? [A-Z]", text)
    assert "Choice" in text
    assert "Consequence" in text


def test_decisions_have_numbers_of_their_own() -> None:
    numbers = [page.name[:4] for page in (ROOT / "docs" / "decisions").glob("*.md")]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("room", sorted(each.parent for each in ROOT.glob("*/__init__.py")), ids=page_id)
def test_every_room_has_its_page(room: Path) -> None:
    page = room / "README.md"
    assert room.name == "tests" or page.exists() or page_id(page) in AWAITED


def test_make_has_few_targets() -> None:
    targets = re.findall(r"^[a-z-]+:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) < 15
