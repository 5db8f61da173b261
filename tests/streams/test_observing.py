"""Observations as records: in order, whole, and never larger than a broker takes."""

import hashlib

import pytest
from kvtrail.judging.observations import Keyed
from kvtrail.schemas.errors import UndecodableRecord
from kvtrail.streams.fleet_merge import Merge
from kvtrail.streams.observing import AT_ONCE_BYTES, Observed, pack, unpack


def _observed(offset: int, count: int) -> Observed:
    """So many observations of about a kilobyte."""
    return Observed(
        offset,
        offset,
        tuple(
            Keyed(
                event_id=f"node-1/i1/n:node-1/{n}", time_us=n, node="node-1", store="kv", key="k",
                signature="".join(hashlib.sha256(f"{n}/{part}".encode()).hexdigest() for part in range(15)),
            )
            for n in range(count)
        ),
    )  # fmt: skip


def test_many_observations_become_several_records_in_order() -> None:
    """A worker that is behind judges 500 records at once."""
    observed = [_observed(offset, 40) for offset in range(50)]
    records = pack(3, observed)
    assert len(records) > 1
    assert all(len(record) < AT_ONCE_BYTES + 1024 for record in records)
    found = [unpack(record) for record in records]
    assert {each.partition for each in found} == {3}
    assert [one for each in found for one in each.observed] == observed


def test_what_came_of_one_record_comes_in_parts_where_it_is_much() -> None:
    """A record that closes a gap settles all that waited behind it: ten megabytes were seen."""
    before, large, after = _observed(6, 1), _observed(7, 12_000), _observed(8, 1)
    records = pack(0, [before, large, after])
    assert len(records) > 12 and all(len(record) < AT_ONCE_BYTES + 4096 for record in records)
    merge = Merge()
    for record in records:
        merge.take(unpack(record))
    assert [(due[2], due[3]) for due in merge.release(10)] == [
        (each.offset, each.observations) for each in (before, large, after)
    ]


def test_parts_that_were_broken_off_begin_again() -> None:
    large = _observed(7, 1_000)
    records = [unpack(record) for record in pack(0, [large])]
    assert len(records) > 3
    merge = Merge()
    for record in (*records[:2], *records[1:3], *records, *records):
        merge.take(record)
    assert [(due[2], due[3]) for due in merge.release(10)] == [(7, large.observations)]
    assert merge.waiting == 0


def test_nothing_observed_is_no_record() -> None:
    assert pack(0, []) == []


@pytest.mark.parametrize("raw", [b"", b"\x78", b"\x78\x01garbage", b"{}", b"\x93\x00\x90\x02"])
def test_what_holds_no_observations_is_refused(raw: bytes) -> None:
    with pytest.raises(UndecodableRecord):
        unpack(raw)
