"""One real Kafka broker on this machine: KRaft, broker and controller in one process, from its Maven jars."""

import asyncio
import base64
import fcntl
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from ...producers.kafka_client import connection
from ...schemas.config import KafkaConfig
from ...schemas.errors import BrokerError, StackError
from .jars import POM, kafka_jars
from .java import Tools
from .ports import HOST, answers, free_ports, is_free, taken
from .processes import POLL_S, Child, describe
from .running import unwritable

_T = TypeVar("_T")

START_S = 60.0
STOP_S = 20.0
NEEDED_BYTES = 300 * 1024 * 1024
"""Below this a broker starts and then dies at its first segment."""

_SETTINGS = """\
process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
controller.quorum.voters={voters}
log.dirs={logs}
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
"""


class KafkaBroker:
    """A broker whose data lives in `directory`; `port` 0 takes a free one and keeps it over restarts.

    `settings` are more lines of server.properties, where {host}, {port} and {controller} are known; `format_options`
    go to the tool that formats its folder. It dies with the process that started it, however that ends. Not thread
    safe.

    One of several has a `node` number from 1 on, a `port` of its own, the ports of all `controllers` and the id of
    their `cluster`; none is ready before most of them have been started.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        tools: Tools | None = None,
        heap_mb: int = 384,
        settings: str = "",
        format_options: Sequence[str] = (),
        node: int = 1,
        controllers: Sequence[int] = (),
        cluster: str = "",
    ) -> None:
        self.directory = directory.absolute()
        self.log = self.directory / "kafka.log"
        self.port = port
        self._chosen = port != 0
        self._node = node
        self._controllers = tuple(controllers)
        self._controller = controllers[node - 1] if controllers else 0
        self._cluster = cluster
        self._heap_mb = heap_mb
        self._settings = settings
        self._format_options = format_options
        self._tools = tools or Tools()
        self._child: Child | None = None
        self._lock: IO[bytes] | None = None

    @property
    def config(self) -> KafkaConfig:
        """How to reach it."""
        return KafkaConfig(bootstrap=f"{HOST}:{self.port}")

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def start(self) -> None:
        """Start it on its directory, formatting that first when it is new; returns when it answers metadata.

        Raises `StackError` naming what to do: Java or Maven missing, no network for the jars, port taken, disk full,
        folder not writable, or the end of the broker's log.
        """
        java, jars = self._tools.java(), kafka_jars(self._tools)
        self._prepare_directory()
        for attempt in range(3):
            self._choose_ports()
            settings = self._write_settings()
            self._format(java, jars, settings)
            self._child = Child(
                "the Kafka broker",
                [
                    str(java), f"-Xmx{self._heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                    f"-Dlog4j2.configurationFile={POM.parent / 'log4j2.properties'}",
                    "-cp", str(jars / "*"), "kafka.Kafka", str(settings),
                ],
                log=self.log,
                environ=self._tools.environ,
                cwd=self.directory,
            )  # fmt: skip
            try:
                self._child.start()
                self._child.wait_until(lambda: answers(self.port), START_S, "listening")
                self._child.wait_until(_metadata(self.port, self._node), START_S, "answering metadata")
            except StackError as error:
                self.kill()
                reason = self._explain(error)
                # A port that was free when chosen can be gone a moment later: take others.
                if reason.field == "kafka.bootstrap" and not self._chosen and attempt < 2:
                    self.port = self._controller = 0
                    continue
                raise reason from None
            except BaseException:
                self.kill()
                raise
            return

    def stop(self, deadline_s: float = STOP_S) -> bool:
        """Orderly shutdown; SIGKILL at the deadline. True when it was orderly."""
        orderly = self._child.stop(deadline_s) if self._child else True
        self._release()
        return orderly

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._child:
            self._child.kill()
        self._release()

    def death(self) -> StackError:
        """Why it ended, with the end of its log."""
        return self._explain(self._child.death()) if self._child else StackError("the Kafka broker never ran.")

    def how(self) -> str:
        """How it ended, in words."""
        return describe(self._child.returncode if self._child else None)

    def restart(self) -> None:
        """Stop it if it runs, and start it again on the same data and port."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare_directory(self) -> None:
        try:
            (self.directory / "data").mkdir(parents=True, exist_ok=True)
            self._acquire()
        except OSError as error:
            raise unwritable(self.directory, error) from error
        free = shutil.disk_usage(self.directory).free
        if free < NEEDED_BYTES:
            raise self._full(f"only {free // 2**20} MB are free, Kafka needs {NEEDED_BYTES // 2**20}")

    def _acquire(self) -> None:
        """Kafka locks its folder itself, but late: a second broker has written settings and read half a log by then."""
        if self._lock is not None:
            return
        lock = (self.directory / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.write(b"held while a broker runs here\n")
            lock.flush()
        except BlockingIOError:
            lock.close()
            raise self._in_use() from None
        except OSError:
            lock.close()
            raise
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _in_use(self) -> StackError:
        return StackError(
            f"another Kafka broker uses {self.directory}.",
            field="local.directory",
            remedy="Stop it, or set KVTRAIL_LOCAL__DIRECTORY to another folder.",
        )

    def _full(self, what: str) -> StackError:
        return StackError(
            f"the disk under {self.directory} is full: {what}.",
            field="local.directory",
            remedy="Free space, or set KVTRAIL_LOCAL__DIRECTORY to a folder on another disk.",
        )

    def _choose_ports(self) -> None:
        if self.port and not is_free(self.port):
            raise taken(self.port, "Kafka", "kafka.bootstrap")
        if not self._controllers and (not self._controller or not is_free(self._controller)):
            self._controller = free_ports(1)[0]
        while not self.port or self.port == self._controller:
            self.port = free_ports(1)[0]

    def _write_settings(self) -> Path:
        path = self.directory / "server.properties"
        voters = enumerate(self._controllers or (self._controller,), 1)
        path.write_text(
            (_SETTINGS + self._settings).format(
                node=self._node, host=HOST, port=self.port, controller=self._controller,
                voters=",".join(f"{node}@{HOST}:{port}" for node, port in voters), logs=self.directory / "data",
            )
        )  # fmt: skip
        return path

    def _format(self, java: Path, jars: Path, settings: Path) -> None:
        if (self.directory / "data" / "meta.properties").exists():
            return
        ran = subprocess.run(
            [
                java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", str(jars / "*"),
                "kafka.tools.StorageTool", "format", "-t", self._cluster or cluster_id(), "-c", settings,
                "--ignore-formatted", *self._format_options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(self._tools.environ),
            cwd=self.directory,
            check=False,
        )  # fmt: skip
        if ran.returncode != 0:
            raise self._explain(StackError(f"Kafka could not format its folder: {ran.stdout.strip()[-2000:]}"))

    def _explain(self, error: StackError) -> StackError:
        """The broker's own words turned into what to do."""
        output = error.message + (self._child.output() if self._child else "")
        if "Address already in use" in output:
            return taken(self.port, "Kafka", "kafka.bootstrap")
        if "No space left on device" in output:
            return self._full("the broker ran out of space")
        if "Failed to acquire lock" in output:
            return self._in_use()
        return error


def cluster_id() -> str:
    """A new id for a cluster, as Kafka writes them. Never one with a leading `-`: Kafka takes that for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _metadata(port: int, node: int) -> Callable[[], bool]:
    """A condition: the broker names itself in its answer to a metadata request."""
    return lambda: node in run_apart(_nodes(KafkaConfig(bootstrap=f"{HOST}:{port}")))


def wait_for_broker(kafka: KafkaConfig, deadline_s: float) -> None:
    """Return once the broker answers metadata. Raises `BrokerError` at the deadline."""
    until = time.monotonic() + deadline_s
    while not run_apart(_nodes(kafka)):
        if time.monotonic() > until:
            raise BrokerError(
                f"no Kafka broker answered within {deadline_s:.0f} s.",
                field="kafka.bootstrap",
                remedy="Check the address and that the broker is reachable from here, "
                "or unset KVTRAIL_KAFKA__BOOTSTRAP to let kvtrail start one.",
            )
        time.sleep(POLL_S)


async def _nodes(kafka: KafkaConfig) -> list[int]:
    """The ids of the brokers that a metadata request names; empty where nobody answers."""
    client = AIOKafkaClient(**connection(kafka), request_timeout_ms=5000)
    try:
        await client.bootstrap()
        return [node.nodeId for node in client.cluster.brokers()]
    except (KafkaError, OSError, TimeoutError):
        return []
    finally:
        await client.close()


def run_apart(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """The result of `coroutine`, run in a thread of its own: the caller's may have a running event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
