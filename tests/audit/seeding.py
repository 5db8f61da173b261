"""Events and findings put into a store the way the sink does."""

from collections.abc import Sequence
from itertools import groupby

from kvtrail.schemas.dead_letters import DeadLetter
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Event
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.topics import DEAD_LETTER, FINDINGS, LIFECYCLE
from kvtrail.store.client import Client
from kvtrail.store.rows import Record, Source, dead_letter_rows, finding_rows, record_rows


def put(
    client: Client,
    events: Sequence[Event] = (),
    findings: Sequence[Finding] = (),
    letters: Sequence[DeadLetter] = (),
    *,
    offset: int = 0,
) -> None:
    """Insert everything; another call needs another `offset`. Events are packed by lane, in contiguous runs."""
    encoder = EnvelopeEncoder()
    records: list[Record] = []
    for run in _runs(events):
        raw = encoder.encode(run)
        batch = EnvelopeDecoder().decode(raw)
        assert not batch.rejects, batch.rejects
        append_us = max(event.time_us for event in run) + 1500
        records.append(Record(Source(LIFECYCLE, 0, offset + len(records), append_us), raw, batch))
    if records:
        client.insert(*record_rows(records), token=f"{LIFECYCLE}/0/{offset}-{offset + len(records) - 1}")
    if findings:
        rows = [(Source(FINDINGS, 0, offset + n, one.event_time_us), one) for n, one in enumerate(findings)]
        client.insert(*finding_rows(rows), token=f"{FINDINGS}/0/{offset}-{offset + len(rows) - 1}")
    if letters:
        kept = [(Source(DEAD_LETTER, 0, offset + n, one.at_us), one) for n, one in enumerate(letters)]
        client.insert(*dead_letter_rows(kept), token=f"{DEAD_LETTER}/0/{offset}-{offset + len(kept) - 1}")


def _runs(events: Sequence[Event]) -> list[list[Event]]:
    ordered = sorted(events, key=lambda event: (event.node, event.incarnation, event.home, event.seq))
    numbered = enumerate(ordered)
    return [
        [event for _, event in run]
        for _, run in groupby(
            numbered, key=lambda pair: (pair[1].node, pair[1].incarnation, pair[1].home, pair[1].seq - pair[0])
        )
    ]
