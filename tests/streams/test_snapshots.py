"""The snapshot codec: whole or not at all, and never mixed from two."""

import hashlib
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.streams.snapshots import BLOB_BYTES, SnapshotUnusable, Unpacker, manifest_of, pack


def _pack(state: bytes, name: str, next_offset: int = 7) -> list[tuple[bytes, bytes]]:
    return pack(state, partition=3, next_offset=next_offset, last_append_us=9, writer="w", manifest_id=name)


def _unpack(records: list[tuple[bytes, bytes]]) -> Unpacker:
    unpacker = Unpacker(3)
    for key, value in records:
        unpacker.add(key, value)
    return unpacker


@settings(max_examples=30)
@given(st.binary(max_size=4000))
def test_a_state_comes_back_as_it_was(state: bytes) -> None:
    snapshot = _unpack(_pack(state, "m")).snapshot()
    assert snapshot is not None
    assert snapshot.state == state
    assert (snapshot.manifest.next, snapshot.manifest.last_append_us, snapshot.manifest.partition) == (7, 9, 3)


def test_blobs_stay_below_their_limit_and_the_manifest_is_last() -> None:
    state = random.Random(1).randbytes(3 * BLOB_BYTES)
    records = _pack(state, "m")
    assert len(records) == 5
    assert all(len(value) <= BLOB_BYTES for _, value in records)
    assert manifest_of(records).blobs == 4
    assert [key for key, _ in records][-1] == b"3/manifest"
    snapshot = _unpack(records).snapshot()
    assert snapshot is not None
    assert snapshot.state == state


def test_no_snapshot_is_none() -> None:
    assert Unpacker(3).snapshot() is None


def test_blobs_without_their_manifest_change_nothing() -> None:
    unpacker = _unpack([*_pack(b"old", "a"), *_pack(b"new", "b")[:-1]])
    snapshot = unpacker.snapshot()
    assert snapshot is not None
    assert snapshot.state == b"old"
    assert len(unpacker.blobs()) == 2


def test_interleaved_writers_do_not_mix() -> None:
    first, second = _pack(b"first", "a", 5), _pack(b"second", "b", 6)
    snapshot = _unpack([first[0], second[0], second[1], first[1]]).snapshot()
    assert snapshot is not None
    assert (snapshot.state, snapshot.manifest.next) == (b"first", 5)


def test_a_manifest_whose_blobs_a_successor_removed_gives_way_to_the_one_before() -> None:
    first, late = _pack(b"whole", "a", 9), _pack(b"late", "b", 4)
    snapshot = _unpack([*first, late[0], (late[0][0], b""), late[1]]).snapshot()
    assert snapshot is not None
    assert (snapshot.state, snapshot.manifest.next) == (b"whole", 9)


def test_damaged_blobs_are_an_error_that_says_what_to_do() -> None:
    records = _pack(b"state", "a")
    with pytest.raises(SnapshotUnusable, match="missing or damaged") as caught:
        _unpack([(records[0][0], records[0][1][:-1] + b"\0"), records[1]]).snapshot()
    assert caught.value.field == "kvtrail.state/3"
    assert "kvtrail.lifecycle" in caught.value.remedy


def test_an_unknown_format_is_an_error() -> None:
    (key, value) = _pack(b"state", "a")[-1]
    with pytest.raises(SnapshotUnusable, match="format"):
        _unpack([(key, value.replace(b'"format":2', b'"format":3'))]).snapshot()


def test_what_an_older_build_saved_is_read() -> None:
    """Byte for byte as format 1 was written."""
    packed = zlib.compress(b"state", 1)
    manifest = (
        b'{"id":"old","partition":3,"next":7,"last_append_us":9,"blobs":1,"bytes":%d,"sha256":"%s","writer":"w",'
        b'"unjudged":[],"format":1}' % (len(packed), hashlib.sha256(packed).hexdigest().encode())
    )
    snapshot = _unpack([(b"3/blob/old/0", packed), (b"3/manifest", manifest)]).snapshot()
    assert snapshot is not None and snapshot.state == b"state"


def test_a_removed_manifest_is_no_snapshot() -> None:
    assert _unpack([*_pack(b"state", "a"), (b"3/manifest", b"")]).snapshot() is None
