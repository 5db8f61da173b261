"""`EntryStore`: KV tensors on a node's NVMe, by a store key that the application chose.

The key may be wrong; that is what the audit trail is for. So a hit is never refused because the requester's identity
differs from the creator's: both are reported. What is refused is a file that is not what was written under this key.

Effects come before their events, and events leave in the order of their effects, under the store's lock. No
operation raises into a request: what cannot be served is a miss, what cannot be stored is not stored.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from ..producers.publisher import LifecyclePublisher
from ..schemas.errors import InvalidField
from ..schemas.events import KeyOrigin
from ..schemas.identity import DIMENSIONS, Identity
from .entry_events import EntryEvents
from .entry_file import (
    EntryHeader,
    SealedHeader,
    Tensor,
    check_payload,
    chunk_digests,
    lay_out,
    payload_digest,
    payload_pieces,
    seal,
)
from .entry_index import EntryIndex, Slot
from .errors import CorruptEntry, EntryNotStored
from .file_engine import BufferedEngine, FileEngine
from .store_directory import StoreDirectory

log = logging.getLogger("kvtrail.cache_node")
TOUCH_EVERY_NS = 60 * 10**9
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as read and checked. The memory belongs to the caller."""

    header: EntryHeader
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counts since the start, and what is held now.

    `not_stored`: creates that failed, of them `full` for want of space on the disk; `refused`: files found not to be
    what they should be; `torn`: temporary files that the last process left.
    """

    entries: int = 0
    used_bytes: int = 0
    created: int = 0
    not_stored: int = 0
    full: int = 0
    hits: int = 0
    misses: int = 0
    expired: int = 0
    evicted: int = 0
    invalidated: int = 0
    refused: int = 0
    torn: int = 0


class EntryStore:
    """The store in one directory. Open it once; close it, or use it as a context manager.

    `capacity_bytes` bounds the entries' files. `wall_ns` dates entries, `monotonic_ns` measures their TTL. With
    `verify` off, payloads are not hashed when read (headers always are). Raises `StoreInUse` where another process
    has the directory, `OSError` where it cannot be used at all.
    """

    def __init__(
        self,
        directory: Path,
        publisher: LifecyclePublisher,
        *,
        capacity_bytes: int,
        name: str = "kv",
        verify: bool = True,
        engine: FileEngine | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = name
        self._events = EntryEvents(publisher, name)
        self._verify = verify
        self._engine = engine or BufferedEngine()
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._lock = threading.Lock()
        self._index = EntryIndex(capacity_bytes)
        self._stats = StoreStats()
        self._generation = 0
        self._directory = StoreDirectory(directory)
        self._open = True
        try:
            self._recover()
        except BaseException:
            self._directory.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the directory back. Afterwards every lookup is a miss and nothing is stored."""
        with self._lock:
            if self._open:
                self._open = False
                self._directory.close()

    def stats(self) -> StoreStats:
        """Counts since the start, and what is held now."""
        with self._lock:
            return replace(self._stats, entries=len(self._index), used_bytes=self._index.used_bytes)

    def put(
        self,
        key: str,
        tensors: Sequence[Tensor],
        identity: Identity,
        *,
        tokens: int,
        ttl_s: float | None = None,
        key_origin: KeyOrigin = "derived",
        computed_tokens: int | None = None,
        rederived_key: str | None = None,
        request_id: str = "",
    ) -> bool:
        """Stores an entry and publishes its `create`.

        False, counted and logged, where it could not be stored (full disk, failing device, larger than the store):
        then nothing is left of it, nothing is published, and the caller goes on without.
        """
        specs, payload_bytes = lay_out(tensors)
        digests = chunk_digests(payload_pieces(tensors))
        header = EntryHeader(
            key=key,
            key_origin=key_origin,
            identity=identity.to_wire(),
            tensors=specs,
            tokens=tokens,
            created_us=self._wall_ns() // 1000,
            payload_bytes=payload_bytes,
            payload_digest=payload_digest(digests),
            ttl_s=ttl_s,
        )
        with self._lock:
            self._generation = max(self._generation + 1, self._wall_ns())
            sealed, raw = seal(header, digests, self._generation)
        try:
            with self._room_for(sealed) as temporary:
                self._engine.write(temporary, raw, payload_pieces(tensors))
                with self._lock:
                    self._require_open()
                    path = self._directory.path(key)
                    self._directory.publish(temporary, path)
                    self._index.add(self._slot(path, sealed, identity, ttl_s))
                    self._count(created=1)
                    self._events.created(
                        sealed,
                        identity,
                        computed_tokens=computed_tokens,
                        rederived_key=rederived_key,
                        request_id=request_id,
                    )
        except (EntryNotStored, OSError) as error:
            full = isinstance(error, OSError) and error.errno in _FULL
            with self._lock:
                self._count(not_stored=1, full=int(full))
            log.warning("an entry of %d tokens was not stored: %s", tokens, getattr(error, "strerror", error))
            return False
        return True

    def get(
        self, key: str, requester: Identity, *, key_origin: KeyOrigin = "derived", request_id: str = ""
    ) -> StoredEntry | None:
        """The entry under `key`, whoever created it, and its `hit` with the requester's identity; None: a miss.

        An entry that ends while it is being read is not served. A file that fails its check is set aside; its
        `expire` says so, and the lookup is a miss.
        """
        while True:
            with self._lock:
                slot = self._live(key)
                if slot is None:
                    self._count(misses=1)
                    return None
            try:
                sealed, payload = self._engine.read(slot.path)
                self._directory.check_name(slot.path, sealed)
                if self._verify:
                    check_payload(sealed, payload)
                failure: CorruptEntry | OSError | None = None
            except (CorruptEntry, OSError) as error:
                failure = error
            with self._lock:
                # Replaced, expired, evicted or invalidated while it was read: look again.
                if self._live(key) is not slot:
                    continue
                if failure is None and sealed.generation != slot.generation:
                    failure = CorruptEntry("is not the file that was written.", field="generation")
                if failure is not None:
                    self._refuse(slot, failure)
                    continue
                self._touch(slot)
                self._count(hits=1)
                self._events.hit(
                    sealed,
                    requester,
                    verified=self._verify,
                    age_s=max(0.0, self._wall_ns() / 1e9 - sealed.header.created_us / 1e6),
                    key_origin=key_origin,
                    request_id=request_id,
                )
            return StoredEntry(
                sealed.header,
                tuple(
                    Tensor(spec.name, spec.dtype, spec.shape, payload[spec.offset : spec.offset + spec.bytes])
                    for spec in sealed.header.tensors
                ),
            )

    def invalidate(self, key: str, *, cause: str = "", op_id: str = "", request_id: str = "") -> bool:
        """Ends the entry under `key`. Whether there was one. Its event says `partial` where the file could not be
        removed, since the next start would find it."""
        with self._lock:
            slot = self._live(key)
            if slot is None:
                return False
            gone = self._drop(slot)
            self._count(invalidated=1)
            self._events.invalidated(slot, gone=gone, cause=cause, op_id=op_id, request_id=request_id)
            return True

    def invalidate_where(self, where: Mapping[str, str], *, cause: str = "", op_id: str = "") -> int:
        """Ends every entry whose creator agrees with `where` (dimension -> value; empty: all). How many.

        Raises `InvalidField` for a name that is no dimension.
        """
        for name in where:
            if name not in DIMENSIONS:
                raise InvalidField(
                    "is no dimension.", field=f"where.{name}", remedy="See docs/reference/dimensions.md."
                )
        with self._lock:
            slots = [slot for slot in self._index if slot.agrees(where)] if self._open else []
            gone = [self._drop(slot) for slot in slots]
            self._count(invalidated=len(slots))
            self._events.invalidated_where(where, gone=all(gone), cause=cause, op_id=op_id)
            return len(slots)

    def sweep(self) -> int:
        """Ends every entry whose TTL has passed. How many."""
        with self._lock:
            now = self._monotonic_ns()
            over = [slot for slot in self._index if slot.over(now)] if self._open else []
            for slot in over:
                self._expire(slot)
            return len(over)

    @contextlib.contextmanager
    def _room_for(self, sealed: SealedHeader) -> Iterator[Path]:
        """A temporary file's name, and room for it; afterwards neither is held. Raises `EntryNotStored`."""
        size = sealed.file_bytes
        with self._lock:
            self._require_open()
            victims = self._index.reserve(size)
            if victims is None:
                raise EntryNotStored("is larger than the store.", field="capacity_bytes", remedy="Raise it.")
            for victim in victims:
                self._evict(victim)
            temporary = self._directory.temporary()
        try:
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            with self._lock:
                self._index.release(size)

    def _require_open(self) -> None:
        if not self._open:
            raise EntryNotStored("the store is closed.", field="store")

    def _live(self, key: str) -> Slot | None:
        slot = self._index.find(key) if self._open else None
        if slot is not None and slot.over(self._monotonic_ns()):
            self._expire(slot)
            return None
        return slot

    def _touch(self, slot: Slot) -> None:
        self._index.touch(slot.key)
        with contextlib.suppress(OSError):
            # The order of use survives a restart as the files' times, refreshed at most once a minute.
            if self._wall_ns() - slot.path.stat().st_mtime_ns > TOUCH_EVERY_NS:
                os.utime(slot.path)

    def _expire(self, slot: Slot) -> None:
        self._drop(slot)
        self._count(expired=1)
        self._events.ended(slot, "ttl")

    def _evict(self, slot: Slot) -> None:
        self._drop(slot)
        self._count(evicted=1)
        self._events.ended(slot, "capacity")

    def _refuse(self, slot: Slot, error: CorruptEntry | OSError) -> None:
        log.warning("refused an entry of %d tokens: %s", slot.tokens, error)
        self._index.remove(slot.key)
        self._directory.set_aside(slot.path)
        self._count(refused=1)
        self._events.ended(slot, "failed")

    def _drop(self, slot: Slot) -> bool:
        self._index.remove(slot.key)
        return self._directory.remove(slot.path)

    def _slot(self, path: Path, sealed: SealedHeader, identity: Identity, remaining_s: float | None) -> Slot:
        header = sealed.header
        return Slot(
            key=header.key,
            key_origin=header.key_origin,
            path=path,
            identity=identity,
            tokens=header.tokens,
            file_bytes=sealed.file_bytes,
            generation=sealed.generation,
            deadline_ns=None if remaining_s is None else self._monotonic_ns() + int(remaining_s * 1e9),
        )

    def _recover(self) -> None:
        found = self._directory.recover(self._engine)
        self._events.started(survived=not found.fresh)
        self._count(torn=found.torn, refused=len(found.refused))
        for path, sealed in found.entries:
            header = sealed.header
            # A clock that went back must not make an entry younger than new.
            age_s = max(0.0, self._wall_ns() / 1e9 - header.created_us / 1e6)
            remaining_s = None if header.ttl_s is None else header.ttl_s - age_s
            slot = self._slot(path, sealed, Identity.from_wire(header.identity), remaining_s)
            self._generation = max(self._generation, sealed.generation)
            self._index.add(slot)
            if slot.over(self._monotonic_ns()):
                self._expire(slot)
        for slot in self._index.surplus():
            self._evict(slot)

    def _count(self, **more: int) -> None:
        self._stats = replace(self._stats, **{name: getattr(self._stats, name) + n for name, n in more.items()})
