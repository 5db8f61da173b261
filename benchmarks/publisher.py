"""What publishing costs the engine: the calls, and what goes on behind them.

Run `python -m kvtrail.benchmarks.publisher`. It starts a broker and an agent of its own. Yardsticks in the same run at
the same pace: `logging` through a `QueueHandler`, a bare `aiokafka` send, and an OpenTelemetry span where that is
installed. Absolute numbers hold for one machine; the ratios are what is compared between runs. The longest call is the
interpreter lock's, not ours.
"""

import asyncio
import contextlib
import logging
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from ..cli.local.kafka import KafkaBroker
from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..schemas.config import KafkaConfig, PublisherConfig
from ..streams.topics import ensure_topics
from .publisher_peers import IDENTITY, KEYS, Call, agent_process, aiokafka_call, logging_call, span_call

BURST_S = 0.01
"""Calls come in bursts, as an engine's decode steps make them."""
ROUND_S = 0.5
Publisher = LifecyclePublisher | AgentPublisher


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


def hits(publisher: Publisher) -> Call:
    """A hit, as an engine reports it."""
    hit = publisher.hit
    return lambda n: hit(KEYS[n % 512], IDENTITY, store="kv", tier="nvme", reused_tokens=8992, request_id="r1")


@contextlib.contextmanager
def stopped(broker: KafkaBroker) -> Iterator[None]:
    """The broker does not answer, and keeps its connections."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def latencies(
    broker: KafkaBroker, folder: Path, *, threads: int, rate: int, seconds: float, notes: list[str]
) -> Iterator[Result]:
    """Every transport with the broker up, down and stopped, beside the yardsticks."""

    def run(case: str, call: Call) -> Result:
        return measure(case, call, threads=threads, rate=rate, seconds=seconds)

    with logging_call(folder) as call:
        yield run("logging", call)
    with aiokafka_call(broker.config) as call:
        yield run("aiokafka.send", call)
    with span_call() as span:
        if span is not None:
            yield run("span", span)
    nowhere = KafkaConfig(bootstrap="127.0.0.1:1")
    small = PublisherConfig(max_events=5_000, close_s=0.1)  # so that most calls meet the bound
    spool = PublisherConfig(spool_directory=folder / "spool")

    def case(name: str, publisher: Publisher, halt: bool = False) -> Result:
        call = hits(publisher)
        call(0)
        publisher.flush(5)
        with stopped(broker) if halt else contextlib.nullcontext():
            result = run(name, call)
        publisher.close()
        stats = publisher.stats()
        notes.append(
            f"{name}, {threads} threads: accepted {stats.accepted}, sent {stats.sent}, dropped {dict(stats.dropped)}"
        )
        return result

    for name, kafka, config, halt in (
        ("up", broker.config, None, False),
        ("down", nowhere, small, False),
        ("stopped", broker.config, None, True),
        ("spool, up", broker.config, spool, False),
        ("spool, down", nowhere, spool, False),
        ("spool, stopped", broker.config, spool, True),
    ):
        yield case(name, LifecyclePublisher.to_kafka(f"bench {name} {threads}", kafka, config), halt)
    for name, kafka, halt in (("up", broker.config, False), ("down", nowhere, False), ("stopped", broker.config, True)):
        with agent_process(kafka, folder / f"agent {name} {threads}") as path:
            yield case(f"agent, {name}", AgentPublisher("bench", path), halt)


def busy(call: Call, rate: int, seconds: float) -> float:
    """Units of work a second in a loop that also makes `rate` calls a second, never sleeps, never lets go of the
    interpreter by itself."""
    work, made, began = 0, 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        due = int(spent * rate)
        for n in range(made, due):
            call(n)
        made = due
        total = 0
        for n in range(2_000):
            total += n * n % 7
        work += 1
    return work / spent


class Loss(NamedTuple):
    """Medians over rounds: the share of a busy loop's throughput that is lost beyond the calls' own time; the same
    between two rounds that are alike, which is this machine's noise; and the processor time of the thread behind."""

    lost: float
    noise: float
    thread: float


