"""What publishing costs the engine: the calls, and what goes on behind them.

Run `python -m kvtrail.benchmarks.publisher`. It starts a broker and an agent of its own. Yardsticks in the same run at
the same pace: `logging` through a `QueueHandler`, a bare `aiokafka` send, and an OpenTelemetry span where that is
installed. Absolute numbers hold for one machine; the ratios are what is compared between runs. The longest call is the
interpreter lock's, not ours.
"""

import asyncio
import logging
import os
import tempfile
from pathlib import Path

import click

from ..cli.local.kafka import KafkaBroker
from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..schemas.config import PublisherConfig
from ..streams.topics import ensure_topics
from .publisher_busy import loss, twin_process
from .publisher_calls import BURST_S, Result, latencies
from .publisher_outage import RATE, SPOOL_BYTES, outages
from .publisher_peers import Publisher, agent_process, hits

PARTS = ("calls", "busy", "outage")


@click.command()
@click.option("--part", type=click.Choice(PARTS), help="One part only.")
@click.option("--rate", default=5_000, show_default=True, help="Calls a second, over all threads.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of each measurement of calls.")
@click.option("--busy-seconds", default=115.0, show_default=True, help="Length of the busy loop at 5 000 events/s.")
@click.option("--outage-seconds", default=10.0, show_default=True, help="Length of each outage at 20 000 events/s.")
@click.option("--realtime", is_flag=True, help="The busy loop goes before all other processes. Root only.")
def main(
    part: str | None, rate: int, seconds: float, busy_seconds: float, outage_seconds: float, realtime: bool
) -> None:  # fmt: skip
    """Measure and print the tables: about eleven minutes."""
    logging.getLogger("kvtrail").setLevel(logging.CRITICAL)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        folder, notes = Path(name), list[str]()
        asyncio.run(ensure_topics(broker.config))
        if part in (None, "calls"):
            _calls(broker, folder, rate, seconds, notes)
        if part in (None, "busy"):
            _busy(broker, folder, busy_seconds, realtime)
        if part in (None, "outage"):
            click.echo(f"\noutage of {outage_seconds:g} s at {RATE} events/s, spools bounded at {SPOOL_BYTES >> 20} MB")
            for title, account in outages(folder, RATE, outage_seconds):
                click.echo(f"{title:11} {account}")
        for note in notes:
            click.echo(note)


def _calls(broker: KafkaBroker, folder: Path, rate: int, seconds: float, notes: list[str]) -> None:
    click.echo(f"{rate} calls/s in all, bursts every {BURST_S * 1000:.0f} ms; microseconds a call")
    click.echo(f"{'':15} threads {'pattern':14}   calls     p50     p99     max   p50/logging  p99/logging")
    for threads in (1, 4):
        base: dict[str, Result] = {}
        for result in latencies(broker, folder, threads=threads, rate=rate, seconds=seconds, notes=notes):
            first = base.setdefault(result.pattern, result)
            click.echo(
                f"{result.case:15} {threads:7} {result.pattern:14} {len(result.times):7} {result.at(0.5):7.2f} "
                f"{result.at(0.99):7.2f} {result.at(1):7.0f} {result.at(0.5) / first.at(0.5):13.2f} "
                f"{result.at(0.99) / first.at(0.99):12.2f}"
            )


def _busy(broker: KafkaBroker, folder: Path, seconds: float, realtime: bool) -> None:
    click.echo(
        "\nbusy loop: stopped by the sender; throughput lost beyond the calls' own time, in all, to the sender in this "
        "interpreter, and to the same work in another process; the sender's thread"
    )
    with agent_process(broker.config, folder / "agent busy") as (path, _):
        if realtime:  # for this thread and those that it starts, the twin's too: not for the broker and the agent
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        for pace, length in ((5_000, seconds), (20_000, seconds / 3)):
            for kind, title in (("process", "in process"), ("spool", "spool"), ("agent", "agent")):
                publisher = _publisher(kind, broker, path, folder, pace)
                call = hits(publisher)
                call(0)
                publisher.flush(10)
                place = str(path) if kind == "agent" else broker.config.bootstrap
                with twin_process(kind, place, folder, pace) as twin:
                    found = loss(publisher, call, pace, length, twin)
                publisher.close()
                click.echo(
                    f"{title:11} {pace:6} events/s  stopped {found.stopped:6.2%}  lost {found.lost}, "
                    f"here {found.here}, elsewhere {found.elsewhere}  "
                    f"thread {found.thread:6.2%} of a core, {found.records:.1f} records/s"
                )


def _publisher(kind: str, broker: KafkaBroker, socket: Path, folder: Path, pace: int) -> Publisher:
    if kind == "agent":
        return AgentPublisher("bench agent", socket)
    config = PublisherConfig(spool_directory=folder / "spool") if kind == "spool" else None
    return LifecyclePublisher.to_kafka(f"bench {kind} {pace}", broker.config, config)


if __name__ == "__main__":
    main()
