"""The whole of kvtrail on one machine: broker, store, workers and console as child processes."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ...schemas.config import Config
from ...schemas.errors import StackError
from ..screen import say, step
from .handover import child_environ
from .java import Tools
from .kafka import KafkaBroker, run_apart, wait_for_broker
from .ports import HOST, answers, free_ports, is_free, taken
from .processes import Child
from .running import alone, publish, withdraw
from .supervisor import BrokerMember, Member, Supervisor, Worker, wait_ready

READY_S = 90.0
NAMED_S = 15.0
WORKERS_STOP_S = 22.0
SERVERS_STOP_S = 15.0
KVTRAIL = (sys.executable, "-m", "kvtrail.cli")


class LocalStack:
    """Starts everything in order and keeps it running until stopped.

    A broker or a ClickHouse server that the configuration names explicitly is used as it is; what it does not name
    is started here, on the default port where that is free and on another where it is not. `ephemeral` begins from
    nothing, on free ports only. Nothing outlives this process, however it ends. `commands` replaces the commands of
    workers by name.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        *,
        ephemeral: bool = False,
        commands: Mapping[str, Sequence[str]] | None = None,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.config = config
        self.directory = directory.absolute()
        self._set("local", directory=self.directory)
        self.ephemeral = ephemeral
        self._commands = dict(commands or {})
        self._tell = tell
        self._exits = ExitStack()
        self._members: dict[str, Member] = {}
        self._supervisor = Supervisor(tell)

    @property
    def environ(self) -> dict[str, str]:
        """The environment with which any kvtrail process finds this stack."""
        return child_environ(self.config, os.environ)

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def names(self) -> list[str]:
        """The running members, in the order in which they were started."""
        return list(self._members)

    def start(self) -> None:
        """Bring everything up; topics and migrations come before any worker. Raises an error of ours that says what
        is missing, after stopping what had been started."""
        self._exits.enter_context(alone(self.directory))
        try:
            if self.ephemeral:
                for name in ("kafka", "store", "logs"):
                    shutil.rmtree(self.directory / name, ignore_errors=True)
            self._supervisor.begin()
            self._start_kafka()
            self._start_store()
            self._start_workers()
            publish(self.directory, self.config)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything in order within a deadline; what does not end by then is killed."""
        self._supervisor.end()
        workers = [name for name in self._members if name not in ("store", "kafka")]
        self._stop_all(workers, WORKERS_STOP_S)
        self._stop_all(list(self._members), SERVERS_STOP_S)
        withdraw(self.directory)
        self._exits.close()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until the stack cannot be kept running: then raises `StackError`. Returns when `timeout_s` has passed."""
        self._supervisor.over.wait(timeout_s)
        if self._supervisor.failed is not None:
            raise self._supervisor.failed

    def kill(self, name: str, *, hold: bool = False) -> None:
        """SIGKILL a member, as a crash would. It is started again, unless `hold`: then `restart` does that."""
        member = self._members[name]
        with self._supervisor.lock:
            if hold:
                self._supervisor.let_go(member)
            member.kill()

    def restart(self, name: str) -> None:
        """Stop a member if it runs, start it, and return when it is ready."""
        member = self._members[name]
        with self._supervisor.lock:
            self._supervisor.let_go(member)
            member.ask_to_stop(again=True)
            member.stop(WORKERS_STOP_S)
            member.start()
        wait_ready(member, READY_S)
        self._supervisor.keep(member)

    def wait_ready(self, name: str, deadline_s: float = READY_S) -> None:
        """Return once a member runs and is ready, perhaps after being started again. Raises `StackError`."""
        member, until = self._members[name], time.monotonic() + deadline_s
        while not member.ready():
            if time.monotonic() > until:
                raise member.death() if not member.running else StackError(f"{name} is not ready.")
            self.wait(0.02)

    def pid(self, name: str) -> int:
        """The process id of a member."""
        return self._members[name].pid

    def log(self, name: str) -> Path:
        """Where a member's output is kept."""
        return self.directory / "kafka" / "kafka.log" if name == "kafka" else self.logs / f"{name}.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_kafka(self) -> None:
        from ...streams.topics import ensure_topics

        if "bootstrap" in self.config.kafka.model_fields_set:
            wait_for_broker(self.config.kafka, NAMED_S)
        else:
            port = self._port(9092, "Kafka")
            broker = KafkaBroker(self.directory / "kafka", port=port, tools=Tools(say=self._tell))
            with step("Kafka broker"):
                broker.start()
            self._set("kafka", bootstrap=broker.config.bootstrap)
            self._add(BrokerMember(broker))
        with step("Topics"):
            run_apart(ensure_topics(self.config.kafka))

    def _start_store(self) -> None:
        from ...store.client import connect_wait
        from ...store.migrate import migrate

        if "url" in self.config.clickhouse.model_fields_set:
            deadline_s = NAMED_S
        else:
            port, deadline_s = self._port(8123, "the store"), READY_S
            self._set("clickhouse", url=f"http://{HOST}:{port}")
            folder = self.directory / "store"
            store = self._worker(
                "store", ["store", "--directory", str(folder), "--port", str(port)], lambda _: answers(port)
            )
            with step("ClickHouse engine"):
                self._start_and_wait(store)
        with step("Migrations"), connect_wait(self.config.clickhouse, deadline_s) as client:
            migrate(client, self.config)

    def _start_workers(self) -> None:
        serve = self.config.serve
        if "port" in serve.model_fields_set and serve.port and not self.ephemeral:
            if not is_free(serve.port):
                raise taken(serve.port, "the console", "serve.port")
        else:
            self._set("serve", port=self._port(serve.port, "the console"))
        port = self.config.serve.port
        workers = [
            self._worker("detect", ["detect"], _said_ready, hangup=True),
            self._worker("sink", ["sink"], _said_ready, hangup=True),
            self._worker("resolve", ["resolve"], _said_ready, hangup=True),
        ]
        if self.config.fleet.enabled:
            workers.append(self._worker("fleet", ["fleet"], _said_ready, hangup=True))
        if self.config.notify.has_targets:
            workers.append(self._worker("notify", ["notify"], _said_ready, hangup=True))
            if self.config.heartbeat.enabled:
                workers.append(self._worker("heartbeat", ["heartbeat"], _said_ready, hangup=True))
        workers.append(self._worker("serve", ["serve"], lambda _: answers(port)))
        with step("Workers and console"):
            for worker in workers:
                self._members[worker.name] = worker
                worker.start()
            for worker in workers:
                self._start_and_wait(worker)

    def _worker(self, name: str, command: list[str], ready: Callable[[Child], bool], *, hangup: bool = False) -> Worker:
        child = Child(
            name,
            self._commands.get(name, [*KVTRAIL, *command]),
            log=self.logs / f"{name}.log",
            environ=self.environ,
            cwd=self.directory,
        )
        return Worker(name, child, ready, hangup=hangup)

    def _start_and_wait(self, member: Member) -> None:
        self._members[member.name] = member
        if not member.running:
            member.start()
        wait_ready(member, READY_S)
        self._add(member)

    def _add(self, member: Member) -> None:
        self._members[member.name] = member
        self._supervisor.keep(member)

    def _port(self, preferred: int, what: str) -> int:
        if self.ephemeral or not preferred:
            return free_ports(1)[0]
        if is_free(preferred):
            return preferred
        port = free_ports(1)[0]
        self._tell(f"Port {preferred} is taken: {what} uses {port}")
        return port

    def _set(self, section: str, **values: object) -> None:
        changed = getattr(self.config, section).model_copy(update=values)
        self.config = self.config.model_copy(update={section: changed})

    def _stop_all(self, names: list[str], deadline_s: float) -> None:
        """Ask all at once, then wait for each: together they have `deadline_s`."""
        until = time.monotonic() + deadline_s
        for name in names:
            self._members[name].ask_to_stop(again=False)
        for name in names:
            if not self._members[name].stop(max(until - time.monotonic(), 0.5)):
                self._tell(f"{name} did not stop in time and was killed")
            del self._members[name]


def _said_ready(child: Child) -> bool:
    return "ready: " in child.output()
