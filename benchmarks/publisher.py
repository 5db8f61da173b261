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
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from ..cli.local.kafka import KafkaBroker
from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..schemas.config import KafkaConfig, PublisherConfig
from ..streams.topics import ensure_topics
from .publisher_busy import Publisher, loss
from .publisher_peers import IDENTITY, KEYS, Call, agent_process, aiokafka_call, logging_call, span_call

BURST_S = 0.01
"""Calls come in bursts, as an engine's decode steps make them."""
OUTAGE_RATE = 20_000
SPOOL_BYTES = 256 * 2**20


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
        with agent_process(kafka, folder / f"agent {name} {threads}") as (path, _):
            yield case(f"agent, {name}", AgentPublisher("bench", path), halt)


def outage(publisher: Publisher, rate: int, seconds: float, spool: Path | None, others: Sequence[int] = ()) -> str:
    """How much memory an outage costs, and what becomes of the events."""
    call, sizes, end = hits(publisher), [], time.monotonic() + seconds
    while time.monotonic() < end:
        measure("", call, threads=1, rate=rate, seconds=min(5.0, max(0.1, end - time.monotonic())))
        sizes.append([_resident_mb(process) for process in (os.getpid(), *others)])
    disk = sum(file.stat().st_size for file in spool.rglob("*.seg")) / 2**20 if spool is not None else 0.0
    publisher.close(1.0)
    stats = publisher.stats()
    of = [f"{first:.0f} MB at first, {max(column):.0f} at most, {column[-1]:.0f} at the end"
          for column in zip(*sizes, strict=True) for first in column[:1]]  # fmt: skip
    return (
        f"resident: engine {', agent '.join(of)}; {disk:.0f} MB on disk; accepted {stats.accepted}, "
        f"safe {stats.sent}, dropped {dict(stats.dropped)}"
    )


def _resident_mb(process: int) -> float:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 2**20


def outages(folder: Path, rate: int, seconds: float) -> Iterator[tuple[str, str]]:
    """Without a spool, with one, and through an agent."""
    nowhere = KafkaConfig(bootstrap="127.0.0.1:1")
    yield "in memory", outage(LifecyclePublisher.to_kafka("bench", nowhere), rate, seconds, None)
    place = folder / "outage"
    config = PublisherConfig(spool_directory=place, spool_bytes=SPOOL_BYTES)
    yield "spool", outage(LifecyclePublisher.to_kafka("bench", nowhere, config), rate, seconds, place)
    with agent_process(nowhere, folder / "agent outage", spool_bytes=SPOOL_BYTES) as (path, process):
        publisher = AgentPublisher("bench agent", path)
        yield "agent", outage(publisher, rate, seconds, path.with_name("spool"), [process])


PARTS = ("calls", "busy", "outage")


@click.command()
@click.option("--part", type=click.Choice(PARTS), help="One part only.")
@click.option("--rate", default=5_000, show_default=True, help="Calls a second, over all threads.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of each measurement of calls.")
@click.option("--turns", default=12, show_default=True, help="Turns of the busy loop, two seconds and a half each.")
@click.option("--outage-seconds", default=10.0, show_default=True, help="Length of each outage at 20 000 events/s.")
@click.option("--realtime", is_flag=True, help="The busy loop goes before all other processes. Root only.")
def main(
    part: str | None, rate: int, seconds: float, turns: int, outage_seconds: float, realtime: bool
) -> None:  # fmt: skip
    """Measure and print the tables: about five minutes."""
    logging.getLogger("kvtrail").setLevel(logging.CRITICAL)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        folder, notes = Path(name), list[str]()
        asyncio.run(ensure_topics(broker.config))
        if part in (None, "calls"):
            _calls(broker, folder, rate, seconds, notes)
        if part in (None, "busy"):
            _busy(broker, folder, turns, realtime)
        if part in (None, "outage"):
            click.echo(
                f"\noutage of {outage_seconds:g} s at {OUTAGE_RATE} events/s, spools bounded at {SPOOL_BYTES >> 20} MB"
            )
            for title, account in outages(folder, OUTAGE_RATE, outage_seconds):
                click.echo(f"{title:11} {account}")
        for note in notes:
            click.echo(note)


def _calls(broker: KafkaBroker, folder: Path, rate: int, seconds: float, notes: list[str]) -> None:
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


def _busy(broker: KafkaBroker, folder: Path, turns: int, realtime: bool) -> None:
    click.echo("\nbusy loop: stopped by the sender; throughput lost beyond the calls' own time; the sender's thread")
    with agent_process(broker.config, folder / "agent busy") as (path, _):
        if realtime:  # for this thread and those that it starts: not for the broker and the agent
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        for pace in (5_000, 20_000):
            for title, publisher in (
                ("in process", LifecyclePublisher.to_kafka("bench", broker.config)),
                ("spool", LifecyclePublisher.to_kafka(
                    f"bench spool {pace}", broker.config, PublisherConfig(spool_directory=folder / "spool"))),
                ("agent", AgentPublisher("bench agent", path)),
            ):  # fmt: skip
                call = hits(publisher)
                call(0)
                publisher.flush(10)
                found = loss(publisher, call, pace, turns)
                publisher.close()
                click.echo(
                    f"{title:11} {pace:6} events/s  stopped {found.stopped:6.2%}  lost {found.lost:6.2%} "
                    f"[{found.low:6.2%} to {found.high:6.2%}]  noise {found.noise:6.2%}  "
                    f"thread {found.thread:6.2%} of a core, {found.records:.1f} records/s"
                )


if __name__ == "__main__":
    main()
