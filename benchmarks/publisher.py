"""What a publisher call costs the thread that makes it: broker up and down, one thread and four.

Run `python -m kvtrail.benchmarks.publisher`. It starts a broker of its own unless given one. The yardstick, in the
same run at the same pace, is what engines already pay for: `logging` through a `QueueHandler`. Absolute numbers hold
for one machine; the ratios are what is compared between runs. The longest call is the interpreter lock's, not ours.
"""

import asyncio
import contextlib
import logging
import logging.handlers
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from ..cli.local.kafka import KafkaBroker
from ..producers import LifecyclePublisher
from ..schemas.config import KafkaConfig, PublisherConfig
from ..schemas.identity import PrefixKey
from ..streams.topics import ensure_topics

BURST_S = 0.01
"""Calls come in bursts, as an engine's decode steps make them."""

IDENTITY = PrefixKey(
    tenant_id="northwind", model_id="smol", weights_digest="a" * 64, kv_dtype="float16", tokenizer_id="smol",
    template_id="support_v7", template_digest="b" * 64, tool_schema_digest="", token_ids_digest="c" * 64,
)  # fmt: skip

Call = Callable[[int], None]


class Result(NamedTuple):
    """Nanoseconds a call, sorted."""

    case: str
    threads: int
    times: list[int]

    def at(self, share: float) -> float:
        """A quantile in microseconds."""
        return self.times[min(len(self.times) - 1, int(share * len(self.times)))] / 1000


def measure(case: str, call: Call, *, threads: int, rate: int, seconds: float) -> Result:
    """`rate` calls a second over all threads."""
    burst = max(1, int(rate * BURST_S / threads))
    rounds = max(1, int(seconds / BURST_S))
    times: list[list[int]] = [[] for _ in range(threads)]
    clock = time.perf_counter_ns

    def work(mine: list[int]) -> None:
        due = time.monotonic()
        for _ in range(rounds):
            for n in range(burst):
                start = clock()
                call(n)
                mine.append(clock() - start)
            due += BURST_S
            time.sleep(max(0.0, due - time.monotonic()))

    workers = [threading.Thread(target=work, args=(mine,)) for mine in times]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Result(case, threads, sorted(one for mine in times for one in mine))


@contextlib.contextmanager
def logging_call(directory: Path) -> Iterator[Call]:
    """A line through a `QueueHandler`, written to a file by its listener."""
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logger = logging.getLogger("kvtrail.benchmarks.yardstick")
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
def publisher_call(kafka: KafkaConfig, notes: list[str], case: str) -> Iterator[Call]:
    """A hit through a publisher; without a broker its buffer is small, so that most calls meet the bound."""
    config = PublisherConfig() if case == "broker up" else PublisherConfig(close_s=0.1, max_events=5_000)
    publisher = LifecyclePublisher.to_kafka("bench", kafka, config)
    keys = [f"{n:064x}" for n in range(512)]

    def call(n: int) -> None:
        publisher.hit(keys[n % 512], IDENTITY, store="kv", tier="nvme", reused_tokens=8992, request_id="r1")

    yield call
    publisher.close()
    stats = publisher.stats()
    notes.append(f"{case}: accepted {stats.accepted}, sent {stats.sent}, dropped {dict(stats.dropped)}")


@contextlib.contextmanager
def broker(bootstrap: str, directory: Path) -> Iterator[KafkaConfig]:
    """The broker that was named, or one of our own; with the topics."""
    with contextlib.ExitStack() as stack:
        kafka = (
            KafkaConfig(bootstrap=bootstrap)
            if bootstrap
            else stack.enter_context(KafkaBroker(directory / "kafka")).config
        )
        asyncio.run(ensure_topics(kafka))
        yield kafka


@click.command()
@click.option("--bootstrap", default="", help="A broker to use; default: one of its own.")
@click.option("--rate", default=5_000, show_default=True, help="Calls a second, over all threads.")
@click.option("--seconds", default=4.0, show_default=True, help="Length of each measurement.")
def main(bootstrap: str, rate: int, seconds: float) -> None:
    """Measure and print the table."""
    logging.getLogger("kvtrail").setLevel(logging.CRITICAL)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    results: list[Result] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder, broker(bootstrap, Path(folder)) as kafka:
        for threads in (1, 4):

            def run(case: str, call: Call, threads: int = threads) -> None:
                results.append(measure(case, call, threads=threads, rate=rate, seconds=seconds))

            with logging_call(Path(folder)) as call:
                run("logging", call)
            with publisher_call(kafka, notes, "broker up") as call:
                run("broker up", call)
            with publisher_call(KafkaConfig(bootstrap="127.0.0.1:1"), notes, "broker down") as call:
                run("broker down", call)
    click.echo(f"{rate} calls/s in all, bursts every {BURST_S * 1000:.0f} ms, {seconds:g} s each; microseconds a call")
    click.echo(f"{'':12} threads    calls     p50     p99     max   p50/logging  p99/logging")
    for result in results:
        base = next(one for one in results if one.case == "logging" and one.threads == result.threads)
        click.echo(
            f"{result.case:12} {result.threads:7} {len(result.times):8} {result.at(0.5):7.2f} {result.at(0.99):7.2f} "
            f"{result.at(1):7.0f} {result.at(0.5) / base.at(0.5):13.2f} {result.at(0.99) / base.at(0.99):12.2f}"
        )
    for note in notes:
        click.echo(note)


if __name__ == "__main__":
    main()
