"""From measured costs to what a fleet needs: the arithmetic of docs/capacity.md with your own numbers.

python -m kvtrail.benchmarks.pipeline --json costs.json
python -m kvtrail.benchmarks.capacity costs.json --nodes 10000 --events-per-node 20
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import click

ENTRY_BYTES = 500
"""Memory of a live entry, at most (the budget of the judging core)."""
ENTRIES_PER_PARTITION = 1_000_000
"""Above this a partition's recovery has not been measured."""
EVENTS_WAIT_S = 5.0
"""`sink.events_wait_s` of a large fleet: an insert of each partition as often."""
DAY_S = 86_400


class Fleet(NamedTuple):
    """`events_per_node`: a second, on average; `peak`: how many times that the busiest minutes are; `busy`: share of a
    core that a process may use at the peak; `entries_per_node`: live at once."""

    nodes: int
    events_per_node: float
    peak: float
    busy: float
    entries_per_node: int
    replication: int
    kafka_days: float


class Costs(NamedTuple):
    """Microseconds of processor time an event, and bytes an event on disk."""

    detector: float
    sink: float
    store: float
    broker: float
    kafka_bytes: float
    store_bytes: float


class Needs(NamedTuple):
    """Processes of one core each, cores for the servers, and volumes."""

    rate: float
    peak_rate: float
    detectors: int
    sinks: int
    store_cores: int
    broker_cores: int
    partitions: int
    inserts: float
    insert_rows: float
    detector_mb: float
    kafka_mb_s: float
    kafka_tb: float
    store_gb_day: float


def costs(measured: Path) -> Costs:
    """What `benchmarks.pipeline --json` wrote."""
    found = json.loads(measured.read_text())
    tiers = {name: tier["cpu_us"] for name, tier in found["tiers"].items()}
    detector = sum(cost for name, cost in tiers.items() if name.startswith("detector"))
    disk = dict(found["disk"])
    return Costs(detector, tiers["sink"], tiers["store"], tiers["broker"], disk.pop("kafka"), sum(disk.values()))


def needs(fleet: Fleet, cost: Costs) -> Needs:
    """The arithmetic."""
    rate = fleet.nodes * fleet.events_per_node
    peak = rate * fleet.peak

    def cores(us: float) -> int:
        return math.ceil(peak * us / 1e6 / fleet.busy)

    detectors, sinks = cores(cost.detector), cores(cost.sink)
    entries = fleet.nodes * fleet.entries_per_node
    least = max(4 * max(detectors, sinks), math.ceil(entries / ENTRIES_PER_PARTITION), 4)
    partitions = 2 ** math.ceil(math.log2(least))
    return Needs(
        rate=rate, peak_rate=peak, detectors=detectors, sinks=sinks, store_cores=cores(cost.store),
        broker_cores=cores(cost.broker * fleet.replication), partitions=partitions,
        inserts=partitions / EVENTS_WAIT_S, insert_rows=peak * EVENTS_WAIT_S / partitions,
        detector_mb=entries * ENTRY_BYTES / detectors / 1e6,
        kafka_mb_s=peak * cost.kafka_bytes * fleet.replication / 1e6,
        kafka_tb=rate * cost.kafka_bytes * fleet.replication * fleet.kafka_days * DAY_S / 1e12,
        store_gb_day=rate * cost.store_bytes * DAY_S / 1e9,
    )  # fmt: skip


def table(fleet: Fleet, cost: Costs, need: Needs) -> str:
    """For docs/capacity.md."""
    rows = [
        ("events/s, on average and at the peak", f"{need.rate:,.0f}, {need.peak_rate:,.0f}"),
        (f"detectors ({cost.detector:.1f} us an event)", f"{need.detectors}"),
        ("memory of a detector for live entries", f"{need.detector_mb:,.0f} MB"),
        (f"sinks ({cost.sink:.1f} us)", f"{need.sinks}"),
        (f"ClickHouse cores ({cost.store:.1f} us)", f"{need.store_cores}"),
        (f"Kafka cores ({cost.broker:.1f} us a copy)", f"{need.broker_cores}"),
        ("partitions", f"{need.partitions}"),
        (
            f"inserts of events a second with `sink.events_wait_s = {EVENTS_WAIT_S:g}`, rows of each",
            f"{need.inserts:,.0f}, {need.insert_rows:,.0f}",
        ),
        (f"Kafka, written at the peak ({cost.kafka_bytes:.0f} bytes an event)", f"{need.kafka_mb_s:,.0f} MB/s"),
        (f"Kafka, kept {fleet.kafka_days:g} days", f"{need.kafka_tb:,.1f} TB"),
        (f"ClickHouse ({cost.store_bytes:.0f} bytes an event)", f"{need.store_gb_day:,.0f} GB a day"),
    ]
    return "\n".join(["| what | needed |", "|---|---|", *(f"| {what} | {much} |" for what, much in rows)])


@click.command()
@click.argument("measured", type=click.Path(exists=True, path_type=Path))
@click.option("--nodes", default=10_000, show_default=True)
@click.option("--events-per-node", default=20.0, show_default=True, help="A second, on average.")
@click.option("--peak", default=2.0, show_default=True, help="The busiest minutes over the average.")
@click.option("--busy", default=0.5, show_default=True, help="Share of a core that may be used at the peak.")
@click.option("--entries-per-node", default=5_000, show_default=True, help="Live at once.")
@click.option("--replication", default=3, show_default=True)
@click.option("--kafka-days", default=7.0, show_default=True)
def main(
    measured: Path, nodes: int, events_per_node: float, peak: float, busy: float, entries_per_node: int,
    replication: int, kafka_days: float,
) -> None:  # fmt: skip
    """Print what a fleet needs, as a table."""
    fleet = Fleet(nodes, events_per_node, peak, busy, entries_per_node, replication, kafka_days)
    cost = costs(measured)
    click.echo(table(fleet, cost, needs(fleet, cost)))


if __name__ == "__main__":
    main()
