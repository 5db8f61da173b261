"""One child process: started on a leash, its output in a file, waited for by condition, stopped by a deadline."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...schemas.errors import StackError
from .leash import spawn

POLL_S = 0.02
TAIL_LINES = 15
LOG_BYTES = 50 * 1024 * 1024
"""A log longer than this at a start is put aside as `.old`, replacing the one before."""


class Child:
    """A named child process. Its log is appended to `log`; `mark` is where this start's output begins there."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, environ: Mapping[str, str], cwd: Path) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.environ = environ
        self.cwd = cwd
        self.mark = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; 0 when it was never started."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start it. Raises `StackError` when its log cannot be written."""
        assert not self.running, f"{self.name} runs already"
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
                self.log.replace(self.log.with_name(f"{self.log.name}.old"))
            with self.log.open("ab") as file:
                self.mark = file.tell()
                self._process = spawn(self.command, environ=self.environ, cwd=self.cwd, log=file)
        except OSError as error:
            raise StackError(
                f"{self.name} cannot be started ({error.strerror}: {error.filename or self.log}).",
                remedy="Check that the folder exists, can be written and has space.",
            ) from error

    def output(self) -> str:
        """What it wrote since its last start."""
        try:
            with self.log.open("rb") as file:
                file.seek(self.mark)
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def tail(self) -> str:
        """The last lines of its output, indented, for an error message."""
        lines = self.output().rstrip().splitlines()[-TAIL_LINES:]
        return "".join(f"\n    {line}" for line in lines) or "\n    (it wrote nothing)"

    def wait_until(self, ready: Callable[[], bool], deadline_s: float, what: str = "ready") -> None:
        """Return once `ready()` holds. Raises `StackError` with the log's tail when the process ends first, or when
        `deadline_s` has passed."""
        until = time.monotonic() + deadline_s
        while not ready():
            if not self.running:
                raise self.death()
            if time.monotonic() > until:
                raise StackError(
                    f"{self.name} was not {what} after {deadline_s:.0f} s. The end of {self.log}:{self.tail()}",
                    remedy="\n  Read the log; a machine under load may only need another try.",
                )
            time.sleep(POLL_S)

    def wait_for_line(self, text: str, deadline_s: float) -> None:
        """Return once a line containing `text` is in its output; raises as `wait_until`."""
        self.wait_until(lambda: text in self.output(), deadline_s)

    def death(self) -> StackError:
        """The error that tells how it ended, with the end of its log."""
        return StackError(
            f"{self.name} ended with {describe(self.returncode)}. The end of {self.log}:{self.tail()}",
            remedy="\n  Mend what the log names, then start again.",
        )

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the process and what it started."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self, deadline_s: float) -> bool:
        """SIGTERM, then SIGKILL at the deadline. True when it ended by itself in time."""
        self.signal(signal.SIGTERM)
        return self.finish(deadline_s)

    def finish(self, deadline_s: float) -> bool:
        """Wait for the end that was asked for, SIGKILL at the deadline. True when it ended by itself in time."""
        graceful = self._wait(deadline_s)
        if not graceful:
            self.kill()
        self._sweep()
        return graceful

    def kill(self) -> None:
        """SIGKILL, as a crash would end it; returns when it is gone."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._sweep()

    def _wait(self, deadline_s: float) -> bool:
        if self._process is None:
            return True
        try:
            self._process.wait(timeout=max(deadline_s, 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _sweep(self) -> None:
        """End what the process started itself and left in its group."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def describe(returncode: int | None) -> str:
    """An exit status in words."""
    if returncode is None:
        return "no exit status"
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"
