"""A store with a publisher whose events can be read back, and clocks that move when told."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtrail.cache_node.entry_file import Tensor
from kvtrail.cache_node.entry_store import EntryStore, StoredEntry
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.digests import digest_bytes
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Event
from kvtrail.schemas.identity import Identity

MIB = 1024 * 1024


class Clock:
    """Wall and monotonic time, in step unless told otherwise."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000 * 10**9
        self.monotonic = 5 * 10**9

    def advance(self, seconds: float) -> None:
        self.wall += int(seconds * 1e9)
        self.monotonic += int(seconds * 1e9)


class Rig:
    """Opens stores on one directory, one incarnation after the other, and keeps all their events."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.events: list[Event] = []
        self._transport = MemoryTransport()
        self._publisher: LifecyclePublisher | None = None
        self._starts = 0

    def open(self, capacity_bytes: int = 64 * MIB, **options: Any) -> EntryStore:
        self.drain()
        self._starts += 1
        self._transport = MemoryTransport()
        self._publisher = LifecyclePublisher("node-1", self._transport, incarnation=f"{self._starts}")
        return EntryStore(
            self.directory,
            self._publisher,
            capacity_bytes=capacity_bytes,
            wall_ns=lambda: self.clock.wall,
            monotonic_ns=lambda: self.clock.monotonic,
            **options,
        )

    def drain(self) -> list[Event]:
        """Every event published so far."""
        if self._publisher is not None:
            assert self._publisher.close(10.0)
            assert not self._publisher.stats().refused
            decoder = EnvelopeDecoder()
            for _, record in self._transport.records:
                batch = decoder.decode(record)
                assert not batch.rejects
                self.events.extend(batch.events)
            self._publisher = None
        return self.events

    def types(self) -> list[str]:
        """Every event published so far, as `type key`."""
        return [f"{event.type} {event.key}".strip() for event in self.drain()]


def identity(tenant: str = "northwind", content: str = "one") -> Identity:
    """A creator or requester with this content."""
    return Identity(tenant_id=tenant, template_digest=digest_bytes(content.encode()))


def content(key: str, size: int = 5000) -> bytes:
    """Bytes that belong to `key` and to nothing else."""
    return hashlib.shake_128(key.encode()).digest(size)


def tensors(seed: str, sizes: Sequence[int] = (5000, 4096, 1)) -> list[Tensor]:
    """A few byte tensors of unequal sizes."""
    return [Tensor(f"t{i}", "uint8", (size,), content(f"{seed}/{i}", size)) for i, size in enumerate(sizes)]


def same(entry: StoredEntry | None, seed: str, sizes: Sequence[int] = (5000, 4096, 1)) -> bool:
    """Whether the entry holds exactly the tensors of `seed`."""
    expected = [(t.name, t.shape, bytes(t.data)) for t in tensors(seed, sizes)]
    return entry is not None and [(t.name, t.shape, bytes(t.data)) for t in entry.tensors] == expected


def files(directory: Path, folder: str) -> list[Path]:
    """The files under one of the store's folders."""
    return sorted(path for path in (directory / folder).rglob("*") if path.is_file())
