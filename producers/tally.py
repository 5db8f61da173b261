"""How many numbers each lane has given out, kept where a kill cannot take it: a file mapped into memory.

A killed process loses what it had in memory, and nobody would know that it was ever there. So each accepted event is
counted in a page that belongs to the kernel before it goes anywhere, in a slot of its thread and lane, and the next
process of the node reads from it where each lane should have ended. Standard library only.

The file: slots of eight bytes, then lines of JSON that say what each slot counts. A slot is only used after its line
has been written; the last counts the events whose lanes could not be named. Who holds the file's lock is alive.

A signal handler may count while its thread does: Python runs it when a function is called or has returned. So nothing
that others count in is read before such a call and written after it.
"""

import fcntl
import hashlib
import json
import mmap
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

SLOTS = 8_192
TALLY = "tally"
"""The file's name in an incarnation's folder."""
_BYTES = SLOTS * 8
_SHARED = 0
"""No thread's id."""
_RETRY_S = 1.0
"""How long a disk that has no room for a line is left alone."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Marks:
    """What the sender notes of one lane: numbers that no call asked for, calls that got none, what is safe."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: "memoryview[int]", at: int) -> None:
        self._view = view
        self._at = at

    def refused(self) -> None:
        """A counted call costs no number after all."""
        self._view[self._at] += 1

    def extra(self) -> None:
        """A number is used for an event of the sender's own. To be called before the event is sent."""
        self._view[self._at + 1] += 1

    def safe(self, last: int) -> None:
        """Everything up to `last` is safe, or was declared missing; 0: something of this lane has been lost."""
        self._view[self._at + 2] = last


class Unmarked(Marks):
    """Of a lane for whose notes there was no room. An extra number is counted as a call's is, so that no end is made
    that was passed; one refused may be told as missing, and nothing is known to be safe."""

    __slots__ = ("_count",)

    def __init__(self, count: Callable[[], None]) -> None:
        super().__init__(memoryview(bytearray(24)).cast("Q"), 0)
        self._count = count

    def extra(self) -> None:
        self._count()


