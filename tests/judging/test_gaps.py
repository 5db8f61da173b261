"""A lane's gaps over time are one finding, whose revisions count on."""

from kvtrail.judging.offline import History

from .cases import scenario


def test_a_gap_after_one_that_was_filled_is_a_later_revision() -> None:
    """Were it numbered from 1 again, the retraction of the first would hide the second for ever."""
    lines = "n1:1 create K acme\nn1:3 hit K acme\nn1:2 commit K -\nn1:6 hit K acme"
    history = History()
    said = [
        (found.revision, found.status, found.title)
        for _, record in scenario(lines).steps
        for found in history.take(record)
        if found.cause == "STREAM_GAP"
    ]
    assert said == [
        (1, "open", "1 event(s) missing: 3"),
        (2, "retracted", "1 event(s) missing: 3"),
        (3, "open", "2 event(s) missing: 5-6"),
    ]
