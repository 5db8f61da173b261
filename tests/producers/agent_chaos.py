"""Kill engines and the agent between them and the broker: `python -m kvtrail.tests.producers.agent_chaos`.

An engine publishes from three threads over a dozen lanes to an agent, whose other end is a file that is away half of
the time. At each turn the engine, the agent, or both are killed at a random moment and started again. Afterwards a last
engine comes to its end, and what arrived and what is declared missing are compared with what had been accepted.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvtrail.producers.agent import Agent
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.incarnation import new_incarnation
from kvtrail.producers.kafka import KafkaTransport
from kvtrail.producers.spool import Spool
from kvtrail.producers.spooled import SpooledTransport
from kvtrail.producers.transport import Line
from kvtrail.schemas.config import KafkaConfig, PublisherConfig

from .reading import until
from .test_kills import Life
from .victim import THREADS, Calls, Door, work

READY_S = 60.0
EMPTY_S = 120.0


class Processes:
    """An agent and an engine at a time, in processes of their own, to be killed."""

    def __init__(self, folder: Path, bootstrap: str = "") -> None:
        self.folder = folder
        self.lives: list[Life] = []
        self._bootstrap = bootstrap
        self._agent: subprocess.Popen[str] | None = None
        self._engine: subprocess.Popen[str] | None = None
        self._incarnation = ""
        self._page = folder / "none"

    def start_agent(self) -> None:
        """Returns when engines can connect."""
        self._agent = self._run("agent", self._bootstrap)
        assert self._agent.stdout is not None and self._agent.stdout.readline().strip() == "ready"

    def start_engine(self, calls: int) -> None:
        """Returns when it publishes."""
        self._page = self.folder / f"calls-{len(self.lives)}"
        self._engine = self._run("engine", str(self._page), str(calls))
        assert self._engine.stdout is not None
        self._incarnation = json.loads(self._engine.stdout.readline())["incarnation"]

    def kill_agent(self) -> None:
        """SIGKILL."""
        assert self._agent is not None
        _kill(self._agent)

    def kill_engine(self) -> None:
        """SIGKILL; what it had accepted is noted."""
        assert self._engine is not None
        _kill(self._engine)
        self._note()

    def finish(self) -> None:
        """The engine closes, the spool and the tallies come to nothing, the agent stops."""
        assert self._engine is not None and self._engine.stdin is not None and self._agent is not None
        self._engine.stdin.close()
        assert self._engine.wait(EMPTY_S) == 0
        self._note()
        until(lambda: not self.left(), "nothing is left to be said", EMPTY_S)
        self._agent.send_signal(signal.SIGTERM)
        assert self._agent.wait(30) == 0

    def left(self) -> list[Path]:
        """Tallies of engines, segments of spools."""
        try:
            return [*self.folder.glob("agent.sock.tallies/*/*"), *self.folder.glob("spool/*/*/*.seg")]
        except FileNotFoundError:  # the agent has just removed a folder: it is not done
            return [self.folder]

    def close(self) -> None:
        """End whatever still runs."""
        for process in (self._engine, self._agent):
            if process is not None and process.poll() is None:
                _kill(process)

    def _note(self) -> None:
        counted = Calls(self._page)
        self.lives.append(Life(self._incarnation, counted.total(0), counted.total(1)))

    def _run(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "kvtrail.tests.producers.agent_chaos", str(self.folder), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def turmoil(
    processes: Processes, kills: int, chance: random.Random, longest: float, *, away: Callable[[bool], None]
) -> dict[str, int]:
    """Kill so often; how many of each. Then let everything come to its end."""
    killed = {"engine": 0, "agent": 0}
    processes.start_agent()
    processes.start_engine(10_000_000)
    while sum(killed.values()) < kills:
        away(chance.random() < 0.5)
        time.sleep(chance.uniform(0.0, longest))  # when to kill: nothing is waited for
        which = chance.choice(("engine", "engine", "agent", "agent", "both"))
        if which != "agent":
            processes.kill_engine()
            killed["engine"] += 1
        if which != "engine":
            processes.kill_agent()
            killed["agent"] += 1
            if which == "both" and chance.random() < 0.5:  # an engine that comes before its agent
                processes.start_engine(10_000_000)
                which = "agent"
            processes.start_agent()
        if which != "agent":
            processes.start_engine(10_000_000)
    processes.kill_engine()
    killed["engine"] += 1
    away(False)
    processes.start_engine(100)
    processes.finish()
    return killed


def serve(folder: Path, bootstrap: str) -> None:
    """The agent, as the command makes it, in front of a file or a broker."""

    async def run() -> None:
        inner: Line = KafkaTransport(KafkaConfig(bootstrap=bootstrap)) if bootstrap else Door(folder / "history.jsonl")
        spool = Spool(folder / "spool", "agent", new_incarnation(), max_bytes=1 << 28)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        agent = Agent(folder / "agent.sock", SpooledTransport(inner, spool, patience_s=0.05), PublisherConfig())
        await agent.run(stop, lambda: print("ready", flush=True))  # noqa: T201  # read by whoever kills it

    asyncio.run(run())


def publish(folder: Path, page: Path, count: int) -> None:
    """The engine: until its standard input is closed."""
    publisher = AgentPublisher("gpu-1", folder / "agent.sock", linger_s=0.005, envelope_events=32, max_events=2000)
    calls = Calls(page)
    threads = [threading.Thread(target=work, args=(publisher, calls, n, count), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    print(json.dumps({"incarnation": publisher.incarnation}), flush=True)  # noqa: T201  # read by whoever kills it
    sys.stdin.read()
    for thread in threads:
        thread.join()
    sys.exit(0 if publisher.close(60) else 1)


if __name__ == "__main__":
    if sys.argv[2] == "agent":
        serve(Path(sys.argv[1]), sys.argv[3])
    else:
        publish(Path(sys.argv[1]), Path(sys.argv[3]), int(sys.argv[4]))
