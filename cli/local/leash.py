"""Child processes that cannot outlive this one, however it ends.

The kernel kills a leashed child when the *thread* that started it is gone, so all children are started from one
thread that lives as long as the process: a caller's own thread may end long before its broker should.
"""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

# Runs between fork and exec of the real command, in a bare interpreter: `preexec_fn` is not safe beside threads.
_SHIM = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if ctypes.CDLL(None).prctl(1, signal.SIGKILL) != 0 or os.getppid() != parent:
    sys.exit(125)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"cannot start {command[0]}: {error.strerror}")
"""

_lock = threading.Lock()
_work: "queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], list[str], Mapping[str, str], Path, IO[bytes]]]"
_work = queue.SimpleQueue()
_spawner: threading.Thread | None = None


def spawn(
    command: Sequence[str], *, environ: Mapping[str, str], cwd: Path, log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start `command` in a process group of its own, its output going to `log`.

    It receives SIGKILL when this process ends for any reason, `kill -9` included.
    """
    global _spawner
    with _lock:
        if _spawner is None or not _spawner.is_alive():
            # A daemon: at a normal exit it must not be joined while children still run.
            _spawner = threading.Thread(target=_spawn_forever, name="kvtrail-spawner", daemon=True)
            _spawner.start()
    future: Future[subprocess.Popen[bytes]] = Future()
    _work.put((future, list(command), environ, cwd, log))
    return future.result()


def _spawn_forever() -> None:
    while True:
        future, command, environ, cwd, log = _work.get()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(process)
