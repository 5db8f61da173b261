"""ClickHouse's engine in this process: one path, one process, a connection of its own for each statement.

What has to be known about chDB: a second engine on a path deadlocks or fails, `fork` after opening hangs the child,
and leaving the interpreter while a thread is inside a query crashes. So: a lock file, spawn only, and `close()`
waits for running statements.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import chdb
from msgspec import Struct

from ..schemas.errors import StackError
from .statements import result_format, split_insert

log = logging.getLogger("kvtrail.store")

LEAST_FREE_BYTES = 64 * 1024 * 1024
CONCURRENT = 8

_CONFIG = """<clickhouse>
  <logger><level>none</level></logger>
  <merge_tree><fsync_after_insert>1</fsync_after_insert><fsync_part_directory>1</fsync_part_directory></merge_tree>
</clickhouse>
"""
_CODE = re.compile(r"Code: (\d+)\.\s*")
_SETTING = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*$")


class EngineError(Exception):
    """The engine refused a statement. `code` is ClickHouse's; the text is for the client that sent it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Answer(Struct, frozen=True):
    """A statement's result. `format` is None for statements without one."""

    data: bytes
    format: str | None
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    elapsed_s: float = 0.0


class Engine:
    """The engine on `directory`. Threads may share it; at most `CONCURRENT` statements run at once.

    Raises `StackError` where the directory cannot be used: another process has it, it cannot be written, the disk
    is full.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock_file = claim(directory)
        self._slots = threading.BoundedSemaphore(CONCURRENT)
        self._running = 0
        self._state = threading.Condition()
        self._closing = False
        try:
            config = directory / "engine.xml"
            config.write_text(_CONFIG)
            # chDB takes its connection string apart like a query: `claim` refuses signs that mean something there.
            self._target = f"{directory / 'engine'}?config-file={config}"
            self._keep = chdb.connect(self._target)
            self.version, self.timezone = (
                self._keep.query("SELECT version(), timezone()", "TabSeparated")
                .bytes()
                .decode()
                .rstrip("\n")
                .split("\t")
            )
        except OSError as error:
            raise _unusable(directory, error) from error
        except (chdb.ChdbError, RuntimeError) as error:
            raise StackError(
                f"the engine cannot open it ({_first_line(str(error))}).",
                field=str(directory),
                remedy="Another version may have made it, or a file is damaged; name another --directory.",
            ) from error

    def run(
        self,
        text: bytes,
        *,
        database: str = "",
        settings: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        default_format: str = "TabSeparated",
        read_only: bool = False,
    ) -> Answer:
        """Run one statement, its data (if any) behind it, on a connection of its own. Raises `EngineError`.

        `params` are in ClickHouse's escaped text form, as its HTTP interface has them.
        """
        with self._state:
            if self._closing:
                raise EngineError(236, "Code: 236. DB::Exception: The store is stopping. (ABORTED)")
            self._running += 1
        try:
            with self._slots:
                return self._run(text, database, settings or {}, params or {}, default_format, read_only)
        finally:
            with self._state:
                self._running -= 1
                self._state.notify_all()

    def _run(
        self, text: bytes, database: str, settings: Mapping[str, str], params: Mapping[str, str], default_format: str,
        read_only: bool,
    ) -> Answer:  # fmt: skip
        started = time.perf_counter()
        connection = chdb.connect(self._target)
        try:
            if database and database != "default":
                connection.query(f"USE {quoted_name(database)}")
            if settings or read_only:
                connection.query(f"SET {_settings(settings, read_only)}")
            insert = split_insert(text)
            if insert is None:
                result = connection.query(text.decode(), default_format, params=dict(params))
            else:
                with readable(insert.data, self._directory) as path:
                    # Not chDB's streaming inserter: it reports success whatever becomes of the rows (a full disk, a
                    # failed view). Not the rows behind the statement either: those end at the first blank line.
                    source = f" FROM INFILE '{path}' {insert.settings.decode()} FORMAT {insert.format}"
                    result = connection.query(insert.target.decode() + source, default_format, params=dict(params))
            return Answer(
                result.bytes(), result_format(text, default_format) if insert is None else None,
                rows_read=result.storage_rows_read(), bytes_read=result.storage_bytes_read(),
                rows_written=result.rows_written(), bytes_written=result.bytes_written(),
                elapsed_s=time.perf_counter() - started,
            )  # fmt: skip
        except UnicodeDecodeError:
            raise EngineError(62, "Code: 62. DB::Exception: The statement is not UTF-8. (SYNTAX_ERROR)") from None
        except (chdb.ChdbError, RuntimeError) as error:
            raise _engine_error(str(error)) from error
        finally:
            connection.close()

    def close(self, deadline_s: float) -> bool:
        """Refuse new statements, wait for running ones; whether none was left when the time was up.

        Where one was left, the process must end by `os._exit`: leaving the interpreter would crash.
        """
        with self._state:
            self._closing = True
            idle = self._state.wait_for(lambda: self._running == 0, deadline_s)
        if idle:
            self._keep.close()
            self._lock_file.close()
        return idle


@contextlib.contextmanager
def readable(data: bytes, directory: Path) -> Iterator[str]:
    """A path at which the engine finds `data`: in memory where the system can, else a file in `directory`."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("insert")
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(dir=directory, prefix="insert-")
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        yield path
    except OSError as error:
        raise EngineError(243, f"Code: 243. DB::Exception: {error.strerror}. (NOT_ENOUGH_SPACE)") from error
    finally:
        os.close(descriptor)
        if sys.platform != "linux":
            Path(path).unlink()


def claim(directory: Path) -> IO[str]:
    """Make `directory` ours until the returned file is closed. Raises `StackError` saying what is in the way."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StackError(
            "is in use by another process.",
            field=str(directory),
            remedy="Stop the other `kvtrail store` (or `kvtrail up`), or name another --directory.",
        ) from None
    try:
        free = shutil.disk_usage(directory).free
        if free < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if any(sign in str(directory) for sign in "?&#%+;"):
            raise StackError("holds one of ? & # % + ;", field=str(directory), remedy="Name another --directory.")
    except OSError as error:
        lock.close()
        raise _unusable(directory, error) from error
    except StackError:
        lock.close()
        raise
    return lock


def _unusable(directory: Path, error: OSError) -> StackError:
    remedy = "Check owner and rights, or name another --directory."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"Free at least {LEAST_FREE_BYTES >> 20} MiB there, or name a --directory on another disk."
    return StackError(f"cannot hold the store ({error.strerror}).", field=str(directory), remedy=remedy)


def quoted_name(name: str) -> str:
    """`name` as a ClickHouse identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _settings(settings: Mapping[str, str], read_only: bool) -> str:
    parts = []
    for name, value in settings.items():
        if not _SETTING.match(name):
            raise EngineError(115, "Code: 115. DB::Exception: Unknown setting: not a name. (UNKNOWN_SETTING)")
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        parts.append(f"{name} = '{escaped}'")
    if read_only:
        parts.append("readonly = 2")
    return ", ".join(parts)


def _engine_error(text: str) -> EngineError:
    match = _CODE.search(text)
    if match is None:
        return EngineError(1002, f"Code: 1002. DB::Exception: {text} (UNKNOWN_EXCEPTION)")
    return EngineError(int(match[1]), text[match.start() :])


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
