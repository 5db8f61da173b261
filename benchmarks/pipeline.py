"""The whole pipeline, from publishing to a finding that can be queried, beside a floor that only stores.

Run `python -m kvtrail.benchmarks.pipeline`, or `make bench-pipeline ARGS="--events 200000"`. One run, on a broker and
a ClickHouse engine of its own:

1. sustained: a simulated fleet's log is sent as fast as it goes while detectors, sink and resolver follow, until
   every event and every finding can be queried; a tenth of the log went through before, unmeasured, since a broker and
   an engine that have just started spend a good part of their time on compiling themselves;
2. latency: the rest of the log at half that rate; for each finding, the time from sending the record that it came of
   until a query returns it;
3. floor: the same topic read again from its beginning and the same rows inserted in the same batches into an engine as
   new, nothing else running;
4. publisher: what the real publisher costs for an event, in a process of its own, measured last.

Whatever came out is compared with one undisturbed judgement of the same log; a difference ends the run with status 1.
"""

import asyncio
import json
import logging
import resource
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from ..producers import LifecyclePublisher
from ..schemas.config import Config, DetectorConfig, KafkaConfig, LocalConfig, SinkConfig
from ..schemas.topics import LIFECYCLE
from ..store import queries
from ..store.client import Client, connect
from ..store.migrate import migrate
from ..streams.topics import ensure_topics
from . import feed, floor, traffic
from .pipeline_result import Options, Result, Tier, quantile, table
from .pipeline_watch import Latency, Progress, settled
from .publisher_peers import IDENTITY, KEYS
from .rig import Rig, Use

SHARES = 0.1, 0.7, 1.0
"""Of the events, where the warm-up, the sustained rate and the measurement of latency end."""
PUBLISHED = 200_000


async def measure(folder: Path, options: Options) -> Result:
    """Every phase, in order."""
    log = folder / "log"
    _say("making the log")
    warm, fast, slow = traffic.write(
        log, events=options.events, faults=options.faults, seed=options.seed, envelope=options.envelope, shares=SHARES
    )  # fmt: skip
    events = warm.events + fast.events + slow.events
    kafka = KafkaConfig.model_validate({"compression": options.compression})
    config = Config(
        deployment="bench", kafka=kafka, local=LocalConfig(directory=folder),
        sink=SinkConfig(
            batch_rows=options.batch_rows, batch_wait_s=options.batch_wait_s, events_wait_s=options.events_wait_s
        ),
    )  # fmt: skip
    with Rig(folder, config) as rig:
        await ensure_topics(rig.config.kafka)
        rig.store("store")
        with connect(rig.config.clickhouse) as client:
            migrate(client, rig.config)
            await _workers(rig, options.detectors)
            async with Progress(rig.config) as progress:
                _say(f"warming up: {warm.events:,} events")
                await _sustained(rig, client, progress, log, warm)
                warmed = [await progress.end(LIFECYCLE, each) for each in range(rig.config.kafka.partitions)]
                _say(f"sustained rate: {fast.events:,} events in {fast.end - fast.first:,} records")
                sustained = await _sustained(rig, client, progress, log, fast)
                latency = await _latency(rig, client, progress, log, slow, sustained.rate / 2)
            _say("comparing")
            expected = await traffic.judge(rig.config)
            wrong = _wrong(client, expected, events)
            disk = _disk(client, folder, events)
        peaks = {name: use.peak_mb for name, use in rig.use().items()}
        for name in [name for name in peaks if name != "broker"]:
            rig.stop(name)
        rig.store("floor-store")
        with connect(rig.config.clickhouse) as client:
            migrate(client, rig.config)
        base = await _floor(rig, folder, warmed)
        published = await _publisher(rig, folder)
    found = latency.of(expected)
    latencies = [seen for _, _, seen in found]
    stages = {
        name: [quantile([one[at] for one in found], share) for share in (0.5, 0.99)]
        for at, name in enumerate(("judged", "inserted"))
    }
    rate = base.events / (base.ended - base.began)
    tiers = {
        name: Tier(cpu_us=sustained.cpu_s.get(name, 0.0) / fast.events * 1e6, peak_mb=peaks[name]) for name in peaks
    } | {
        "feeder": Tier(cpu_us=sustained.fed.cpu_s / fast.events * 1e6, peak_mb=sustained.fed.peak_mb),
        "publisher": Tier(cpu_us=published.cpu_s / PUBLISHED * 1e6, peak_mb=published.peak_mb),
        "floor": Tier(cpu_us=base.cpu_s / base.events * 1e6, peak_mb=base.peak_mb),
    }
    if not latencies:
        wrong.append("no finding came of the latency phase")
    return Result(
        events=events, records=slow.end, bytes_per_event=fast.bytes / fast.events,
        findings=len(expected.final), sustained=sustained.rate, floor=rate, ratio=sustained.rate / rate,
        floor_cpu_us=base.cpu_s / base.events * 1e6, floor_store_cpu_us=base.store_cpu_s / base.events * 1e6,
        half_rate=sustained.rate / 2, latency_p50_s=quantile(latencies, 0.5), latency_p99_s=quantile(latencies, 0.99),
        latency_max_s=quantile(latencies, 1.0), latencies=len(latencies), stages=stages, half_cores=latency.cores,
        disk=disk, tiers=tiers,
        wrong=wrong,
    )  # fmt: skip


