"""A process that publishes at a steady pace while its standard input says so: the busy loop's control.

Started by `publisher_busy` with the kind of publisher, its place, a folder and the pace; `1` begins, `0` pauses.
"""

import logging
import os
import select
import sys
import time
from pathlib import Path

from ..producers import LifecyclePublisher
from ..producers.agent_client import AgentPublisher
from ..schemas.config import KafkaConfig, PublisherConfig
from .publisher_peers import Publisher, hits

BURST_S = 0.01


def main() -> None:
    """Publish until standard input ends."""
    kind, place, folder, rate = sys.argv[1:]
    logging.getLogger("kvtrail").setLevel(logging.CRITICAL)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    publisher: Publisher
    if kind == "agent":
        publisher = AgentPublisher(f"bench twin {rate}", Path(place))
    else:
        config = PublisherConfig(spool_directory=Path(folder) / "twin") if kind == "spool" else None
        publisher = LifecyclePublisher.to_kafka(f"bench twin {kind} {rate}", KafkaConfig(bootstrap=place), config)
    call = hits(publisher)
    call(0)
    publisher.flush(10)
    os.write(1, b"ready\n")
    burst, on, due = int(int(rate) * BURST_S), False, 0.0
    while True:
        wait = max(0.0, due - time.monotonic()) if on else None
        if select.select([0], [], [], wait)[0]:
            told = os.read(0, 4096)
            if not told:
                break
            on, due = told.endswith(b"1"), time.monotonic()
        elif on:
            for n in range(burst):
                call(n)
            due += BURST_S
    publisher.close()
