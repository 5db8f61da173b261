"""Writes `docs/rules/` from the rules' own words: `python -m kvtrail.cli.rule_pages`; a test holds it to them."""

from pathlib import Path

from ..judging.rules.pages import rule_pages

FOLDER = Path(__file__).parent.parent / "docs" / "rules"


def write(folder: Path = FOLDER) -> None:
    """Make the folder hold exactly the pages of today's rules."""
    pages = rule_pages()
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.md"):
        if stale.name not in pages:
            stale.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write()