async def _workers(rig: Rig, detectors: int) -> None:
    _say("starting the workers")
    config, names = rig.config, [f"detector-{n}" for n in range(detectors)]
    for name in names:
        rig.config = config.model_copy(update={"detector": DetectorConfig(instance=name)})
        rig.worker(name, "detect")
    rig.config = config
    rig.worker("sink", "sink")
    rig.worker("resolver", "resolve")
    rig.ready([*names, "sink", "resolver"])
    await settled(rig, names)


class Sustained(Struct):
    """The first phase: events a second until everything was queryable, and each process' processor time."""

    rate: float
    cpu_s: dict[str, float]
    fed: feed.Fed


async def _sustained(rig: Rig, client: Client, progress: Progress, log: Path, part: traffic.Part) -> Sustained:
    out = rig.directory / "fast"
    before, stored = rig.use(), _stored(client)
    child = rig.function("feeder", "feed", log, part.first, part.end, 0, out)
    done_at = await progress.follow(rig, client, stored + part.events, feeder=child)
    after = rig.use()
    rig.stop("feeder")
    fed = feed.account(out)
    cpu_s = {name: use.cpu_s - before[name].cpu_s for name, use in after.items() if name in before}
    return Sustained(part.events / (done_at - fed.began), cpu_s, fed)


async def _latency(
    rig: Rig, client: Client, progress: Progress, log: Path, part: traffic.Part, rate: float
) -> Latency:  # fmt: skip
    _say(f"latency: {part.events:,} events at {rate:,.0f} a second")
    out, latency = rig.directory / "slow", Latency(client)
    used, began = rig.use(), time.monotonic()
    stored = _stored(client)
    child = rig.function("feeder", "feed", log, part.first, part.end, rate, out)
    looking = asyncio.create_task(latency.look())
    await progress.follow(rig, client, stored + part.events, feeder=child)
    took_s = time.monotonic() - began
    latency.cores = {name: (use.cpu_s - used[name].cpu_s) / took_s for name, use in rig.use().items() if name in used}
    await latency.stop(looking)
    rig.stop("feeder")
    latency.fed = feed.account(out)
    return latency


async def _floor(rig: Rig, folder: Path, warmed: list[int]) -> floor.Floor:
    _say("floor")
    out = folder / "floor"
    child = rig.function("floor", "floor", out, json.dumps(warmed), rig.pid("floor-store"))
    while child.running:
        await asyncio.sleep(0.1)
    if child.returncode:
        raise child.death()
    return floor.account(out)


async def _publisher(rig: Rig, folder: Path) -> Use:
    _say("publisher")
    out = folder / "publisher"
    child = rig.function("publisher", "pipeline", out)
    while child.running:
        await asyncio.sleep(0.1)
    if child.returncode:
        raise child.death()
    cpu_s, peak_mb = json.loads(out.read_text())
    return Use(cpu_s, peak_mb)


