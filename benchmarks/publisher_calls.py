"""How long a call takes in the engine's thread: each transport with the broker up, down, stopped, and the yardsticks.

Two patterns. "after a sleep": the thread wakes and makes its burst of calls at once, with whatever its caches still
hold; the slowest one in a hundred is the first of a burst. "in a step": it wakes, does a millisecond of an engine's own
work, and then makes the calls, which is what a decode step looks like.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

from ..cli.local.kafka import KafkaBroker
from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..schemas.config import KafkaConfig, PublisherConfig
from .publisher_peers import Call, Publisher, agent_process, aiokafka_call, hits, logging_call, span_call

BURST_S = 0.01
"""Calls come in bursts, as an engine's decode steps make them."""
STEP_S = 0.001
SEQUENCES = 64


class Result(NamedTuple):
    """Nanoseconds a call, sorted."""

    case: str
    pattern: str
    threads: int
    times: list[int]

    def at(self, share: float) -> float:
        """A quantile in microseconds."""
        return self.times[min(len(self.times) - 1, int(share * len(self.times)))] / 1000


def idle() -> None:
    """No work between waking and calling."""


def step() -> None:
    """About a millisecond of what an engine does between two model runs: its batch, one dictionary a sequence."""
    end = time.perf_counter() + STEP_S
    while time.perf_counter() < end:
        batch: list[dict[str, object]] = [
            {"sequence": n, "tokens": list(range(n, n + 32)), "blocks": {at: n + at for at in range(8)}, "done": False}
            for n in range(SEQUENCES)
        ]
        batch.sort(key=_sequence, reverse=True)


def _sequence(each: dict[str, object]) -> int:
    return cast("int", each["sequence"])


PATTERNS: dict[str, Callable[[], None]] = {"after a sleep": idle, "in a step": step}


def measure(
    case: str, call: Call, *, threads: int, rate: int, seconds: float, pattern: str = "after a sleep"
) -> Result:  # fmt: skip
    """`rate` calls a second over all threads."""
    burst = max(1, int(rate * BURST_S / threads))
    rounds = max(1, int(seconds / BURST_S))
    times: list[list[int]] = [[] for _ in range(threads)]
    clock, before = time.perf_counter_ns, PATTERNS[pattern]

    def work(mine: list[int]) -> None:
        due = time.monotonic()
        for _ in range(rounds):
            before()
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
    return Result(case, pattern, threads, sorted(one for mine in times for one in mine))


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
    """Every transport with the broker up, down and stopped, beside the yardsticks, in each pattern."""

    def run(case: str, call: Call) -> list[Result]:
        return [
            measure(case, call, threads=threads, rate=rate, seconds=seconds, pattern=pattern) for pattern in PATTERNS
        ]

    with logging_call(folder) as call:
        yield from run("logging", call)
    with aiokafka_call(broker.config) as call:
        yield from run("aiokafka.send", call)
    with span_call() as span:
        if span is not None:
            yield from run("span", span)
    nowhere = KafkaConfig(bootstrap="127.0.0.1:1")
    small = PublisherConfig(max_events=5_000, close_s=0.1)  # so that most calls meet the bound
    spool = PublisherConfig(spool_directory=folder / "spool")

    def case(name: str, publisher: Publisher, halt: bool = False) -> list[Result]:
        call = hits(publisher)
        call(0)
        publisher.flush(5)
        with stopped(broker) if halt else contextlib.nullcontext():
            results = run(name, call)
        publisher.close()
        stats = publisher.stats()
        notes.append(
            f"{name}, {threads} threads: accepted {stats.accepted}, sent {stats.sent}, dropped {dict(stats.dropped)}"
        )
        return results

    for name, kafka, config, halt in (
        ("up", broker.config, None, False),
        ("down", nowhere, small, False),
        ("stopped", broker.config, None, True),
        ("spool, up", broker.config, spool, False),
        ("spool, down", nowhere, spool, False),
        ("spool, stopped", broker.config, spool, True),
    ):
        yield from case(name, LifecyclePublisher.to_kafka(f"bench {name} {threads}", kafka, config), halt)
    for name, kafka, halt in (("up", broker.config, False), ("down", nowhere, False), ("stopped", broker.config, True)):
        with agent_process(kafka, folder / f"agent {name} {threads}") as (path, _):
            yield from case(f"agent, {name}", AgentPublisher("bench", path), halt)
