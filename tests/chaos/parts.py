"""What can be killed: broker, store and workers, each started again by whoever tends it."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

from kvtrail.cli.local.handover import child_environ
from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.cli.local.processes import Child
from kvtrail.schemas.config import Config
from kvtrail.schemas.errors import StackError

_AGAIN_S = 0.5
_COMMANDS = {
    "detector": ("detect", "detector"), "sink": ("sink", "sink"), "resolver": ("resolve", "resolver"),
    "fleet": ("fleet", "fleet"), "notifier": ("notify", "notify"),
}  # fmt: skip
"""By kind of worker: its command, and its section of the configuration."""
_MAIN = "from kvtrail.cli.main import main; main({command!r})"


class Runs(Protocol):
    """A process, as far as chaos is concerned."""

    @property
    def pid(self) -> int: ...
    @property
    def running(self) -> bool: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


class Part:
    """One process that should be up, is taken down, and comes back. Not thread safe."""

    def __init__(self, name: str, process: Runs, *, slow: bool = False) -> None:
        """`slow`: its start is waited for elsewhere."""
        self.name = name
        self.wanted = False
        self.own_ends = 0
        """How often it ended without being told to: a worker may, where what it needs is away."""
        self._process = process
        self._slow = slow
        self._starting: threading.Thread | None = None
        self._back_at = 0.0
        self._resume_at: float | None = None
        self._down = not process.running

    @property
    def up(self) -> bool:
        """Running, neither paused nor on its way."""
        starting = self._starting is not None and self._starting.is_alive()
        return self._process.running and self._resume_at is None and not starting and not self._down

    def tend(self, now: float) -> None:
        """Start it again, or let it go on, when its time has come."""
        if self._starting is not None:
            if self._starting.is_alive():
                return
            self._starting = None
        if self._resume_at is not None and now >= self._resume_at:
            self.resume()
        if self._process.running:
            return
        if not self._down:
            self._down = True
            self.own_ends += 1
            self._back_at = now + _AGAIN_S
        if self.wanted and now >= self._back_at:
            self._start()

    def kill(self, for_s: float) -> None:
        """SIGKILL; back after `for_s`."""
        self._down, self._back_at = True, time.monotonic() + for_s
        self._process.kill()
        self._resume_at = None

    def pause(self, for_s: float) -> None:
        """SIGSTOP; it goes on after `for_s`."""
        self._signal(signal.SIGSTOP)
        self._resume_at = time.monotonic() + for_s

    def resume(self) -> None:
        """SIGCONT, where it was paused."""
        if self._resume_at is not None:
            self._signal(signal.SIGCONT)
            self._resume_at = None

    def stop(self, number: signal.Signals, for_s: float) -> None:
        """Ask it to end; back after `for_s`, or later, when it has ended."""
        self._down, self._back_at = True, time.monotonic() + for_s
        self._signal(number)

    def end(self) -> None:
        """For good."""
        self.wanted = False
        if self._starting is not None:
            self._starting.join()
        self.resume()
        self._process.kill()

    def _start(self) -> None:
        self._down = False
        if not self._slow:
            self._process.start()
            return
        self._starting = threading.Thread(target=self._start_quietly, daemon=True)
        self._starting.start()

    def _start_quietly(self) -> None:
        # A broker that is killed while it starts, or that does not get up in time, is started again.
        with contextlib.suppress(StackError):
            self._process.start()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def worker(name: str, config: Config, directory: Path) -> Part:
    """`detector-0`, `sink-1`, `notifier-0` ..., a static member under that name."""
    command, part = _COMMANDS[name.partition("-")[0]]
    own = config.model_copy(update={part: getattr(config, part).model_copy(update={"instance": name})})
    return Part(name, _child(name, [command], own, directory))


def store(config: Config, directory: Path) -> Part:
    """The embedded engine, on the port that `config` names."""
    port = config.clickhouse.url.rpartition(":")[2]
    return Part(
        "store", _child("store", ["store", "--directory", str(directory / "store"), "--port", port], config, directory)
    )


def broker(process: KafkaBroker) -> Part:
    """The broker."""
    return Part("broker", process, slow=True)


def _child(name: str, command: list[str], config: Config, directory: Path) -> Child:
    return Child(
        name, [sys.executable, "-c", _MAIN.format(command=command)], log=directory / f"{name}.log",
        environ=child_environ(config, os.environ), cwd=directory,
    )  # fmt: skip