def loss(publisher: Publisher, rate: int, rounds: int) -> Loss:
    """By turns: the calls alone, the calls with what is behind them, the calls alone."""
    real = publisher._buffer.put
    call = hits(publisher)
    lost, noise, shares = [], [], []
    alike: deque[object] = deque(maxlen=rate // 10)  # holds as much for as long as the buffer does
    for _ in range(rounds):
        _divert(publisher, alike.append)
        before = busy(call, rate, ROUND_S)
        _divert(publisher, real)
        used = _thread_s(publisher)
        beside = busy(call, rate, ROUND_S)
        shares.append((_thread_s(publisher) - used) / ROUND_S)
        _divert(publisher, alike.append)
        after = busy(call, rate, ROUND_S)
        _divert(publisher, real)
        lost.append(1 - 2 * beside / (before + after))
        noise.append(abs(1 - after / before))
        publisher.flush(10)
    return Loss(statistics.median(lost), statistics.median(noise), statistics.median(shares))


def _divert(publisher: Publisher, put: Callable[..., None]) -> None:
    if isinstance(publisher, LifecyclePublisher):
        publisher._put = put
    else:
        publisher._buffer.put = put  # type: ignore[method-assign]  # the call's own time, without what is behind it


def _thread_s(publisher: Publisher) -> float:
    behind = publisher._sender if isinstance(publisher, LifecyclePublisher) else publisher._link
    assert behind is not None and behind._thread.native_id is not None
    schedule = Path(f"/proc/self/task/{behind._thread.native_id}/schedstat").read_text()
    return int(schedule.split()[0]) / 1e9


def outage(folder: Path, rate: int, seconds: float) -> str:
    """How much memory an outage costs, with a spool on disk."""
    config = PublisherConfig(spool_directory=folder / "outage", spool_bytes=256 * 2**20)
    publisher = LifecyclePublisher.to_kafka("bench outage", KafkaConfig(bootstrap="127.0.0.1:1"), config)
    call, sizes, end = hits(publisher), [], time.monotonic() + seconds
    while time.monotonic() < end:
        measure("", call, threads=1, rate=rate, seconds=min(5.0, max(0.1, end - time.monotonic())))
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20)
    publisher.close()
    stats = publisher.stats()
    return (
        f"outage of {seconds:g} s at {rate} events/s: resident {sizes[0]:.0f} MB at first, {max(sizes):.0f} MB at "
        f"most, {sizes[-1]:.0f} MB at the end; {stats.spooled_bytes / 2**20:.0f} MB on disk; "
        f"dropped {dict(stats.dropped)}"
    )


@click.command()
@click.option("--rate", default=5_000, show_default=True, help="Calls a second, over all threads.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of each measurement of calls.")
@click.option("--rounds", default=15, show_default=True, help="Rounds of the busy loop, a second and a half each.")
@click.option("--outage-seconds", default=20.0, show_default=True, help="Length of the outage at 20 000 events/s.")
def main(rate: int, seconds: float, rounds: int, outage_seconds: float) -> None:
    """Measure and print the tables."""
    logging.getLogger("kvtrail").setLevel(logging.CRITICAL)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        folder, notes = Path(name), list[str]()
        asyncio.run(ensure_topics(broker.config))
        click.echo(f"{rate} calls/s in all, bursts every {BURST_S * 1000:.0f} ms; microseconds a call")
        click.echo(f"{'':15} threads    calls     p50     p99     max   p50/logging  p99/logging")
        for threads in (1, 4):
            base: Result | None = None
            for result in latencies(broker, folder, threads=threads, rate=rate, seconds=seconds, notes=notes):
                base = base or result
                click.echo(
                    f"{result.case:15} {threads:7} {len(result.times):8} {result.at(0.5):7.2f} {result.at(0.99):7.2f} "
                    f"{result.at(1):7.0f} {result.at(0.5) / base.at(0.5):13.2f} {result.at(0.99) / base.at(0.99):12.2f}"
                )
        click.echo("\nbusy loop: throughput lost beyond the calls' own time, and the publisher's thread")
        with agent_process(broker.config, folder / "agent busy") as path:
            for pace in (5_000, 20_000):
                for title, publisher in (
                    ("in process", LifecyclePublisher.to_kafka("bench", broker.config)),
                    ("spool", LifecyclePublisher.to_kafka(
                        "bench spool", broker.config, PublisherConfig(spool_directory=folder / "spool"))),
                    ("agent", AgentPublisher("bench agent", path)),
                ):  # fmt: skip
                    hits(publisher)(0)
                    publisher.flush(10)
                    found = loss(publisher, pace, rounds)
                    publisher.close()
                    click.echo(
                        f"{title:15} {pace:6} events/s  lost {found.lost:7.2%}  noise {found.noise:7.2%}  "
                        f"thread {found.thread:7.2%} of a core"
                    )
        click.echo("\n" + outage(folder, 20_000, outage_seconds))
        for note in notes:
            click.echo(note)


if __name__ == "__main__":
    main()
