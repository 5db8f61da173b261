"""The file format: sealed, aligned, and refused when anything about it is not as written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.cache_node.entry_file import (
    ALIGN,
    EntryHeader,
    SealedHeader,
    Tensor,
    check_payload,
    chunk_digests,
    lay_out,
    payload_digest,
    payload_pieces,
    seal,
    unseal,
)
from kvtrail.cache_node.errors import CorruptEntry
from kvtrail.cache_node.file_engine import BufferedEngine
from kvtrail.schemas.digests import is_digest

from .rig import identity, tensors


def sealed_of(parts: list[Tensor], chunk_bytes: int = ALIGN) -> tuple[SealedHeader, bytes]:
    specs, payload_bytes = lay_out(parts)
    digests = chunk_digests(payload_pieces(parts), chunk_bytes)
    header = EntryHeader(
        key="support_v7:model",
        key_origin="asserted",
        identity=identity().to_wire(),
        tensors=specs,
        tokens=7,
        created_us=1,
        payload_bytes=payload_bytes,
        payload_digest=payload_digest(digests),
        ttl_s=300.0,
    )
    return seal(header, digests, 3, chunk_bytes)


def test_a_header_reads_back_as_it_was_sealed() -> None:
    sealed, raw = sealed_of(tensors("a"))
    assert unseal(raw) == sealed
    assert len(raw) % ALIGN == 0
    assert is_digest(sealed.header.payload_digest)


def test_header_and_every_tensor_start_on_a_page() -> None:
    sealed, _ = sealed_of(tensors("a"))
    assert [spec.offset % ALIGN for spec in sealed.header.tensors] == [0, 0, 0]
    assert sealed.header.payload_bytes % ALIGN == 0
    assert sealed.file_bytes % ALIGN == 0


def test_a_header_may_be_longer_than_a_page() -> None:
    sealed, raw = sealed_of([Tensor(f"layer.{i:03}.keys", "float32", (1, 3, 9, 64), bytes(10)) for i in range(200)])
    assert len(raw) > 2 * ALIGN
    assert unseal(raw) == sealed


@given(position=st.integers(0, 4095), flip=st.integers(1, 255))
def test_no_changed_byte_of_a_header_passes(position: int, flip: int) -> None:
    _, raw = sealed_of(tensors("a"))
    changed = bytearray(raw)
    changed[position % len(raw)] ^= flip
    with pytest.raises(CorruptEntry):
        unseal(bytes(changed))


@given(position=st.integers(0, 4 * 4096 - 1), flip=st.integers(1, 255))
def test_no_changed_byte_of_a_payload_passes(position: int, flip: int) -> None:
    parts = tensors("a")
    sealed, _ = sealed_of(parts)
    payload = bytearray(b"".join(payload_pieces(parts)))
    check_payload(sealed, memoryview(payload))
    payload[position] ^= flip
    with pytest.raises(CorruptEntry, match=f"chunk.{position // ALIGN}"):
        check_payload(sealed, memoryview(payload))


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 64))
def test_chunk_digests_do_not_depend_on_the_pieces(pieces: list[bytes], chunk_bytes: int) -> None:
    whole = b"".join(pieces)
    assert chunk_digests(map(memoryview, pieces), chunk_bytes) == chunk_digests([memoryview(whole)], chunk_bytes)
    assert len(chunk_digests([memoryview(whole)], chunk_bytes)) == -(-len(whole) // chunk_bytes)


@pytest.mark.parametrize("length", [0, 1, 43, 4095, 4096, 8192, 12288])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    engine = BufferedEngine()
    parts = tensors("a")
    sealed, raw = sealed_of(parts)
    path = tmp_path / "entry"
    engine.write(path, raw, payload_pieces(parts))
    assert engine.read_header(path) == sealed
    with path.open("r+b") as stream:
        stream.truncate(length)
    with pytest.raises(CorruptEntry):
        engine.read_header(path)
    with pytest.raises(CorruptEntry):
        engine.read(path)


def test_a_file_of_zeros_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    for content in (bytes(65536), b"GGUF" + bytes(9000), b"KVTRAIL\0" + b"\xff" * 9000):
        path = tmp_path / "entry"
        path.write_bytes(content)
        with pytest.raises(CorruptEntry):
            BufferedEngine().read(path)


def test_an_unknown_format_version_is_refused_by_name() -> None:
    _, raw = sealed_of(tensors("a"))
    with pytest.raises(CorruptEntry, match="version"):
        unseal(raw[:8] + b"\x02\x00" + raw[10:])
