"""Broker, store and workers as processes of their own in a scratch folder, and what each of them uses."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from ..cli.local.handover import child_environ
from ..cli.local.kafka import KafkaBroker
from ..cli.local.processes import Child
from ..cli.local.stack import KVTRAIL
from ..schemas.config import Config

READY_S = 90.0


class Use(NamedTuple):
    """Processor time and the largest resident memory of one process, so far."""

    cpu_s: float
    peak_mb: float


class Rig:
    """Starts processes and stops them in the reverse order. `config` is what those started from now on are given."""

    def __init__(self, directory: Path, config: Config, *, heap_mb: int = 384) -> None:
        self.directory = directory
        self.config = config.model_copy(update={"local": config.local.model_copy(update={"directory": directory})})
        self.broker = KafkaBroker(directory / "kafka", heap_mb=heap_mb)
        self._children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        self.broker.start()
        kafka = self.config.kafka.model_copy(update={"bootstrap": self.broker.config.bootstrap})
        self.config = self.config.model_copy(update={"kafka": kafka})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed([*self._children]):
            self.stop(name)
        self.broker.stop()

    def store(self, name: str) -> None:
        """An empty store, which the configuration names from now on."""
        folder = self.directory / name
        child = self._start(name, [*KVTRAIL, "store", "--directory", str(folder), "--port", "0"])
        child.wait_until((folder / "port").exists, READY_S, "answering")
        url = f"http://127.0.0.1:{int((folder / 'port').read_text())}"
        clickhouse = self.config.clickhouse.model_copy(update={"url": url})
        self.config = self.config.model_copy(update={"clickhouse": clickhouse})

    def worker(self, name: str, command: str) -> Child:
        """`kvtrail COMMAND` under the present configuration; not waited for."""
        return self._start(name, [*KVTRAIL, command])

    def function(self, name: str, module: str, *arguments: object) -> Child:
        """`main` of a module of this package, given its arguments as text; not waited for."""
        code = f"import sys; from kvtrail.benchmarks.{module} import main; main(*sys.argv[1:])"
        return self._start(name, [sys.executable, "-c", code, *map(str, arguments)])

    def ready(self, names: Sequence[str]) -> None:
        """Return once each of these workers has said that it is."""
        for name in names:
            self._children[name].wait_for_line("ready: ", READY_S)

    def stop(self, name: str, deadline_s: float = 30.0) -> None:
        """End it in order; SIGKILL at the deadline."""
        self._children.pop(name).stop(deadline_s)

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would."""
        self._children.pop(name).kill()

    def pid(self, name: str) -> int:
        """Of one of them."""
        return self._children[name].pid

    def lines(self, name: str) -> list[dict[str, object]]:
        """What a worker has logged since its start."""
        output = self._children[name].output()
        return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]

    def check(self) -> None:
        """Raise where a process has failed."""
        for child in self._children.values():
            if child.returncode:
                raise child.death()

    def use(self) -> dict[str, Use]:
        """What the running processes have used since their start, the broker included."""
        pids = {"broker": self.broker.pid} | {name: child.pid for name, child in self._children.items()}
        return {name: used(pid) for name, pid in pids.items() if psutil.pid_exists(pid)}

    def _start(self, name: str, command: Sequence[str]) -> Child:
        child = Child(
            name, command, log=self.directory / f"{name}.log", environ=child_environ(self.config, os.environ),
            cwd=self.directory,
        )  # fmt: skip
        child.start()
        self._children[name] = child
        return child


def used(pid: int) -> Use:
    """What a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return Use(times.user + times.system, int(line.split()[1]) / 1024)
    return Use(times.user + times.system, 0.0)
