"""The transport to Kafka: an idempotent aiokafka producer, replaced whenever it has failed.

A producer is cheap to build and several of its failures leave it stuck (aiokafka #1017: out-of-order sequence after a
broker's restart; #759: calls after a failed start hang), so none is ever mended: after any failure the next record
gets a new one. What the old one may still have delivered arrives twice and is removed by its event ids.
"""

import asyncio
import importlib.util
import os
import socket
from collections.abc import Awaitable
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    RecordTooLargeError,
)

from ..schemas.config import KafkaConfig
from ..schemas.errors import ConfigError
from ..schemas.topics import LIFECYCLE
from .client_end import end
from .client_logs import quieten, unquieten
from .kafka_client import connection
from .transport import RecordRejected, TransportError

T = TypeVar("T")

MAX_BATCH_BYTES = 256 * 1024
REQUEST_TIMEOUT_S = 10.0
ACK_TIMEOUT_S = 30.0
"""How long a record may go unacknowledged before its producer counts as stuck."""
_NEVER_TAKEN = (MessageSizeTooLargeError, RecordListTooLargeError, RecordTooLargeError, CorruptRecordException)


class _Link:
    """One producer, and what it has not acknowledged: aiokafka leaves the futures of a stopped one pending."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.flying: set[asyncio.Future[Any]] = set()
        self.is_broken = False

    def give_up(self) -> None:
        """Whoever waits for an answer has one: that there will be none."""
        self.is_broken = True
        for future in self.flying:
            if not future.done():
                future.set_exception(_unanswered("replaced"))


class KafkaTransport:
    """Records to one topic, keyed by home, `acks=all`, idempotent.

    `start` and `send` raise `TransportError` with `reason` the client's error name. Raises `ConfigError` for a
    compression whose package is missing.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        topic: str = LIFECYCLE,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        ack_timeout_s: float = ACK_TIMEOUT_S,
    ) -> None:
        if kafka.compression in ("zstd", "snappy") and importlib.util.find_spec("cramjam") is None:
            raise ConfigError(
                "needs a package that is not installed.",
                field="kafka.compression",
                remedy="Run: pip install cramjam; or use none or gzip.",
            )
        self.topic = topic
        self.producers_built = 0
        self._kafka = kafka
        self._request_timeout_s = request_timeout_s
        self._ack_timeout_s = ack_timeout_s
        self._link: _Link | None = None
        self._lock: asyncio.Lock | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect and fetch the topic's partitions. Raises `TransportError`."""
        await self._connected()

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        """Deliver one record; returns when all in-sync replicas have it. Raises as the protocol says."""
        link = await self._connected()
        future: asyncio.Future[Any] | None = None
        try:
            # One time limit for both waits, and no task for either: each step of the loop is the engine's time.
            async with asyncio.timeout(self._request_timeout_s) as limit:
                future = await link.producer.send(self.topic, value=record, key=home.encode())
                if link.is_broken:
                    raise _unanswered("replaced")
                link.flying.add(future)
                limit.reschedule(asyncio.get_running_loop().time() + self._ack_timeout_s)
                await future
        except asyncio.CancelledError:
            raise
        except _NEVER_TAKEN as error:
            raise RecordRejected(
                "the broker takes no record of this size.",
                reason=type(error).__name__,
                field="publisher.envelope_bytes",
                remedy="Lower it, or raise the broker's message.max.bytes.",
            ) from error
        except Exception as error:
            self._give_up(link)
            if isinstance(error, TimeoutError) and limit.expired():
                raise (_unanswered("ack_timeout") if future is not None else _unanswering()) from None
            raise _as_transport_error(error) from error
        finally:
            link.flying.discard(future)

    async def stop(self) -> None:
        """Close the connections."""
        if self._link is not None:
            self._give_up(self._link)
        while self._closing:
            await asyncio.wait(set(self._closing))
        unquieten()

    def fresh(self) -> Self:
        """Another transport to the same broker and topic."""
        return type(self)(
            self._kafka,
            topic=self.topic,
            request_timeout_s=self._request_timeout_s,
            ack_timeout_s=self._ack_timeout_s,
        )

    async def _connected(self) -> _Link:
        if self._link is not None:
            return self._link
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._link is None:
                self._link = await self._connect()
            return self._link

    async def _connect(self) -> _Link:
        quieten()
        self.producers_built += 1
        producer = AIOKafkaProducer(
            **connection(self._kafka),
            client_id=f"kvtrail-{socket.gethostname()}-{os.getpid()}",
            enable_idempotence=True,
            acks="all",
            compression_type=None if self._kafka.compression == "none" else self._kafka.compression,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=4 * MAX_BATCH_BYTES,
            linger_ms=0,
            request_timeout_ms=int(self._request_timeout_s * 1000),
            metadata_max_age_ms=30_000,
        )
        try:
            # start() waits for a producer id for ever where the broker goes away behind its back.
            await _within(self._request_timeout_s, producer.start())
            await _within(self._request_timeout_s, producer.partitions_for(self.topic))
        except BaseException as error:
            self._close(producer)
            if isinstance(error, Exception):
                raise _as_transport_error(error) from error
            raise
        return _Link(producer)

    def _give_up(self, link: _Link) -> None:
        """Let a producer go: whoever waits on it tries again, with the next one."""
        if self._link is link:
            self._link = None
        if not link.is_broken:
            link.give_up()
            self._close(link.producer)

    def _close(self, producer: Any) -> None:
        task = asyncio.create_task(end(producer))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _within(seconds: float, work: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise _unanswering() from None


def _unanswering() -> TransportError:
    return TransportError("did not answer.", reason="timeout", field="kafka", remedy="Is the broker up?")


def _unanswered(reason: str) -> TransportError:
    return TransportError("did not acknowledge in time.", reason=reason, field="kafka", remedy="Is the broker up?")


def _as_transport_error(error: Exception) -> TransportError:
    if isinstance(error, TransportError):
        return error
    name = type(error).__name__
    if isinstance(error, KafkaError):
        return TransportError(
            f"failed ({name}).", reason=name, field="kafka", remedy="Is the broker up, the topic made?"
        )
    return TransportError(f"failed ({name}).", reason=name, field="kafka.bootstrap", remedy="Check the address.")
