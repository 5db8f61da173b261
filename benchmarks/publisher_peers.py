"""What the publisher is measured beside: what engines already pay for, at the same pace in the same run."""

import asyncio
import contextlib
import json
import logging
import logging.handlers
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from aiokafka import AIOKafkaProducer

from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..producers.kafka_client import connection
from ..schemas.config import KafkaConfig
from ..schemas.identity import PrefixKey
from ..schemas.topics import LIFECYCLE

Call = Callable[[int], object]
Publisher = LifecyclePublisher | AgentPublisher

IDENTITY = PrefixKey(
    tenant_id="northwind", model_id="smol", weights_digest="a" * 64, kv_dtype="float16", tokenizer_id="smol",
    template_id="support_v7", template_digest="b" * 64, tool_schema_digest="", token_ids_digest="c" * 64,
)  # fmt: skip
KEYS = [f"{n:064x}" for n in range(512)]
REQUESTS = [(f"request-{n}", 16 * (n + 1)) for n in range(64)]
"""Of the sequences of a batch: the request's id, and the tokens that its hits reuse."""


def hits(publisher: Publisher) -> Call:
    """A hit, as an engine reports it."""
    hit = publisher.hit

    def call(n: int) -> None:
        request, tokens = REQUESTS[n & 63]
        hit(KEYS[n & 511], IDENTITY, store="kv", tier="nvme", reused_tokens=tokens, request_id=request)

    return call


@contextlib.contextmanager
def logging_call(directory: Path) -> Iterator[Call]:
    """A line through a `QueueHandler`, written to a file by its listener."""
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logger = logging.getLogger("kvtrail_benchmarks.yardstick")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = logging.handlers.QueueHandler(lines)
    logger.addHandler(handler)
    listener = logging.handlers.QueueListener(lines, logging.FileHandler(directory / "yardstick.log"))
    listener.start()
    try:
        yield lambda n: logger.info("cache.hit key=%s tenant=%s reused=%d request=%s", n, "northwind", 8992, "r1")
    finally:
        listener.stop()
        logger.removeHandler(handler)


@contextlib.contextmanager
def aiokafka_call(kafka: KafkaConfig) -> Iterator[Call]:
    """One event as JSON, handed to an aiokafka producer in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**connection(kafka), enable_idempotence=True, linger_ms=50)
        await producer.start()
        return producer

    producer = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    wire = IDENTITY.to_wire()

    def call(n: int) -> object:
        value = json.dumps({"key": KEYS[n % 512], "identity": wire, "reused": 8992, "request_id": "r1"}).encode()
        return asyncio.run_coroutine_threadsafe(producer.send(LIFECYCLE, value, key=b"n:yardstick"), loop)

    try:
        yield call
    finally:
        asyncio.run_coroutine_threadsafe(producer.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextlib.contextmanager
def span_call() -> Iterator[Call | None]:
    """A span with four attributes, exported to nowhere; None where OpenTelemetry is not installed."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    except ImportError:
        yield None
        return

    class Nowhere(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    tracer = provider.get_tracer("yardstick")

    def call(n: int) -> None:
        span = tracer.start_span("cache.hit")
        span.set_attributes({"key": KEYS[n % 512], "tenant": "northwind", "reused": 8992, "request": "r1"})
        span.end()

    yield call
    provider.shutdown()


@contextlib.contextmanager
def agent_process(kafka: KafkaConfig, folder: Path, *, spool_bytes: int = 2**30) -> Iterator[tuple[Path, int]]:
    """`kvtrail agent` in a process of its own; its socket and process id."""
    folder.mkdir(parents=True)
    path = folder / "agent.sock"
    environ = os.environ | {
        "KVTRAIL_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "KVTRAIL_AGENT__SOCKET": str(path),
        "KVTRAIL_PUBLISHER__SPOOL_DIRECTORY": str(folder / "spool"),
        "KVTRAIL_PUBLISHER__SPOOL_BYTES": str(spool_bytes),
    }
    agent = subprocess.Popen(
        [sys.executable, "-m", "kvtrail.cli", "agent"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert agent.stdout is not None
    with agent:
        try:
            if b"ready" not in agent.stdout.readline():
                raise RuntimeError("the agent did not start")
            yield path, agent.pid
        finally:
            agent.terminate()
            agent.wait(30)
