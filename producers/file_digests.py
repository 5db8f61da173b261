"""Digests of large files by their content, computed once for as long as a file stays the same.

Same is: real path, device, inode, size, and times of modification and change to the nanosecond. A file's name says
nothing, nor does a blob's name that looks like a digest.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from ..schemas.errors import InvalidField

SETTLED_NS = 2_000_000_000
"""How old a file must be for its times to prove anything: below that, a change may leave them as they are."""
_VERSION = 1


class FileDigests:
    """SHA-256 of files. `cache`: where digests are kept between starts, readable and writable by this user only; a
    cache that cannot be read or written costs time and nothing else. `read` counts the files that were read whole."""

    def __init__(self, cache: Path | None = None) -> None:
        self.read = 0
        self._cache = cache
        self._lock = threading.Lock()
        self._known: dict[str, list[Any]] = self._loaded()

    def digest(self, path: Path, *, field: str = "weights") -> str:
        """The file's digest. Raises `InvalidField`, named `field`, for one that cannot be read, or that changes while
        it is."""
        try:
            real = Path(os.path.realpath(path, strict=True))
            before = _mark(real)
            kept = self._known.get(str(real))
            if kept is not None and kept[:-1] == before:
                return str(kept[-1])
            with real.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            after = _mark(real)
        except OSError as error:
            raise InvalidField(
                f"a file cannot be read ({error.strerror}).", field=field, remedy="Check path and rights."
            ) from error
        if before != after:
            raise InvalidField(
                "a file changed while it was read.", field=field, remedy="Resolve again once it is whole."
            )
        self.read += 1
        if time.time_ns() - max(before[3], before[4]) > SETTLED_NS:
            self._keep(str(real), [*before, found])
        return found

    def _keep(self, real: str, entry: list[Any]) -> None:
        with self._lock:
            self._known = {**self._known, real: entry}
            if self._cache is None:
                return
            half = self._cache.with_name(f"{self._cache.name}.{os.getpid()}.half")
            with contextlib.suppress(OSError):
                self._cache.parent.mkdir(parents=True, exist_ok=True)
                with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    json.dump({"version": _VERSION, "files": self._known}, file)
                half.replace(self._cache)

    def _loaded(self) -> dict[str, list[Any]]:
        if self._cache is None:
            return {}
        try:
            status = self._cache.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return {}  # others could have written what is there
            found = json.loads(self._cache.read_bytes())
            files = found["files"] if found["version"] == _VERSION else {}
            return {path: entry for path, entry in files.items() if len(entry) == 6 and isinstance(entry[-1], str)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _mark(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