class Tally:
    """The counts of one incarnation. Raises `OSError` when its file cannot be made."""

    def __init__(self, path: Path, node: str, incarnation: str, *, mode: int = 0o600) -> None:
        self.path = path
        # Under its own name only when it is whole and locked: whoever finds it earlier would take it for an orphan.
        making = path.with_name(path.name + ".new")
        self._descriptor = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, mode)
        try:
            os.fchmod(self._descriptor, mode)  # whatever the umask is
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Room is taken now: a page that could not be had later would kill the process that touches it.
            os.posix_fallocate(self._descriptor, 0, _BYTES)
            self._line({"node": node, "incarnation": incarnation, "boot": _boot(), "uncounted": SLOTS - 1})
            self.view = _mapped(making)
            making.rename(path)
        except BaseException:
            os.close(self._descriptor)
            making.unlink(missing_ok=True)
            raise
        self._uncounted: defaultdict[str, int] = defaultdict(int)
        """Of lanes that could not be named. The last slot holds their sum, for whoever reads the file."""
        self._retry_at = 0.0
        self._slots: dict[tuple[int, str], int] = {}
        self._lanes: dict[str, Marks] = {}
        self._used = 0
        self._lock = threading.RLock()

    @property
    def overflowed(self) -> bool:
        """More lanes or threads than slots, or no room on the disk to name one: some events are not counted yet."""
        return bool(self._uncounted)

    def slot(self, home: str) -> int | None:
        """The calling thread's slot for a lane; None where there is none left."""
        at = self._slot_of(threading.get_ident(), home)
        if at is not None and self._uncounted:
            with self._lock:
                self._make_up()
        return at

    def count(self, home: str) -> None:
        """One number more for a lane."""
        at = self._slots.get((threading.get_ident(), home))
        if at is None:
            at = self.slot(home)
            if at is None:
                self._count_together(home)
                return
        self.view[at] += 1

    def marks(self, home: str) -> Marks:
        """The sender's notes of a lane."""
        with self._lock:
            found = self._lanes.get(home)
            if found is None:
                at = self._allot({"home": home, "marks": 0}, 3, SLOTS - 1)
                made = Unmarked(partial(self.count, home)) if at is None else Marks(self.view, at)
                found = self._lanes[home] = made
            return found

    def is_settled(self) -> bool:
        """Whether every number given out is safe."""
        with self._lock:
            self._make_up()
            return not self.overflowed and all(end.is_settled for end in read_ends(self.path))

    def close(self) -> None:
        """Release the lock. Counting goes on harmlessly."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _count_together(self, home: str) -> None:
        """When slots run out, the threads without one share another of the lane's, under a lock. Never a thread's own:
        that one counts without, and one of the two could be lost."""
        with self._lock:
            if self._descriptor < 0:
                return  # whoever has the file now must not take this for an event that it should have been told of
            self.view[SLOTS - 1] += 1  # first: a kill in between must not leave a count that seems whole
            self._uncounted[home] += 1
            self._make_up()

    def _make_up(self) -> None:
        """Count what was not counted, as far as its lanes can be named by now; the newest first."""
        for home in reversed([*self._uncounted]):
            at = self._slot_of(_SHARED, home)
            if at is None:
                break
            count = self._uncounted.pop(home, 0)
            self.view[at] += count
        while self.view[SLOTS - 1] != (left := sum(self._uncounted.values())):
            self.view[SLOTS - 1] = left

    def _slot_of(self, thread: int, home: str) -> int | None:
        at = self._slots.get((thread, home))
        if at is not None:
            return at
        with self._lock:  # until it is noted, too: others go through what is
            # The last quarter is for new lanes, not for more threads in old ones.
            is_reserved = thread == _SHARED or all(home != other for _, other in [*self._slots])
            at = self._allot({"home": home, "count": 0}, 1, SLOTS - 1 if is_reserved else SLOTS * 3 // 4)
            if at is not None:
                self._slots[thread, home] = at
            return at

    def _allot(self, line: dict[str, str | int], slots: int, most: int) -> int | None:
        with self._lock:
            if self._descriptor < 0 or self._used + slots > most or time.monotonic() < self._retry_at:
                return None
            # Taken before it is named: a signal handler that counts while the line is written must not get it, too.
            at = self._used
            self._used += slots
            try:
                self._line({name: value if name == "home" else at for name, value in line.items()})
            except OSError:  # the disk is full, and no reason to lose more than the count
                self._retry_at = time.monotonic() + _RETRY_S
                if self._used == at + slots:
                    self._used = at
                return None
            return at

    def _line(self, line: dict[str, str | int]) -> None:
        text = json.dumps(line).encode() + b"\n"
        written = os.write(self._descriptor, text)
        if written != len(text):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)  # the next begins a line
            raise OSError("the tally has no room")


@dataclass(frozen=True, slots=True)
class End:
    """Where a lane ended: the last number given out, and the last that is known to be safe."""

    home: str
    last: int
    safe: int

    @property
    def is_settled(self) -> bool:
        """Whether nothing is missing."""
        return self.safe >= self.last


@dataclass(frozen=True, slots=True)
class Head:
    """Whose tally it is. `same_boot`: the counts are those of the process's last moment; else the host went down in
    between, and they may be older. `uncounted`: events whose lanes could not be named."""

    node: str
    incarnation: str
    same_boot: bool
    uncounted: int

    @property
    def doubt(self) -> str:
        """Why nobody can tell all that it had not sent; empty where the counts do."""
        if not self.same_boot:
            return f"the host of incarnation {self.incarnation} went down: what it had not sent is unknown"
        if self.uncounted:
            return f"incarnation {self.incarnation} had no room to count {self.uncounted} events: lost ones are unknown"
        return ""


def read_head(path: Path) -> Head | None:
    """Whose tally a file is; None where it was never finished. Raises `OSError`."""
    raw = path.read_bytes()
    first = next(_lines(raw), None)
    if first is None or "node" not in first:
        return None
    return Head(str(first["node"]), str(first["incarnation"]), first.get("boot") == _boot(), _uncounted(raw, first))


def read_ends(path: Path) -> list[End]:
    """Where each lane of a tally ended. Where events were not counted, they may be of any lane: each has an end that no
    number given out can be behind, and only what is missing for certain is not settled. Raises `OSError`."""
    raw = path.read_bytes()
    if len(raw) < _BYTES:
        return []
    view = memoryview(raw[:_BYTES]).cast("Q")
    given: dict[str, int] = {}
    safe: dict[str, int] = {}
    for line in _lines(raw):
        home = str(line.get("home", ""))
        if "count" in line:
            given[home] = given.get(home, 0) + view[int(line["count"])]
        elif "marks" in line:
            at = int(line["marks"])
            given[home] = given.get(home, 0) - view[at] + view[at + 1]
            safe[home] = view[at + 2]
    if uncounted := _uncounted(raw, next(_lines(raw), {})):
        safe = {home: safe[home] if safe.get(home, last) < last else last + uncounted for home, last in given.items()}
        given = {home: last + uncounted for home, last in given.items()}
    return [End(home, last, safe.get(home, 0)) for home, last in given.items()]


def folder_name(node: str) -> str:
    """The folder of a node, in which each incarnation has its own."""
    name = "n-" + quote(node, safe="")
    return name if len(name) <= 200 else "h-" + hashlib.sha256(node.encode()).hexdigest()


def _mapped(path: Path) -> "memoryview[int]":
    # Opened on its own: a mapping keeps its descriptor, and with that it would keep the lock.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")
    finally:
        os.close(descriptor)


def take(path: Path) -> int | None:
    """Lock the tally of a process that is gone: the lock's descriptor, or None where it is another's, or not there."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _lines(raw: bytes) -> Iterator[dict[str, str | int]]:
    """The lines that are whole: a kill may have torn the last one, whose slot is not in use then."""
    for text in raw[_BYTES:].split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def _uncounted(raw: bytes, first: dict[str, str | int]) -> int:
    """Earlier versions did not say, and used the last slot as any other."""
    return memoryview(raw[:_BYTES]).cast("Q")[int(first["uncounted"])] if "uncounted" in first else 0


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
