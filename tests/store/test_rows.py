"""Rows: golden for one example of each event type, and without loss for anything the schemas allow."""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Event
from kvtrail.store.client import Client, connect
from kvtrail.store.queries import EVENTS_BY_ID, RECORD
from kvtrail.store.results import StoredEvent
from kvtrail.store.rows import LANDING_COLUMNS, Record, Source, record_rows

from ..schemas.strategies import runs
from .samples import NONSENSE, decoded, example_events, record, refused_record

GOLDEN = Path(__file__).parent / "golden_rows.json"


def as_rows(records: list[Record]) -> list[dict[str, Any]]:
    """Rows without what says nothing, for reading: `raw` as text, digests as hex."""
    columns = record_rows(records).columns
    rows = []
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        row["raw"], row["sha256"] = row["raw"].decode(), row["sha256"].hex().replace("00" * 32, "")
        rows.append({name: value for name, value in row.items() if value not in ("", 0, None, {})})
    return rows


def test_golden_rows_of_one_example_of_each_type() -> None:
    """Regenerate with `python -m kvtrail.tests.store.test_rows` after a wanted change, and read the difference."""
    assert as_rows([record(example_events(), 7)]) == json.loads(GOLDEN.read_text())


def test_a_record_without_events_is_a_row_too() -> None:
    (row,) = as_rows([Record(Source("t", 1, 2, 3), b"{", EnvelopeDecoder().decode(b"{"))])
    assert row == {
        "record": 1, "k_topic": "t", "k_partition": 1, "k_offset": 2, "append_time": 3, "raw": "{", "n_rejects": 1,
        "sha256": hashlib.sha256(b"{").hexdigest(),
    }  # fmt: skip
    rows = record_rows([])
    assert rows.size == 0
    assert list(rows.columns) == list(LANDING_COLUMNS)


def test_dropped_events_leave_their_record() -> None:
    whole = record(example_events(), 0)
    rows = as_rows([Record(whole.source, whole.raw, whole.batch, frozenset({1, 2, 10}))])
    assert [row.get("seq") for row in rows] == [None, 3, 4, 5, 6, 7, 8, 9]
    assert [row.get("k_index", 0) for row in rows] == [0, 2, 3, 4, 5, 6, 7, 8], "an index is a place in the record"
    assert (rows[0]["n_events"], rows[0]["first_seq"], rows[0]["last_seq"]) == (7, 1, 10)


@pytest.fixture(scope="module")
def client(engine: ClickHouseConfig) -> Any:
    """A client of one migrated database for the whole module: every example lands at its own offset."""
    from kvtrail.schemas.config import Config
    from kvtrail.store.migrate import migrate

    with connect(engine, database="t_rows") as client:
        migrate(client, Config())
        yield client
        client.command("DROP DATABASE t_rows SYNC", in_database=False)


_offsets = itertools.count()


@pytest.mark.engine
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(events=runs())
def test_whatever_is_stored_comes_back_equal(client: Client, events: list[Event]) -> None:
    offset = next(_offsets)
    stored = record(events, offset, append_us=1_800_000_000_000_000 + offset)
    assert not stored.batch.rejects
    client.insert(*record_rows([stored]), token=f"rows/{offset}")
    found = EVENTS_BY_ID.run(client, ids=[event.id for event in events])
    mine = sorted((row for row in found if row.offset == offset), key=lambda row: row.index)
    assert mine == [
        StoredEvent(event, "kvtrail.lifecycle", 0, offset, index, stored.source.append_us, mine[index].inserted_us)
        for index, event in enumerate(events)
    ]
    (evidence,) = RECORD.run(client, topic="kvtrail.lifecycle", partition=0, offset=offset)
    assert decoded(evidence.raw_base64) == stored.raw
    assert evidence.sha256 == hashlib.sha256(stored.raw).hexdigest()


@pytest.mark.engine
def test_wild_clocks_do_not_scatter_or_expire_an_insert(client: Client) -> None:
    """Event times from the year 1700 to far beyond what a date can say: one insert, nothing lost, one partition."""
    from msgspec.structs import replace

    hit = example_events()[3]
    ancient = [-(2**60), -8_520_336_000_000_000, 0, 1, 2**60]
    times = ancient + [n * 40 * 86_400_000_000 for n in range(200)]
    events = [
        replace(hit, incarnation="wild", seq=n + 1, time_us=time_us, request_id=f"wild-{n}")
        for n, time_us in enumerate(times)
    ]
    stored = record(events, next(_offsets), append_us=1_800_000_000_000_000)
    assert not stored.batch.rejects
    client.insert(*record_rows([stored]), token="wild")
    found = EVENTS_BY_ID.run(client, ids=[event.id for event in events])
    assert sorted((row.event for row in found), key=lambda event: event.seq) == events
    client.command("OPTIMIZE TABLE events FINAL")
    assert len(EVENTS_BY_ID.run(client, ids=[event.id for event in events])) == len(events)


@pytest.mark.engine
def test_undecodable_bytes_are_kept_exactly(client: Client) -> None:
    offset = next(_offsets)
    raw = bytes(range(256)) + NONSENSE
    client.insert(*record_rows([refused_record(offset, 1_800_000_000_000_000, raw)]), token="undecodable")
    (evidence,) = RECORD.run(client, topic="kvtrail.lifecycle", partition=0, offset=offset)
    assert decoded(evidence.raw_base64) == raw


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(as_rows([record(example_events(), 7)]), indent=1, ensure_ascii=False) + "\n")
