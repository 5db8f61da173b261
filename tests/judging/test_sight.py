"""What sources can reveal: never more than the judges would find, and in words that say what to add."""

from pathlib import Path

import pytest
import yaml
from kvtrail.judging.offline import History
from kvtrail.judging.rules import RULES
from kvtrail.judging.rules.needs import NEEDS, TELLS
from kvtrail.judging.scenarios import parse_scenario
from kvtrail.judging.sight import BY_NAME, IDLE, INVISIBLE, PARTLY, VISIBLE, Sight, Tally, Told, counted, look, say
from kvtrail.schemas.events import Event
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.identity import DIMENSIONS

CATALOGUE = sorted((Path(__file__).parents[1] / "catalogue").glob("*.yaml"))
ALL = ["tenant_id", "weights_digest", "template_digest", "token_ids_digest"]


def sight_of(path: Path) -> tuple[Sight, set[str]]:
    """What the sources of a catalogue case can reveal, and what was found in it."""
    case = parse_scenario(yaml.safe_load(path.read_text()), path.stem)
    history, tally = History(case.settings), Tally()
    for _, record in case.steps:
        history.take(record)
        if isinstance(record, Fact):
            tally.fact(record)
        else:
            assert isinstance(record, Event)
            tally.event(record)
    history.finish()
    stats = history.judge.stats()
    compared, both = stats["compared"], stats["coverage"]
    assert isinstance(compared, int) and isinstance(both, dict)
    tally.told.compared, tally.told.both = compared, both
    return look(tally.told), {finding.cause for finding in history.final.values()}


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
def test_what_was_found_is_never_called_invisible(path: Path) -> None:
    sight, found = sight_of(path)
    status = {one.rule: one.status for one in sight.rules}
    assert {cause: status[cause] for cause in found if status[cause] in (INVISIBLE, IDLE)} == {}


def told(**changed: int) -> Told:
    known = dict.fromkeys(ALL, 10)
    return counted({"hit": 10, "create": 10}, [(n, changed.get(n, 10), 10) for n in known], {})


def status(sight: Sight, rule: str) -> str:
    return next(one.status for one in sight.rules if one.rule == rule)


def test_a_dimension_that_nobody_sends_is_named_with_who_would_and_what_it_hides() -> None:
    assert status(look(told()), "TEMPLATE_MISMATCH") == VISIBLE
    sight = look(told(template_digest=0))
    assert status(sight, "TEMPLATE_MISMATCH") == INVISIBLE and "TEMPLATE_MISMATCH" in sight.invisible
    assert "Your gateway sends no template digest: TEMPLATE_MISMATCH is invisible." in sight.sentences
    assert sight.summary.startswith(f"{len(sight.invisible)} of {len(RULES)} kinds of failure are invisible")
    assert not sight.exact


def test_what_is_sent_for_some_is_visible_in_part() -> None:
    sight = look(told(template_digest=4))
    assert status(sight, "TEMPLATE_MISMATCH") == PARTLY
    assert {one.dimension: one.share for one in sight.dimensions}["template_digest"] == 0.4


def test_a_name_alone_is_said_to_be_one() -> None:
    sight = look(counted({"hit": 1, "create": 1}, [("model_id", 1, 1)], {}))
    assert status(sight, "WEIGHTS_MISMATCH") == BY_NAME
    assert any("only a name, no weights" in sentence for sentence in sight.sentences)


def test_resolutions_count_for_hits() -> None:
    sight = look(counted({"hit": 10, "create": 10}, [("template_digest", 0, 10)], {"template_digest": 10}))
    assert status(sight, "TEMPLATE_MISMATCH") == VISIBLE


def test_without_anything_nothing_is_visible() -> None:
    sight = look(Told(tells={}, known_hits={}, known_creates={}))
    assert VISIBLE not in {one.status for one in sight.rules}


def test_every_rule_says_what_it_needs_and_every_need_can_be_said() -> None:
    assert NEEDS.keys() == RULES.keys()
    for needs in NEEDS.values():
        for need in needs:
            for one in (each.removeprefix("?") for each in need):
                assert one.startswith(("f:", "k:")) or one in TELLS or one[2:] in DIMENSIONS
                assert say(one)
