"""One run: a pipeline under load, disturbed by a schedule, drained, and compared with an undisturbed run."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.cli.local.ports import free_ports
from kvtrail.schemas.config import Config
from kvtrail.schemas.errors import KvtrailError
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.topics import CONTEXT, DEAD_LETTER, FACTS, FINDINGS, LIFECYCLE
from kvtrail.store.client import connect
from kvtrail.tests.chaos import parts
from kvtrail.tests.chaos.parts import Part
from kvtrail.tests.chaos.schedule import Disturbance, disturbances
from kvtrail.tests.chaos.traffic import Traffic
from kvtrail.tests.streams.comparison import Account, Difference, compare, difference
from kvtrail.tests.streams.fleet_histories import all_folded, exactly
from kvtrail.tests.streams.harness import (
    all_judged,
    all_stored,
    committed,
    config_of,
    end_offsets,
    publish,
)
from kvtrail.tests.streams.telling import Hook, Told, all_told, telling, told

_TICK_S = 0.05
_UP_S = 90.0
_DRAIN_S = 300.0
_DEPTH = 4
_TOLD_S = 90.0
_QUIET_S = 3.0
_WORKERS = ("detector-0", "detector-1", "sink-0", "resolver-0", "fleet-0", "notifier-0")
_THIRDS = ("detector-2", "sink-1", "fleet-1", "notifier-1")


class Chaos:
    """A pipeline of its own in `directory`. `tell` hears what is done."""

    def __init__(self, directory: Path, *, seed: int, events: int, faults: int, tell: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        """Kills, pauses, stops and restarts by part, `third` changes, and what ended by itself."""
        self._tell = tell
        self._seed = seed
        self._done = 0.0
        self._broker = KafkaBroker(directory / "kafka")
        self._directory = directory
        self._events, self._faults = events, faults
        self._parts: dict[str, Part] = {}
        self.told: Told | None = None
        """What the notifier told, once it is compared."""

    def run(self, kills: int, gap_s: float) -> Account:
        """Disturb until `kills` parts were killed, drain, compare. Raises `AssertionError` where it does not drain."""
        self._broker.start()
        with Hook(self._seed, absent=True) as self._hook:
            return self._run(kills, gap_s)

    def _run(self, kills: int, gap_s: float) -> Account:
        try:
            self.config = self._start()
            self.traffic = Traffic(
                self.config.kafka, lambda: self._done, seed=self._seed, events=self._events, faults=self._faults
            )
            self.traffic.start()
            for each in disturbances(self._seed, gap_s):
                self._tend_for(each.gap_s)
                self._disturb(each)
                self._done = self._killed() / kills
                if self._killed() >= kills:
                    break
            self._drain()
            return self._compare()
        finally:
            for part in reversed(self._parts.values()):
                part.end()
            self._broker.kill()

    def _start(self) -> Config:
        port = free_ports(1)[0]
        config = config_of(self._broker.config, None, self._directory)
        store = config.clickhouse.model_copy(update={"url": f"http://127.0.0.1:{port}"})
        config = telling(exactly(config.model_copy(update={"clickhouse": store})), self._hook)
        made = [parts.broker(self._broker), parts.store(config, self._directory)]
        made += [parts.worker(name, config, self._directory) for name in (*_WORKERS, *_THIRDS)]
        self._parts = {part.name: part for part in made}
        for part in made:
            part.wanted = part.name not in _THIRDS
        self._until(lambda: all(part.up for part in made if part.wanted), _UP_S, "everything to start")
        self._until(lambda: all(self._ready(name) for name in _WORKERS), _UP_S, "the workers to be ready")
        return config

    def _ready(self, name: str) -> bool:
        log = self._directory / f"{name}.log"
        return log.exists() and "ready: " in log.read_text()

    def _disturb(self, each: Disturbance) -> None:
        if each.act == "third":
            self._third()
            return
        part = next((self._parts[name] for name in each.targets if self._parts[name].up), None)
        if part is None:
            return
        if each.act == "kill":
            part.kill(each.for_s)
        elif each.act == "pause":
            part.pause(each.for_s)
        else:
            part.stop(signal.SIGTERM if each.act == "stop" else signal.SIGHUP, each.for_s)
        self._note(each.act, part.name, each.for_s)

    def _third(self) -> None:
        """A third detector, a second sink, and who stands by for fleet worker and notifier join, or leave again."""
        for name in _THIRDS:
            part = self._parts[name]
            part.wanted = not part.wanted
            if not part.wanted:
                part.stop(signal.SIGTERM, 0)
            self._note("joins" if part.wanted else "leaves", name, 0)

    def _note(self, act: str, name: str, for_s: float) -> None:
        self.counts[f"{act} {name}"] += 1
        self._tell(f"{act:8} {name} {for_s:.1f} s" if for_s else f"{act:8} {name}")

    def _killed(self) -> int:
        return sum(count for what, count in self.counts.items() if what.startswith("kill "))

    def _tend_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for part in self._parts.values():
                part.tend(now)
            time.sleep(_TICK_S)

    def _until(self, condition: Callable[[], bool], deadline_s: float, what: str) -> None:
        end = time.monotonic() + deadline_s
        while not self._holds(condition):
            assert time.monotonic() < end, f"waited {deadline_s:g} s in vain for {what}"
            self._tend_for(0.3)

    @staticmethod
    def _holds(condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except (KvtrailError, OSError, TimeoutError):
            return False
        except Exception as error:  # a broker that is just back: its clients raise many things
            if type(error).__module__.partition(".")[0] != "aiokafka":
                raise
            return False

    def _drain(self) -> None:
        self._tell("draining")
        for part in self._parts.values():
            part.resume()
        self._until(lambda: self.traffic.done, _DRAIN_S, "the producers to finish")
        assert self.traffic.whole, "a producer could not send everything"
        self._until(self._resolved, _DRAIN_S, "the resolver")
        self._until(self._judged, _DRAIN_S, "the detectors")
        self._until(self._send_last, _DRAIN_S, "the last request to be sent")
        self._until(lambda: self._judged() and all_folded(self.config), _DRAIN_S, "the fleet worker")
        self._until(
            lambda: all_stored(self.config, LIFECYCLE, FINDINGS, FACTS)() and all_stored(self.config, DEAD_LETTER)(),
            _DRAIN_S,
            "the sink",
        )
        self._until(lambda: all_told(self.config), _DRAIN_S, "the notifier")
        for part in self._parts.values():
            if part.own_ends:
                self.counts[f"ended by itself {part.name}"] = part.own_ends

    def _send_last(self) -> bool:
        publish(self.config.kafka, self.traffic.last())
        return True

    def _judged(self) -> bool:
        return all_judged(self.config)()

    def _resolved(self) -> bool:
        """Whether everything on the context topic was joined, and what came of it sent."""
        done = committed(self.config.kafka, "kvtrail-resolve", CONTEXT)
        ends = end_offsets(self.config.kafka, CONTEXT)
        return all(int((done.get(partition, (0, ""))[1] or "1 0").split()[1]) >= end for partition, end in ends.items())

    def _compare(self) -> Account:
        self._tell("comparing")
        account = compare(self.config, fleet=True)
        account.differences.extend(self._compare_told(account.revisions))
        with connect(self.config.clickhouse) as client:
            stored = client.query("SELECT id FROM events WHERE node NOT IN ('engine', 'kvtrail-resolver')")
            account.differences.extend(
                difference("sent by producers", [str(row["id"]) for row in stored], [*self.traffic.ids])
            )
            [row] = client.query("SELECT count() AS n FROM events WHERE node = 'engine'")
            engine = [str(row["n"])], [str(self.traffic.engine_events)]
            account.differences.extend(difference("events of the engine", *engine))
        return account

    def _compare_told(self, revisions: Sequence[Finding]) -> list[Difference]:
        """What is decided last waits for a moment, and who is told may be away: a difference counts once it stays."""
        end = time.monotonic() + _TOLD_S
        while True:
            self._tend_for(_QUIET_S)
            self.told = told(self.config, revisions, [*self._hook.taken])
            if not self.told.differences or time.monotonic() > end:
                return self.told.differences
