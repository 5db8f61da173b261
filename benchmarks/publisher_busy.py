"""What publishing takes from an engine that computes: a loop that never lets go of the interpreter by itself.

`stopped` is the share of time in which the loop's thread was neither running nor waiting for a processor: the sender
had the interpreter. It is counted by the kernel, is zero without a publisher, and hardly depends on what else the
machine does.

Throughput is compared over many short turns of three kinds in random order. In each the loop makes the same calls:

* alone: into a queue that nobody empties;
* beside: through the publisher, with what is behind it in this process;
* twin: into that queue again, while a publisher in *another process* publishes the same events.

beside against alone is what the loop loses in all. beside against twin is what it loses because the sender shares its
interpreter; twin against alone is what the other core, the caches and the broker take from any process that is busy.
"""

import contextlib
import copy
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..producers import LifecyclePublisher
from ..producers.buffer import NEVER
from .publisher_peers import Call, Publisher

TURN_S = 0.4
LEAD_S = 0.25
"""Before each turn, at its pace: longer than a record waits, so that nothing of the turn before is left."""
TRIM = 0.2
RESAMPLES = 2_000


class Turn(NamedTuple):
    """One stretch of the loop."""

    units: float
    """Of work, a second."""
    stopped: float
    """Share of the time in which the thread could not run because it was not given the interpreter."""


class Share(NamedTuple):
    """A share of the throughput; `low` and `high` enclose the true one in 95 of 100 such measurements."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:6.2%} [{self.low:6.2%} to {self.high:6.2%}]"


class Loss(NamedTuple):
    """Over all turns. Shares; `thread` is the sender's processor time."""

    lost: Share
    here: Share
    elsewhere: Share
    stopped: float
    thread: float
    records: float


def busy(call: Call, rate: int, seconds: float) -> Turn:
    """A loop that also makes `rate` calls a second."""
    work, made = 0, 0
    ran, waited = _schedule(threading.get_native_id())
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        due = int(spent * rate)
        for n in range(made, due):
            call(n)
        made = due
        total = 0
        for n in range(2_000):
            total += n * n % 7
        work += 1
    ran_then, waited_then = _schedule(threading.get_native_id())
    return Turn(work / spent, 1 - (ran_then - ran + waited_then - waited) / spent)


def loss(publisher: Publisher, call: Call, rate: int, seconds: float, twin: Callable[[bool], None]) -> Loss:
    """`seconds` of turns by three; `twin` starts and stops the other process's publishing."""
    real = publisher._put
    apart = copy.copy(publisher._buffer)  # the same call, into a queue that nobody empties
    apart.queue = deque(maxlen=rate // 5)  # holds as much for as long as the buffer does
    apart.limit, apart.alarm = 2**62, NEVER
    order = ["alone", "beside", "twin"]
    random_order = random.Random(1)
    turns: dict[str, list[Turn]] = {kind: [] for kind in order}
    thread = records = 0.0
    rounds = max(3, round(seconds / (TURN_S + LEAD_S) / len(order)))
    for _ in range(rounds):
        random_order.shuffle(order)
        for kind in order:
            publisher._put = real if kind == "beside" else apart.put
            twin(kind == "twin")
            busy(call, rate, LEAD_S)
            before, sent = _thread_s(publisher), publisher.stats().records
            turns[kind].append(busy(call, rate, TURN_S))
            if kind == "beside":
                thread += (_thread_s(publisher) - before) / TURN_S / rounds
                records += (publisher.stats().records - sent) / TURN_S / rounds
            twin(False)
    publisher._put = real

    def compared(one: str, other: str) -> Share:
        return trimmed([1 - a.units / b.units for a, b in zip(turns[one], turns[other], strict=True)])

    stopped = statistics.fmean(one.stopped for one in turns["beside"])
    return Loss(
        compared("beside", "alone"), compared("beside", "twin"), compared("twin", "alone"), stopped, thread, records
    )  # fmt: skip


def trimmed(differences: list[float]) -> Share:
    """The mean without the fifth that is lowest and the fifth that is highest; its interval by resampling."""
    cut = int(TRIM * len(differences))

    def mean(values: list[float]) -> float:
        return statistics.fmean(sorted(values)[cut : len(values) - cut])

    chance = random.Random(2)
    means = sorted(mean(chance.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    return Share(mean(differences), means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1])


@contextlib.contextmanager
def twin_process(kind: str, place: str, folder: Path, rate: int) -> Iterator[Callable[[bool], None]]:
    """A process that publishes as this one does, when it is told to. `kind`: process, spool, agent; `place`: the
    broker's address, or the agent's socket."""
    code = "from kvtrail.benchmarks.publisher_twin import main; main()"
    command = [sys.executable, "-c", code, kind, place, str(folder), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        pipe = other.stdin.fileno()
        if other.stdout.readline() != b"ready\n":
            raise RuntimeError("the other publisher did not start")
        yield lambda on: _tell(pipe, on)
        other.stdin.close()
        other.wait(30)


def _tell(pipe: int, on: bool) -> None:
    os.write(pipe, b"1" if on else b"0")


def _thread_s(publisher: Publisher) -> float:
    behind = publisher._sender if isinstance(publisher, LifecyclePublisher) else publisher._link
    assert behind is not None and behind._thread.native_id is not None
    return _schedule(behind._thread.native_id)[0]


def _schedule(thread: int) -> tuple[float, float]:
    """Seconds in which a thread has run, and in which it waited for a processor."""
    ran, waited, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9
