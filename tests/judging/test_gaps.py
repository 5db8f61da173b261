"""A lane's gaps over time are one finding, whose revisions count on."""

import msgspec
from kvtrail.judging.offline import History, judge_history
from kvtrail.judging.revisions import Revisions
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Event

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


def test_one_record_is_one_change() -> None:
    """A record that arrives behind its successor fills a gap number by number: nobody wants to be told each step."""
    lines = "\n".join(["n1:1 create K acme", *(f"n1:{seq} hit K acme" for seq in range(2, 42))])
    events = [record for _, record in scenario(lines).steps if isinstance(record, Event)]
    encoder, decoder = EnvelopeEncoder(), EnvelopeDecoder()
    history = History()
    said = [
        [found for found in history.take(decoder.decode(encoder.encode(part))) if found.cause == "STREAM_GAP"]
        for part in (events[:2], events[32:], events[2:22], events[22:32])
    ]
    assert [[found.status for found in step] for step in said] == [[], ["open"], ["open"], ["retracted"]]
    assert [step[0].title.partition(" ")[0] for step in said[1:3]] == ["30", "10"]
    numbers = [step[0].revision for step in said[1:]]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 31


def test_a_retraction_never_comes_without_the_opening() -> None:
    """What counts findings would take one away that it never added."""
    revisions = Revisions()
    finding = judge_history([record for _, record in scenario("n1:1 create K acme\nn1:3 hit K acme").steps])[0]
    revisions.put(finding.id, finding)
    revisions.put(finding.id, msgspec.structs.replace(finding, title="another"))
    revisions.put(finding.id, None, "explained")
    assert [(each.revision, each.status) for each in revisions.drain()] == [(1, "open"), (3, "retracted")]
    assert revisions.drain() == []
