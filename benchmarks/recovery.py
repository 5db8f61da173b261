"""A million live entries in one partition: what they cost, and how long until they are there again after a loss.

Run `python -m kvtrail.benchmarks.recovery`. On a broker of its own:

1. fill: creates, each with an identity of its own, are judged until all of them are live, and saved;
2. more traffic after the newest snapshot, so that a recovery has something to catch up with;
3. the worker is killed (SIGKILL) and started again; killed again and started with an empty working folder; killed for
   good while another worker stands by.

Recovery is from the start of the process, or from the kill where another worker takes over, until `/readyz` says that
every partition has its state and has caught up. Afterwards reads of known and of unknown entries are judged: only the
second kind may be found.
"""

import asyncio
import itertools
import logging
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
from aiokafka import AIOKafkaProducer
from msgspec import Struct

from ..cli.local.ports import free_ports
from ..producers.kafka_client import connection
from ..schemas.config import Config, DetectorConfig, KafkaConfig, LocalConfig
from ..schemas.envelope import EnvelopeEncoder
from ..schemas.events import Event, Hit
from ..schemas.findings import decode_finding
from ..schemas.topics import FINDINGS, LIFECYCLE
from ..streams.detector import GROUP
from ..streams.topics import ensure_topics
from .judging import ENVELOPE, digest, events, identity, records
from .pipeline_watch import Progress
from .rig import Rig, used
from .traffic import topic_records

BUDGET_S = 60.0
DEADLINE_S = 600.0
HOME = "n:n1"
BEGIN_US = 1_700_000_000_000_000
PROBES = 20


class Recovery(Struct):
    """`ready_s`: until state and catch-up are whole; `cpu_s`: of the worker by then."""

    what: str
    ready_s: float
    cpu_s: float
    peak_mb: float


class Result(Struct):
    """Sizes are of one partition with so many live entries."""

    entries: int
    fill_peak_mb: float
    snapshots: int
    snapshot_bytes: int
    snapshot_s: float
    state_log_bytes: int
    behind_events: int
    recoveries: list[Recovery]
    wrong: list[str]


