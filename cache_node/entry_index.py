"""What the store holds, in memory: by key, in order of last use, with bytes and deadlines. No I/O, no clock."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..schemas.events import KeyOrigin
from ..schemas.identity import Identity


@dataclass(frozen=True, slots=True)
class Slot:
    """One live entry. `deadline_ns` is on the monotonic clock, None without a TTL; `generation` tells two lives of
    one key apart."""

    key: str
    key_origin: KeyOrigin
    path: Path
    identity: Identity
    tokens: int
    file_bytes: int
    generation: int
    deadline_ns: int | None

    def over(self, now_ns: int) -> bool:
        """Whether its TTL has passed."""
        return self.deadline_ns is not None and now_ns >= self.deadline_ns

    def agrees(self, where: Mapping[str, str]) -> bool:
        """Whether its creator's identity has every value that `where` names."""
        return all(getattr(self.identity, name) == value for name, value in where.items())


class EntryIndex:
    """Live entries, least recently used first, and the bytes that they and the writes under way take."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._slots: OrderedDict[str, Slot] = OrderedDict()
        self._used = 0
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    @property
    def used_bytes(self) -> int:
        """Bytes of all live entries' files."""
        return self._used

    def find(self, key: str) -> Slot | None:
        """The entry under `key`, its place in the order unchanged."""
        return self._slots.get(key)

    def touch(self, key: str) -> None:
        """`key` was used just now."""
        self._slots.move_to_end(key)

    def add(self, slot: Slot) -> None:
        """A new entry, or the next life of a key."""
        self.remove(slot.key)
        self._slots[slot.key] = slot
        self._used += slot.file_bytes

    def remove(self, key: str) -> None:
        """No entry under `key` any more."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._used -= slot.file_bytes

    def reserve(self, size: int) -> list[Slot] | None:
        """Sets `size` bytes aside for a write and names the entries that must go for it, least recently used first.

        None, and nothing set aside, where even all of them would not be enough.
        """
        victims = self._oldest(self._used + self._reserved + size - self._capacity)
        if victims is not None:
            self._reserved += size
        return victims

    def release(self, size: int) -> None:
        """The write that `size` bytes were set aside for is over."""
        self._reserved -= size

    def surplus(self) -> list[Slot]:
        """The entries that must go to be within capacity (after a restart with a smaller one)."""
        return self._oldest(self._used - self._capacity) or []

    def _oldest(self, missing: int) -> list[Slot] | None:
        victims: list[Slot] = []
        for slot in self._slots.values():
            if missing <= 0:
                break
            victims.append(slot)
            missing -= slot.file_bytes
        return victims if missing <= 0 else None
