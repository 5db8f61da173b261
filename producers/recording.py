"""A transport into a file: one envelope a line, which `kvtrail judge FILE` reads."""

import asyncio
import os
from pathlib import Path
from typing import Self

from .transport import TransportError


class RecordingTransport:
    """Appends records to a JSON Lines file. A line is there whole or not at all, so that a full disk cannot tear one.

    Several processes may append to one file: each line is one write at its end.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None

    async def start(self) -> None:
        """Open the file, and its folder if need be. Raises `TransportError`."""
        self._open()

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        """Append one line. Raises `TransportError` when the file cannot take it; the file is then as before."""
        descriptor = self._open()
        line = record + b"\n"
        try:
            written = os.write(descriptor, line)
        except OSError as error:
            raise self._error("written", error) from error
        if written != len(line):
            size = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, size - written)
            raise TransportError("has no room.", reason="disk_full", field=str(self.path), remedy="Free some disk.")
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """Put the file on disk and close it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise self._error("synced", error) from error
            finally:
                os.close(descriptor)

    def fresh(self) -> Self:
        """Another descriptor on the same file."""
        return type(self)(self.path)

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            except OSError as error:
                raise self._error("opened", error) from error
        return self._descriptor

    def _error(self, what: str, error: OSError) -> TransportError:
        return TransportError(
            f"cannot be {what} ({error.strerror}).", reason="file", field=str(self.path), remedy="Check path and room."
        )
