"""Every case of the catalogue, through the judging core."""

from pathlib import Path

import pytest
import yaml
from kvtrail.judging.examination import examine
from kvtrail.judging.scenarios import parse_scenario

HERE = Path(__file__).parent
NOT_YET: dict[str, str] = {}
"""Cases that are not right yet, with the reason. A case here that is right fails, so the list cannot go stale."""


@pytest.mark.parametrize("path", sorted(HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    result = examine(parse_scenario(yaml.safe_load(path.read_text()), path.stem))
    if path.stem in NOT_YET:
        assert result.wrong, f"{path.stem} is right now: take it off the list"
    else:
        assert result.wrong == ()


def test_the_catalogue_is_here() -> None:
    assert len(list(HERE.glob("*.yaml"))) >= 40
