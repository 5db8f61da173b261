"""How an entry's bytes reach the disk and come back.

This engine goes through the page cache, with plain `pwrite` and `pread`; the seam (`FileEngine`) is where one with
O_DIRECT, a huge-page pool and parallel chunks takes its place. Header and payload are 4 KiB-aligned for that reason.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from .entry_file import ALIGN, SealedHeader, header_length, unseal
from .errors import CorruptEntry

WRITE_BYTES = 1024 * 1024


class FileEngine(Protocol):
    """Bytes to disk and back. Both operations raise `OSError` as the system says it."""

    def write(self, path: Path, header: bytes, payload: Iterable[memoryview]) -> None:
        """A new file that is on the disk, whole, when this returns."""

    def read_header(self, path: Path) -> SealedHeader:
        """The header, its seal and the file's length checked. Raises `CorruptEntry`."""

    def read(self, path: Path) -> tuple[SealedHeader, memoryview]:
        """Header and payload of one file, opened once. Raises `CorruptEntry`. The memory is the caller's."""


class BufferedEngine:
    """The plain engine: page cache, `fdatasync`, one thread an operation."""

    def write(self, path: Path, header: bytes, payload: Iterable[memoryview]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            offset = len(header)
            for piece in payload:
                offset = _write(descriptor, piece, offset)
            # The header comes last: a file that was torn before this point has no magic.
            _write(descriptor, memoryview(header), 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def read_header(self, path: Path) -> SealedHeader:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _header(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: Path) -> tuple[SealedHeader, memoryview]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sealed = _header(descriptor)
            payload = memoryview(bytearray(sealed.header.payload_bytes))
            _read(descriptor, payload, sealed.header_bytes)
            return sealed, payload
        finally:
            os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Makes renames and removals in `path` survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _header(descriptor: int) -> SealedHeader:
    start = os.pread(descriptor, ALIGN, 0)
    size = header_length(start)
    sealed = unseal(start if size <= len(start) else start + os.pread(descriptor, size - len(start), len(start)))
    if os.fstat(descriptor).st_size != sealed.file_bytes:
        raise CorruptEntry(
            "has a length that is not the one its header announces.",
            field="file_bytes",
            remedy="It is set aside, never served; the prefix is computed again.",
        )
    return sealed


def _write(descriptor: int, piece: memoryview, offset: int) -> int:
    # A full disk first shows as a short write, then as ENOSPC.
    while piece.nbytes:
        written = os.pwrite(descriptor, piece[:WRITE_BYTES], offset)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        piece = piece[written:]
        offset += written
    return offset


def _read(descriptor: int, into: memoryview, offset: int) -> None:
    while into.nbytes:
        count = os.preadv(descriptor, [into], offset)
        if count == 0:
            raise CorruptEntry("ends inside its payload.", field="file_bytes", remedy="It is set aside, never served.")
        into = into[count:]
        offset += count
