"""`ContextPublisher`: what a gateway calls for each request, so that a cache that knows only its id can be judged.

The same rules as for an engine: a call appends to a bounded buffer and returns. It never waits, never raises, never
logs. A thread, started by the first call, does the rest.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from ..schemas.config import KafkaConfig
from ..schemas.context import RequestContext, decode_context, encode_context
from ..schemas.errors import BadInput
from ..schemas.topics import CONTEXT
from .exits import close_with_worker, forget, keep
from .outbox import Outbox
from .sender_loop import Loop
from .telling import Teller, log
from .transport import Transport

LIMIT = 100_000
CLOSE_S = 2.0
STOP_S = 1.0


@dataclass(frozen=True, slots=True)
class ContextStats:
    """`waiting`: accepted and not acknowledged yet. `lost`: given up while the broker was away, or published after
    `close`. `refused`: calls whose values no reader would take. `failures`: attempts that were not acknowledged."""

    sent: int
    waiting: int
    lost: int
    refused: int
    failures: int


class ContextPublisher:
    """Publishes request contexts. At most `limit` wait; beyond that the oldest are given up, since a resolver would
    have no use for them any more. `clock_ns` gives the time of calls that name none."""

    def __init__(
        self, transport: Transport, *, limit: int = LIMIT, close_s: float = CLOSE_S,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:  # fmt: skip
        self._transport, self._limit, self._close_s, self._clock = transport, limit, close_s, clock_ns
        self._closed = False
        self._open(transport)
        keep(self)

    @classmethod
    def to_kafka(cls, kafka: KafkaConfig | None = None, *, limit: int = LIMIT) -> Self:
        """A publisher to `kvtrail.context` on a broker. Raises `ConfigError` for a compression that needs a package
        which is not installed."""
        from .kafka import KafkaTransport

        return cls(KafkaTransport(kafka or KafkaConfig(), topic=CONTEXT), limit=limit)

    def publish(
        self,
        request_id: str,
        tenant_id: str,
        *,
        principal: str | None = None,
        template_id: str | None = None,
        template_digest: str | None = None,
        tool_schema_digest: str | None = None,
        corpus_digest: str | None = None,
        isolation_domain: str | None = None,
        trace_id: str = "",
        at_us: int | None = None,
    ) -> None:
        """Who asked under `request_id`, and with what. Fields: `schemas.context.RequestContext`."""
        try:
            self._outbox.put(
                RequestContext(
                    request_id=request_id, tenant_id=tenant_id,
                    at_us=self._clock() // 1000 if at_us is None else at_us, principal=principal,
                    template_id=template_id, template_digest=template_digest, tool_schema_digest=tool_schema_digest,
                    corpus_digest=corpus_digest, isolation_domain=isolation_domain, trace_id=trace_id,
                )
            )  # fmt: skip
            if self._thread is None:
                self._start()
        except Exception:  # no thread to be had: the next call tries again
            self._refused += 1

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until what was published is acknowledged, or refused; False when the time is over first. It blocks:
        from a coroutine use `await asyncio.to_thread(publisher.flush)`."""
        end = time.monotonic() + timeout_s
        while self._outbox.waiting and time.monotonic() < end:
            time.sleep(0.005)
        return not self._outbox.waiting

    def close(self, timeout_s: float | None = None) -> bool:
        """Drain for at most `timeout_s`, then stop. True when everything was acknowledged. Called at exit for whoever
        forgets it."""
        if not self._closed:
            self._closed = True
            forget(self)
            self._patience_s = self._close_s if timeout_s is None else timeout_s
            self._stopping.set()
            if self._thread is not None:
                self._ring()
                self._thread.join(self._patience_s + 2 * STOP_S)
            self._drained = self._outbox.close()
        return self._drained

    def stats(self) -> ContextStats:
        """Counts up to now."""
        outbox = self._outbox
        waiting = 0 if self._closed else outbox.waiting
        return ContextStats(
            sent=outbox.sent, waiting=waiting, lost=outbox.lost + outbox.waiting - waiting, refused=self._refused,
            failures=outbox.failures,
        )  # fmt: skip

    def after_fork(self) -> None:
        """In a forked child: begin anew; what the parent accepted is the parent's to send."""
        _inherited.append((self._outbox, self._transport, self._thread))
        self._open(self._transport.fresh())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open(self, transport: Transport) -> None:
        self._transport = transport
        self._outbox: Outbox[RequestContext] = Outbox(transport, self._encode, self._limit)
        self._refused = 0
        self._drained = True
        self._patience_s = self._close_s
        self._stopping: threading.Event = threading.Event()
        # Re-entrant, since a signal handler may publish while the thread is being started.
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._teller = Teller()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="kvtrail-context", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    raise
                close_with_worker(self)

    def _encode(self, context: RequestContext) -> tuple[str, bytes] | None:
        """In our own thread, as any reader would check it."""
        try:
            record = encode_context(context)
            if decode_context(record) != context:  # bytes are written as Base64 text
                raise TypeError
        except Exception as error:
            self._refused += 1
            field = error.field if isinstance(error, BadInput) else "context"
            self._teller.refused(field, f"({type(error).__name__})")
            return None
        return context.request_id, record

    def _ring(self) -> None:
        loop, over = self._loop, self._over
        if loop is not None and over is not None:
            with suppress(RuntimeError):  # it has ended in between
                loop.call_soon_threadsafe(over.set)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=Loop) as runner:
                runner.run(self._main())
        except Exception:
            log.exception("the sender of request contexts has failed")

    async def _main(self) -> None:
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        sending = asyncio.create_task(self._outbox.run())
        if not self._stopping.is_set():
            await self._over.wait()
        await self._outbox.settle(self._patience_s)
        sending.cancel()
        await asyncio.wait({sending})
        try:
            async with asyncio.timeout(STOP_S):
                await self._transport.stop()
        except Exception as error:
            log.debug("closing the way to the context topic failed: %r", error)


_inherited: list[object] = []