class Worker:
    """A detector that says when it is ready."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig, self.name = rig, name
        [self.port] = free_ports(1)
        self.pid = 0

    def start(self) -> None:
        config = self.rig.config
        detector = DetectorConfig(instance=self.name, metrics_port=self.port)
        self.rig.config = config.model_copy(update={"detector": detector})
        self.pid = self.rig.worker(self.name, "detect").pid
        self.rig.config = config

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    async def recovered(self, what: str, since: float) -> Recovery:
        """How long it took from `since`, by the monotonic clock."""
        await until(self.ready, f"{self.name} to be ready")
        took_s = time.monotonic() - since
        use = used(self.pid)
        return Recovery(what, took_s, use.cpu_s, use.peak_mb)

    def saved(self) -> list[dict[str, object]]:
        """What it logged about each snapshot it has written."""
        return [line for line in self.rig.lines(self.name) if line["message"] == "saved"]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises `RuntimeError` in time."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {DEADLINE_S:g} s in vain for {what}")
        await asyncio.sleep(0.05)


async def measure(folder: Path, entries: int, behind: int, compression: str) -> Result:
    """Every phase, in order."""
    kafka = KafkaConfig.model_validate({"partitions": 1, "compression": compression})
    with Rig(folder, Config(deployment="bench", kafka=kafka, local=LocalConfig(directory=folder))) as rig:
        await ensure_topics(rig.config.kafka)
        reads = Reads(entries)
        worker, spare = Worker(rig, "detector-0"), Worker(rig, "detector-1")
        worker.start()
        await until(worker.ready, "the first start")
        async with Progress(rig.config) as progress:
            _say(f"{entries:,} creates")
            await _publish(rig.config, records(events(entries, 0, expire=False)))
            await _judged(rig, progress)
            end = await progress.end(LIFECYCLE)
            _say("the snapshot")
            await until(lambda: any(line["next"] == end for line in worker.saved()), "a snapshot of everything")
            saved = worker.saved()
            fill = used(worker.pid)
            _say(f"{behind:,} more")
            await _publish(rig.config, reads.records(behind))
            await _judged(rig, progress)
            recoveries = []
            for what in ("killed, started again", "the same, working folder lost"):
                _say(what)
                rig.kill(worker.name)
                if "lost" in what:
                    shutil.rmtree(folder / "workers")
                since = time.monotonic()
                worker.start()
                recoveries.append(await worker.recovered(what, since))
            _say("taken over")
            spare.start()
            await until(spare.ready, "the second worker")
            since = time.monotonic()
            rig.kill(worker.name)
            await until(lambda: _owns(spare), "the second worker to be given the partition")
            recoveries.append(await spare.recovered("killed, taken over by another worker", since))
            _say("checking")
            await _publish(rig.config, itertools.chain(reads.records(1000), reads.records(PROBES, known=False)))
            await _judged(rig, progress)
        wrong = await _wrong(rig.config)
        folder_bytes = sum(each.stat().st_size for each in (folder / "kafka/data/kvtrail.state-0").glob("*.log"))
    return Result(
        entries=entries, fill_peak_mb=fill.peak_mb, snapshots=len(saved),
        snapshot_bytes=int(str(saved[-1]["bytes"])), snapshot_s=float(str(saved[-1]["seconds"])),
        state_log_bytes=folder_bytes, behind_events=behind, recoveries=recoveries, wrong=wrong,
    )  # fmt: skip


def _owns(worker: Worker) -> bool:
    assigned = [line["partitions"] for line in worker.rig.lines(worker.name) if line["message"] == "assigned"]
    return bool(assigned and assigned[-1])


async def _judged(rig: Rig, progress: Progress) -> None:
    end = time.monotonic() + DEADLINE_S
    while not await progress.committed(GROUP, LIFECYCLE):
        rig.check()
        if time.monotonic() > end:
            raise RuntimeError(f"not everything was judged within {DEADLINE_S:g} s")
        await asyncio.sleep(0.1)


async def _publish(config: Config, values: Iterator[bytes]) -> None:
    """Records of the one home, in order."""
    producer = AIOKafkaProducer(
        **connection(config.kafka), acks="all", enable_idempotence=True, max_batch_size=256 * 1024,
        max_request_size=1024 * 1024,
    )  # fmt: skip
    await producer.start()
    try:
        waiting: set[asyncio.Future[object]] = set()
        for value in values:
            waiting.add(await producer.send(LIFECYCLE, value, key=HOME.encode()))
            if len(waiting) > 200:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*waiting)
    finally:
        await producer.stop()


class Reads:
    """Hits that go on in the lane of the creates, on entries spread over all there are."""

    def __init__(self, entries: int) -> None:
        self._entries, self._seq = entries, entries

    def records(self, count: int, *, known: bool = True) -> Iterator[bytes]:
        """Records of `count` hits; unless `known`, on keys that nobody made."""
        batch: list[Event] = []
        for n in range(count):
            self._seq += 1
            entry = n * max(1, self._entries // count) % self._entries
            batch.append(
                Event(
                    node="n1",
                    incarnation="i1",
                    home=HOME,
                    seq=self._seq,
                    time_us=BEGIN_US + self._seq,
                    body=Hit(reused_tokens=512, tokens_read=512),
                    key=digest(f"{'' if known else 'no-'}key-{entry}"),
                    request_id=f"r{self._seq}",
                    identity=identity(entry),
                )
            )
            if len(batch) == ENVELOPE or n == count - 1:
                yield EnvelopeEncoder().encode(batch)
                batch = []


async def _wrong(config: Config) -> list[str]:
    """What was found that should not have been, or the other way round."""
    found = [decode_finding(record.value) for record in await topic_records(config, FINDINGS, 0)]
    wrong = [f"{one.cause} about {one.subject}" for one in found if one.cause != "HIT_UNKNOWN_ENTRY"]
    unknown = {one.subject for one in found if one.cause == "HIT_UNKNOWN_ENTRY"}
    if len(unknown) != PROBES:
        wrong.append(f"{len(unknown)} hits on unknown entries were found, {PROBES} were sent")
    return wrong


def table(result: Result) -> str:
    """The result for people."""
    mb = 1024 * 1024
    lines = [
        f"{result.entries:,} live entries in one partition",
        f"  worker's peak memory while they were made   {result.fill_peak_mb:>8.0f} MB",
        f"  a snapshot of all                           {result.snapshot_bytes / mb:>8.1f} MB "
        f"({result.snapshot_bytes / result.entries:.0f} bytes an entry), written in {result.snapshot_s:.1f} s",
        f"  snapshots written until then                {result.snapshots:>8}",
        f"  the partition of kvtrail.state at the end   {result.state_log_bytes / mb:>8.1f} MB on disk",
        f"  recovery, {result.behind_events:,} events behind (budget {BUDGET_S:g} s)",
    ]
    for one in result.recoveries:
        met = "met" if one.ready_s <= BUDGET_S else "MISSED"
        lines.append(f"    {one.what:<42}{one.ready_s:>8.1f} s   {one.cpu_s:.1f} s of CPU, {one.peak_mb:.0f} MB: {met}")
    lines.append("  correct" if not result.wrong else "  WRONG: " + "; ".join(result.wrong[:5]))
    return "\n".join(lines)


def _say(what: str) -> None:
    click.echo(f"[{time.strftime('%H:%M:%S')}] {what}", err=True)


@click.command()
@click.option("--entries", default=1_000_000, show_default=True, help="Live entries of the partition.")
@click.option("--behind", default=200_000, show_default=True, help="Events after the newest snapshot.")
@click.option("--compression", default="none", show_default=True, help="Of every producer: none, zstd, gzip, snappy.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the result there.")
@click.option("--keep", type=click.Path(path_type=Path), help="Work in this folder and leave it.")
def main(entries: int, behind: int, compression: str, out: Path | None, keep: Path | None) -> None:
    """Measure and print."""
    logging.getLogger("kvtrail").setLevel(logging.ERROR)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="kvtrail-bench-") as name:
        folder = keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(measure(folder, entries, behind, compression))
    click.echo(table(result))
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    sys.exit(bool(result.wrong))


if __name__ == "__main__":
    main()
