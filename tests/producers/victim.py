"""A process that publishes as fast as it is told to, to be killed: `python -m kvtrail.tests.producers.victim`.

Each thread notes in a shared page how many calls it has begun and how many have returned, so that whoever killed it
knows what had been accepted. The other end is a file; while `away` exists nothing is taken there.
"""

import asyncio
import json
import mmap
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Self

from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.recording import RecordingTransport
from kvtrail.producers.transport import Transport, TransportError
from kvtrail.schemas.config import KafkaConfig, PublisherConfig
from kvtrail.schemas.identity import Identity

THREADS = 3
PAGE = 4096
TENANT = Identity(tenant_id="northwind")


class Door(RecordingTransport):
    """A recording behind a door that can be shut, and that takes a moment."""

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        await asyncio.sleep(0.001)
        if self.path.with_name("away").exists():
            raise TransportError("is away.", reason="away")
        await super().send(home, record, first, last)

    def fresh(self) -> Self:
        return type(self)(self.path)


class Calls:
    """Begun and returned, a pair of numbers a thread, in a file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(PAGE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE)

    def note(self, thread: int, which: int, value: int) -> None:
        struct.pack_into("<Q", self._page, thread * 16 + which * 8, value)

    def total(self, which: int) -> int:
        return sum(struct.unpack_from("<Q", self._page, thread * 16 + which * 8)[0] for thread in range(THREADS))


def work(publisher: LifecyclePublisher, calls: Calls, thread: int, count: int) -> None:
    """`count` calls over a node's own lane, another node's, and a shared store's."""
    for n in range(count):
        calls.note(thread, 0, n + 1)
        request = f"{thread}:{n}"
        if n % 3 == 0:
            publisher.create(f"k{n}", TENANT, store="pool", tier="shared", request_id=request)
        elif n % 7 == 0:
            publisher.hit(f"k{n}", TENANT, store="kv", tier="nvme", owner="gpu-2", request_id=request)
        else:
            publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu", request_id=request)
        calls.note(thread, 1, n + 1)
        if n % 20 == 0:
            time.sleep(0.001)


def main() -> None:
    """Publish, say so, and wait to be killed, or close when stdin is closed."""
    folder, calls_path, count, bootstrap = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    transport: Transport = Door(folder / "history.jsonl")
    if bootstrap:
        from kvtrail.producers.kafka import KafkaTransport

        transport = KafkaTransport(KafkaConfig(bootstrap=bootstrap))
    config = PublisherConfig(
        spool_directory=folder / "spool", spool_after_s=0.05, linger_s=0.005, envelope_events=32, max_events=2000
    )
    publisher = LifecyclePublisher("gpu-1", transport, config)
    calls = Calls(calls_path)
    threads = [threading.Thread(target=work, args=(publisher, calls, n, count), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    print(json.dumps({"incarnation": publisher.incarnation}), flush=True)  # noqa: T201  # read by whoever kills it
    sys.stdin.read()
    for thread in threads:
        thread.join()
    publisher.close(50)


if __name__ == "__main__":
    main()