def _wrong(client: Client, expected: traffic.Expected, events: int) -> list[str]:
    """What the store has that it should not, or lacks."""
    wrong: list[str] = []
    stored = _stored(client)
    if stored != events:
        wrong.append(f"{stored} events are stored, {events} were sent")
    twice = queries.DUPLICATES.run(client)
    if twice:
        wrong.append(f"{len(twice)} events are stored more than once")
    found = {one.id: one for one in queries.FINDINGS_CURRENT.run(client, status="", limit=1_000_000)}
    for name in sorted(expected.final.keys() | found.keys()):
        if expected.final.get(name) != found.get(name):
            wrong.append(f"finding {name} differs from an undisturbed judgement")
    return wrong


def _stored(client: Client) -> int:
    return int(client.query("SELECT count() AS n FROM events")[0]["n"])


def _disk(client: Client, folder: Path, events: int) -> dict[str, float]:
    rows = client.query(
        "SELECT table AS name, sum(bytes_on_disk) AS bytes FROM system.parts "
        "WHERE active AND database = currentDatabase() GROUP BY name HAVING bytes > {least:UInt64} ORDER BY bytes DESC",
        {"least": events},
    )
    log = sum(each.stat().st_size for each in (folder / "kafka" / "data").glob("kvtrail.lifecycle-*/*.log"))
    return {"kafka": log / events} | {str(row["name"]): int(row["bytes"]) / events for row in rows}


def _say(what: str) -> None:
    click.echo(f"[{time.strftime('%H:%M:%S')}] {what}", err=True)


def main(out: str) -> None:
    """The publisher's own process: events through the real publisher, and what they cost it."""
    from ..schemas.config import PublisherConfig, load_config

    config = load_config()
    publisher = LifecyclePublisher.to_kafka("bench", config.kafka, PublisherConfig(max_events=20_000))
    publisher.node_start([])
    publisher.flush(30)
    before = time.process_time()
    for n in range(PUBLISHED):
        publisher.hit(KEYS[n % 512], IDENTITY, store="kv", tier="nvme", reused_tokens=8992, request_id="r1")
        if n % 5_000 == 4_999:
            publisher.flush(30)
    publisher.flush(30)
    cpu_s = time.process_time() - before
    lost = PUBLISHED + 1 - publisher.stats().sent
    publisher.close()
    if lost:
        sys.exit(f"{lost} events were not sent")
    Path(out).write_text(json.dumps([cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


@click.command()
@click.option("--events", default=400_000, show_default=True, help="Events of the simulated fleet.")
@click.option("--faults", default=400, show_default=True, help="Faults among them.")
@click.option("--seed", default=1, show_default=True)
@click.option("--envelope", default=256, show_default=True, help="Events in an envelope, at most.")
@click.option("--detectors", default=1, show_default=True, help="Detector workers.")
@click.option("--compression", default="none", show_default=True, help="Of every producer: none, zstd, gzip, snappy.")
@click.option("--batch-rows", default=SinkConfig().batch_rows, show_default=True, help="Rows of one insert.")
@click.option("--batch-wait-s", default=SinkConfig().batch_wait_s, show_default=True, help="Longest wait of a batch.")
@click.option("--events-wait-s", type=float, help="Longest wait of a batch of events, where it is another.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the result there.")
@click.option("--keep", type=click.Path(path_type=Path), help="Work in this folder and leave it.")
def command(out: Path | None, keep: Path | None, **values: object) -> None:
    """Measure and print."""
    logging.getLogger("kvtrail").setLevel(logging.ERROR)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    options = Options(**values)  # type: ignore[arg-type]  # click's names are the fields
    with tempfile.TemporaryDirectory(prefix="kvtrail-bench-") as name:
        folder = keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(measure(folder, options))
    click.echo(table(result, options))
    if out is not None:
        found = msgspec.to_builtins(options) | msgspec.to_builtins(result)
        out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(bool(result.wrong))


if __name__ == "__main__":
    command()
