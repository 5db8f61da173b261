"""What an outage costs: memory, disk, and what becomes of the events."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..schemas.config import KafkaConfig, PublisherConfig
from .publisher_calls import measure
from .publisher_peers import Publisher, agent_process, hits

RATE = 20_000
SPOOL_BYTES = 256 * 2**20


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
