"""Records on disk: numbered files of checksummed frames, written at one end and read at the other.

A frame that was not written whole, or was changed since, is recognised and left out; what it held shows as a gap of
its lane. A file that can take no more is left as it was before the attempt.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct(">4sIIHQQ")
_MAGIC = b"kvS1"
SEGMENT_BYTES = 8 * 1024 * 1024


class Frame(NamedTuple):
    """One record of a lane and what has to be known to send it."""

    home: str
    first: int
    last: int
    record: bytes


class Segments:
    """The files of one folder. `write` and `read` may be used by turns; both see the same frames in the same order."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._limit = segment_bytes
        self._descriptor = -1
        self._number = 0
        self._size = 0
        self.damaged = 0
        """Frames, or ends of files, that could not be read."""

    @property
    def size(self) -> int:
        """How much the files hold."""
        return sum(path.stat().st_size for path in self.files())

    def files(self) -> list[Path]:
        """The files, oldest first."""
        return sorted(self._directory.glob("*.seg"))

    def write(self, frame: Frame) -> int:
        """Append a frame; the bytes it takes. Raises `OSError`, and the frame is not there then."""
        home = frame.home.encode()
        payload = home + frame.record
        head = _HEAD.pack(_MAGIC, len(payload), 0, len(home), frame.first, frame.last)
        check = zlib.crc32(payload, zlib.crc32(head))
        whole = _HEAD.pack(_MAGIC, len(payload), check, len(home), frame.first, frame.last) + payload
        if self._descriptor >= 0 and self._size + len(whole) > self._limit:
            self.close()
        if self._descriptor < 0:
            self._open()
        try:
            written = os.write(self._descriptor, whole)
            if written != len(whole):
                raise OSError(28, "No space left on device")
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(whole)
        return len(whole)

    def read(self, path: Path, offset: int = 0) -> Iterator[tuple[Frame, int]]:
        """The whole frames of a file from `offset`, each with the offset behind it."""
        with path.open("rb") as file:
            file.seek(offset)
            while head := file.read(_HEAD.size):
                frame = self._frame(head, file.read)
                if frame is None:
                    self.damaged += 1
                    return
                yield frame, file.tell()

    def sync(self) -> None:
        """Put what has been written on the disk itself."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Finish the file that is being written; the next frame begins another."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> None:
        self._number += 1
        path = self._directory / f"{self._number:08d}.seg"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = 0

    @staticmethod
    def _frame(head: bytes, read: Callable[[int], bytes]) -> Frame | None:
        if len(head) < _HEAD.size:
            return None
        magic, length, check, names, first, last = _HEAD.unpack(head)
        if magic != _MAGIC or names > length or length > 1 << 30:
            return None
        payload = read(length)
        expected = zlib.crc32(payload, zlib.crc32(_HEAD.pack(magic, length, 0, names, first, last)))
        if len(payload) < length or check != expected:
            return None
        return Frame(payload[:names].decode(), first, last, payload[names:])
