"""The snapshot codec: a judge's state as compressed blobs of at most 512 KiB and one manifest. Pure.

Records on `kvtrail.state`, in the partition of the input they belong to. The manifest comes last, so a snapshot
without one never happened; its key is the partition's only manifest key, so the newest replaces the older ones.
Blob keys carry the manifest's id, and a restore ignores blobs of any other manifest: two workers that both believe
they own a partition can interleave their snapshots without mixing them.
"""

import hashlib
import uuid
import zlib
from collections.abc import Callable, Iterable

import cramjam
import msgspec
from msgspec import Struct

from ..schemas.errors import BrokerError

BLOB_BYTES = 512 * 1024
FORMAT = 2
"""Zstandard; 1 was zlib, which took five times as long for half as much again. Both are read."""


class SnapshotUnusable(BrokerError):
    """What was saved cannot be read back: incomplete, damaged, or another build's."""

    code = "snapshot_unusable"


class Manifest(Struct, frozen=True, kw_only=True):
    """`next` is the offset the fold goes on from; `last_append_us` is the append time of the record before it;
    `unjudged` are the newest records before it that were left out."""

    id: str
    partition: int
    next: int
    last_append_us: int
    blobs: int
    bytes: int
    sha256: str
    writer: str = ""
    unjudged: tuple[int, ...] = ()
    format: int = 1


class Pointer(Struct, frozen=True, kw_only=True):
    """Written after everything else of a snapshot: the offset of its first record, so that a restore need not read
    what it replaced. Only a hint: without it, or where it leads nowhere, the whole partition is read."""

    first: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """A complete snapshot: its manifest and the state's bytes."""

    manifest: Manifest
    state: bytes


_encode = msgspec.json.Encoder().encode
_manifest = msgspec.json.Decoder(Manifest)
_pointer = msgspec.json.Decoder(Pointer)


def manifest_key(partition: int, owner: str = "") -> bytes:
    """The key of the partition's manifest on `kvtrail.state`. `owner`: whose state, empty for the detector's."""
    return f"{owner}{partition}/manifest".encode()


def blob_key(partition: int, manifest: str, index: int, owner: str = "") -> bytes:
    """The key of one blob of one manifest."""
    return f"{owner}{partition}/blob/{manifest}/{index}".encode()


def pointer_key(partition: int, owner: str = "") -> bytes:
    """The key of the partition's pointer."""
    return f"{owner}{partition}/pointer".encode()


def pointer(partition: int, first: int, owner: str = "") -> tuple[bytes, bytes]:
    """The record that points to a snapshot whose first record has the offset `first`."""
    return pointer_key(partition, owner), _encode(Pointer(first=first))


def pointed(value: bytes) -> int:
    """The offset in a pointer's value."""
    return _pointer.decode(value).first


def pack(
    state: bytes,
    *,
    partition: int,
    next_offset: int,
    last_append_us: int,
    writer: str,
    manifest_id: str = "",
    owner: str = "",
    unjudged: tuple[int, ...] = (),
) -> list[tuple[bytes, bytes]]:
    """The records of a snapshot, in the order in which they must be written."""
    packed = bytes(cramjam.zstd.compress(state, 1))
    blobs = [packed[start : start + BLOB_BYTES] for start in range(0, len(packed), BLOB_BYTES)]
    manifest = Manifest(
        id=manifest_id or uuid.uuid4().hex,
        partition=partition,
        next=next_offset,
        last_append_us=last_append_us,
        blobs=len(blobs),
        bytes=len(packed),
        sha256=hashlib.sha256(packed).hexdigest(),
        writer=writer,
        unjudged=unjudged,
        format=FORMAT,
    )
    records = [(blob_key(partition, manifest.id, index, owner), blob) for index, blob in enumerate(blobs)]
    return [*records, (manifest_key(partition, owner), _encode(manifest))]


def manifest_of(records: Iterable[tuple[bytes, bytes]]) -> Manifest:
    """The manifest among the records that `pack` returned."""
    return _manifest.decode([*records][-1][1])


def _unzstd(packed: bytes) -> bytes:
    return bytes(cramjam.zstd.decompress(packed))


_OPENED: dict[int, Callable[[bytes], bytes]] = {1: zlib.decompress, FORMAT: _unzstd}


class Unpacker:
    """Takes the state topic's records of one partition, oldest first, and gives the snapshot of `owner` they end in.
    What others keep in the partition is passed over."""

    def __init__(self, partition: int, owner: str = "") -> None:
        self._partition, self._owner = partition, owner
        self._manifests: list[Manifest] = []
        self._blobs: dict[bytes, bytes] = {}

    def add(self, key: bytes, value: bytes) -> None:
        """One record; an empty value is a tombstone."""
        if not key.startswith(f"{self._owner}{self._partition}/".encode()):
            return
        if key == pointer_key(self._partition, self._owner):
            return
        if key == manifest_key(self._partition, self._owner):
            if value:
                self._manifests.append(_manifest.decode(value))
            else:
                self._manifests.clear()
        elif value:
            self._blobs[key] = value
        else:
            self._blobs.pop(key, None)

    def snapshot(self) -> Snapshot | None:
        """The newest whole snapshot, None where there never was one.

        A worker that was suspended while it wrote one can leave a manifest whose blobs its successor has removed;
        the one before it is then taken. Raises `SnapshotUnusable` where none is whole or known to this build.
        """
        for manifest in reversed(self._manifests):
            if manifest.format not in _OPENED:
                raise SnapshotUnusable(
                    "holds a snapshot of a format this build does not know.",
                    field=f"kvtrail.state/{self._partition}",
                    remedy="Run the build that wrote it, or upgrade this one.",
                )
            keys = [blob_key(self._partition, manifest.id, index, self._owner) for index in range(manifest.blobs)]
            packed = b"".join(self._blobs.get(key, b"") for key in keys)
            if len(packed) == manifest.bytes and hashlib.sha256(packed).hexdigest() == manifest.sha256:
                return Snapshot(manifest=manifest, state=_OPENED[manifest.format](packed))
        if self._manifests:
            raise SnapshotUnusable(
                "holds manifests whose blobs are missing or damaged.",
                field=f"kvtrail.state/{self._partition}",
                remedy="Delete the partition's manifest to rebuild its state from kvtrail.lifecycle.",
            )
        return None

    def blobs(self) -> list[bytes]:
        """Keys of all blobs that are there: what the next snapshot replaces."""
        return [*self._blobs]
