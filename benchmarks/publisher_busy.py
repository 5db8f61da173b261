"""What publishing takes from an engine that computes: a loop that never lets go of the interpreter by itself.

Two figures. `stopped` is the share of time in which the loop's thread was neither running nor waiting for a processor:
the sender had the interpreter. It is counted by the kernel, is zero without a publisher, and hardly depends on what
else the machine does. `lost` is throughput that is missing beyond the calls' own time, from turns with and without the
sender in one process, and includes what caches and the kernel add; it needs a quiet machine, and says how quiet this
one was.
"""

import copy
import itertools
import statistics
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..producers.buffer import NEVER
from .publisher_peers import Call

Publisher = LifecyclePublisher | AgentPublisher
TURN_S = 0.8
LEAD_S = 0.4
"""Until the sender works as it does all the time."""


class Turn(NamedTuple):
    """One stretch of the loop."""

    units: float
    """Of work, a second."""
    stopped: float
    """Share of the time in which the thread could not run because it was not given the interpreter."""


class Loss(NamedTuple):
    """Over all turns. Shares; `low` and `high` enclose the true median in 95 of 100 such measurements; `noise` is the
    difference between two turns that are alike; `thread` the sender's processor time."""

    lost: float
    low: float
    high: float
    noise: float
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


def loss(publisher: Publisher, call: Call, rate: int, turns: int) -> Loss:
    """By turns: the calls alone, and the calls with what is behind them."""
    real = publisher._put
    apart = copy.copy(publisher._buffer)  # the same call, into a queue that nobody empties
    apart.queue = deque(maxlen=rate // 5)  # holds as much for as long as the buffer does
    apart.limit, apart.alarm = 2**62, NEVER
    alone: list[float] = []
    beside: list[Turn] = []
    thread = records = 0.0
    busy(call, rate, LEAD_S)
    for turn in range(turns + 1):
        publisher.flush(10)
        publisher._put = apart.put
        busy(call, rate, LEAD_S / 4)
        alone.append(busy(call, rate, TURN_S).units)
        publisher._put = real
        if turn < turns:
            busy(call, rate, LEAD_S)
            before, sent = _thread_s(publisher), publisher.stats().records
            beside.append(busy(call, rate, TURN_S))
            thread += (_thread_s(publisher) - before) / TURN_S / turns
            records += (publisher.stats().records - sent) / TURN_S / turns
    lost = sorted(1 - 2 * one.units / (alone[n] + alone[n + 1]) for n, one in enumerate(beside))
    noise = [abs(1 - after / before) for before, after in itertools.pairwise(alone)]
    low, high = _enclosing(len(lost))
    stopped = statistics.fmean(one.stopped for one in beside)
    return Loss(
        statistics.median(lost), lost[low], lost[high], statistics.median(noise), stopped, thread, records
    )  # fmt: skip


def _enclosing(count: int) -> tuple[int, int]:
    """Places in a sorted sample between which the median lies, with 95 of 100 certainty: no shape is assumed."""
    below, at, total = 0.0, -1, 2.0**count
    chance = 1.0
    for k in range(count):
        if below + chance / total > 0.025:
            break
        below += chance / total
        at = k
        chance = chance * (count - k) / (k + 1)
    at = max(at, 0)
    return at, count - 1 - at


def _thread_s(publisher: Publisher) -> float:
    behind = publisher._sender if isinstance(publisher, LifecyclePublisher) else publisher._link
    assert behind is not None and behind._thread.native_id is not None
    return _schedule(behind._thread.native_id)[0]


def _schedule(thread: int) -> tuple[float, float]:
    """Seconds in which a thread has run, and in which it waited for a processor."""
    ran, waited, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9
