"""Static membership: one instance id is one process, and a stop that is no restart says goodbye.

A static member that is killed and comes back inside the session timeout takes its own partitions back and nobody
notices. The price: it sends no LeaveGroup, so after a real stop its partitions would stand still until the session
ends; and two processes with one id fence each other for ever, about once a second, without either dying.
"""

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

from ..producers.kafka_client import connection
from ..schemas.config import Config
from ..schemas.errors import ConfigError

_log = logging.getLogger("kvtrail.streams.membership")


def scratch(config: Config) -> Path:
    """A folder of this user's on this machine for locks; nothing in it needs to survive."""
    return (config.local.directory or Path(tempfile.gettempdir()) / f"kvtrail-{os.getuid()}") / "workers"


class Worker(Protocol):
    """Who is told what it owns."""

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None: ...
    def assigned(self, partitions: Iterable[TopicPartition]) -> None: ...


class Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Hands on to a worker what its group decides."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def on_partitions_revoked(self, revoked: Any) -> None:
        await self._worker.revoked(revoked)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._worker.assigned(assigned)


class InstanceLock:
    """Holds the instance id on this machine for as long as the process lives; the kernel lets go for it."""

    def __init__(self, config: Config, instance: str) -> None:
        digest = hashlib.sha256(config.kafka.bootstrap.encode()).hexdigest()[:8]
        self._instance = instance
        self._path = scratch(config) / f"{instance}-{digest}.lock"
        self._file: int | None = None

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            raise ConfigError(
                f"a worker of this name already runs on this machine: {self._instance}, {self._holder()}.",
                field="instance",
                remedy="Give each worker an instance name of its own, or stop the other one.",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"the lock file cannot be made ({error.strerror}).",
                field=str(self._path),
                remedy="Check its rights, or set local.directory to a folder this user may write.",
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)

    def _holder(self) -> str:
        """`process 4711`, as the one that holds the lock has written into it; then this file is let go."""
        if self._file is None:
            return "process unknown"
        said = os.read(self._file, 32).decode("ascii", "replace").strip()
        os.close(self._file)
        self._file = None
        return f"process {said}" if said.isdecimal() else "process unknown"


_SAME_S = 1.0


class FencingWatch(logging.Handler):
    """Calls `fatal` when the broker has said `limit` times in `window_s` that it does not know this member: another
    process uses the same instance id. aiokafka rejoins by itself and tells nobody but its log, several times where a
    commit and a heartbeat meet the same answer: what is said within a second counts once."""

    def __init__(self, fatal: Callable[[str], None], limit: int = 5, window_s: float = 30.0) -> None:
        super().__init__(logging.INFO)
        self._fatal = fatal
        self._limit = limit
        self._window_s = window_s
        self._seen: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "UnknownMemberId" not in text and "member_id was not recognized" not in text:
            return
        if self._seen and record.created - self._seen[-1] < _SAME_S:
            return
        self._seen = [at for at in self._seen if record.created - at < self._window_s] + [record.created]
        if len(self._seen) >= self._limit:
            self._fatal("another process uses this instance name: the broker no longer knows this member")

    def install(self) -> Self:
        """Listen to aiokafka's group coordinator."""
        logging.getLogger("aiokafka.consumer.group_coordinator").addHandler(self)
        return self


def lost_membership(consumer: AIOKafkaConsumer) -> BaseException | None:
    """Why the client has stopped coordinating; None while it has not.

    aiokafka parks an error it cannot handle (among them being fenced, which it does not know) until somebody polls
    with its own `getmany`. Faust fetches past that, and would sit there for ever: alive, silent, without a partition.
    """
    coordinator = consumer._coordinator
    error: BaseException | None = coordinator._pending_exception
    if error is None and coordinator._coordination_task.done() and not coordinator._closing.done():
        error = coordinator._coordination_task.exception()
    return error


class _LeaveResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 13
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "members",
            Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")), ("error_code", Int16)),
        ),
    )


class _LeaveStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """LeaveGroup v3, the first that can name a static member; aiokafka knows only v0 and v1."""

    API_KEY = 13
    API_VERSION = 3
    RESPONSE_TYPE = _LeaveResponse
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("members", Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")))),
    )


class _Leave(Request[_LeaveStruct]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 13

    def __init__(self, group: str, instance: str) -> None:
        self._group = group
        self._instance = instance

    def build(self, request_struct_class: type[_LeaveStruct]) -> _LeaveStruct:
        return request_struct_class(self._group, [("", self._instance)])


async def leave_group(config: Config, group: str, instance: str) -> bool:
    """Take the static member out of its group, so that its partitions move at once. False where that failed, which
    costs the others one session timeout and nothing else."""
    admin = AIOKafkaAdminClient(**connection(config.kafka), request_timeout_ms=5000)
    try:
        await admin.start()
        coordinator: Any = await admin.find_coordinator(group)
        response: Any = await admin._send_request(_Leave(group, instance), coordinator)
        failed = response.error_code or any(member[2] for member in response.members)
        return not failed
    except Exception as error:
        _log.warning("could not leave the group: %s", error, extra={"group": group, "instance": instance})
        return False
    finally:
        await admin.close()
