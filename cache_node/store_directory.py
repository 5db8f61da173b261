"""The store's directory: where files stand, who owns it, and what is found there after a start.

lock         held by the one process that uses the directory
entries/ab/  one file an entry, named by the digest of its store key
tmp/         being written; whatever is there at a start was torn by the end of the last process
refused/     files that were not what they should be, kept (a few) for whoever wants to look
"""

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .entry_file import SealedHeader
from .errors import CorruptEntry, StoreInUse
from .file_engine import FileEngine, sync_directory

SUFFIX = ".kv"
REFUSED_KEPT = 16
log = logging.getLogger("kvtrail.cache_node")


@dataclass(slots=True)
class Found:
    """What a start found: entries by last use, oldest first; temporary files removed; files refused, each with its
    reason. `fresh`: the directory held no entries folder, so nothing can have survived in it."""

    fresh: bool
    entries: list[tuple[Path, SealedHeader]] = field(default_factory=list)
    torn: int = 0
    refused: list[CorruptEntry] = field(default_factory=list)


class StoreDirectory:
    """The files of one store. Raises `StoreInUse` where another process has it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fresh = not (root / "entries").is_dir()
        for name in ("entries", "tmp", "refused"):
            (root / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StoreInUse(
                "is used by another process.", field="directory", remedy="Stop it, or give this node its own directory."
            ) from error
        self._writes = 0

    def close(self) -> None:
        """Gives the directory back; the kernel does the same when the process dies."""
        os.close(self._lock)

    def path(self, key: str) -> Path:
        """Where `key`'s entry stands."""
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.root / "entries" / name[:2] / f"{name}{SUFFIX}"

    def temporary(self) -> Path:
        """A new name to write to."""
        self._writes += 1
        return self.root / "tmp" / f"{self._writes}{SUFFIX}"

    def publish(self, temporary: Path, path: Path) -> None:
        """The written file becomes the entry, and stays it through a power loss.

        Raises `OSError`; then neither the written file nor, where it had come that far, what it replaced is there.
        """
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            sync_directory(path.parent.parent)
        temporary.rename(path)
        try:
            sync_directory(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def remove(self, path: Path) -> bool:
        """Whether the file is gone for good. A file that stays would be found, and served, by the next start."""
        try:
            path.unlink(missing_ok=True)
            sync_directory(path.parent)
        except OSError as error:
            log.error("an entry's file could not be removed: %s", error.strerror)
            return False
        return True

    def set_aside(self, path: Path) -> None:
        """Moves a refused file out of the way; removes it where that fails. The oldest beyond a few are dropped."""
        refused = self.root / "refused"
        try:
            path.rename(refused / path.name)
        except FileNotFoundError:
            return
        except OSError:
            self.remove(path)
            return
        with contextlib.suppress(OSError):
            for old in sorted(refused.iterdir(), key=_used_at, reverse=True)[REFUSED_KEPT:]:
                old.unlink()

    def recover(self, engine: FileEngine) -> Found:
        """Looks at every file once, headers only; the payload is checked when it is read."""
        found = Found(fresh=self._fresh)
        for path in (self.root / "tmp").iterdir():
            path.unlink()
            found.torn += 1
        for path in sorted(_files(self.root / "entries"), key=_used_at):
            try:
                sealed = engine.read_header(path)
                self.check_name(path, sealed)
            except CorruptEntry as error:
                self._refuse(found, path, error)
            except OSError as error:
                self._refuse(found, path, CorruptEntry(f"cannot be read ({error.strerror}).", field="file"))
            else:
                found.entries.append((path, sealed))
        return found

    def check_name(self, path: Path, sealed: SealedHeader) -> None:
        """Raises `CorruptEntry` where the file stands under another key than the one in its sealed header."""
        if self.path(sealed.header.key) != path:
            raise CorruptEntry(
                "was sealed for another store key.", field="key", remedy="It is set aside, never served."
            )

    def _refuse(self, found: Found, path: Path, error: CorruptEntry) -> None:
        log.warning("refused %s: %s", path.name, error)
        found.refused.append(error)
        self.set_aside(path)


def _files(root: Path) -> Iterable[Path]:
    # Files of another name are not ours: neither served nor touched.
    return (path for folder in root.iterdir() if folder.is_dir() for path in folder.glob(f"*{SUFFIX}"))


def _used_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
