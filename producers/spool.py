"""The spool: a folder on disk for each incarnation of a node, and what earlier incarnations left in theirs.

A folder holds a tally (how far each lane was counted) and segments (records that could not be sent). Its owner keeps
the tally locked; a folder whose lock is free belonged to a process that is gone. The next process of the node takes
it over: its records are sent before anything newer, then each lane that should have gone further gets one heartbeat
behind its last number, so that what a kill swallowed shows as a gap of that lane; then the folder is removed.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ..schemas.errors import ConfigError
from .lanes import heartbeat
from .packing import Writer
from .segments import SEGMENT_BYTES, Frame, Segments
from .tally import TALLY, End, Head, Tally, folder_name, read_ends, read_head, take
from .telling import log
from .transport import TransportError

GROUP = 16
"""Records of different homes that may be on their way from the spool at once."""


class SpoolFull(TransportError):
    """The spool, or its disk, takes no more: the record waits in memory, and what does not fit there is dropped."""

    code = "spool_full"


class Folder:
    """What one incarnation left, or is leaving: segments, and the tally beside them."""

    def __init__(self, path: Path, lock: int = -1, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path = path
        self.segments = Segments(path, segment_bytes=segment_bytes)
        self.short: set[str] = set()
        """Homes of which a record was lost here."""
        self.ending: set[str] = set()
        """Homes whose lane is known to need its end declared."""
        self._lock = lock
        self._offset = self._next = 0
        self.freed = 0
        """Bytes of files that are done with."""

    def group(self) -> list[Frame]:
        """The oldest records, of as many different homes; the same again until they are `passed`."""
        while files := self.segments.files():
            frames: list[Frame] = []
            self._next = self._offset
            for frame, end in self.segments.read(files[0], self._offset):
                if len(frames) == GROUP or any(frame.home == other.home for other in frames):
                    break
                frames.append(frame)
                self._next = end
            if frames:
                return frames
            if len(files) == 1:
                self.segments.close()
            self.freed += files[0].stat().st_size
            files[0].unlink()
            self._offset = 0
        return []

    def passed(self) -> None:
        """What `group` has returned is done with."""
        self._offset = self._next

    def tails(self) -> list[Frame]:
        """For each lane that ended before its last number: a heartbeat behind it, in that lane."""
        head = read_head(self.path / TALLY)
        if head is None or not head.same_boot:
            return []
        every = self.segments.damaged > 0
        return tails(
            head,
            (end for end in read_ends(self.path / TALLY) if every or end.home in self.short or not end.is_settled),
        )

    def remove(self) -> None:
        """Everything in it is safe elsewhere."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Let go of it; whoever comes next finds it as it is."""
        self.segments.close()
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)


class Spool:
    """The folder of this incarnation, bounded by `max_bytes`, behind those of earlier ones.

    Raises `ConfigError` where the folder cannot be made. Not thread safe: it belongs to the sender's thread, save for
    the tally, which the engine's threads count in.
    """

    def __init__(
        self, root: Path, node: str, incarnation: str, *, max_bytes: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.bytes = 0
        """On disk, earlier incarnations' included."""
        self.waiting: dict[str, int] = {}
        """Home -> records on disk. A home that has any sends nothing past them."""
        self.lost = 0
        """Events that were on disk and could not be read, or that the broker would not take."""
        self.unknown: list[Head] = []
        """Earlier incarnations of which nobody can tell all that they had not sent."""
        self.trouble = ""
        """Why the last record could not be kept, or empty: `spool_full`, `disk_full`, `disk_error`."""
        self.declared = 0
        """Lanes of killed processes whose end was declared."""
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max(1, max_bytes // 4))
        self._node_folder = root / folder_name(node)
        self._tails: list[Frame] = []
        self._tails_of: Folder | None = None
        path = self._node_folder / incarnation
        try:
            path.mkdir(parents=True, mode=0o700)
            self.tally = Tally(path / TALLY, node, incarnation)
        except OSError as error:
            raise ConfigError(
                f"the spool cannot be made there ({error.strerror}).",
                field="publisher.spool_directory",
                remedy="Name a folder on a disk with room that this process may write to.",
            ) from error
        self._own = Folder(path, segment_bytes=self._segment_bytes)
        self._folders: list[Folder] = [self._own]

    @property
    def records(self) -> int:
        """Records on disk."""
        return sum(self.waiting.values())

    def adopt(self) -> None:
        """Take over what processes that are gone have left."""
        earlier: list[Folder] = []
        for path in sorted(self._node_folder.iterdir()):
            if path == self._own.path:
                continue
            try:
                folder = self._taken(path)
            except OSError as error:
                log.warning("what is in %s cannot be taken over: %s", path, error.strerror)
                continue
            if folder is not None:
                earlier.append(folder)
        for folder in earlier:
            for frame in folder.tails():
                folder.ending.add(frame.home)
                self._count(frame.home, 1)
        self._folders[:0] = earlier

    def _taken(self, path: Path) -> Folder | None:
        """The folder of a process that is gone, counted; None: another's. Raises `OSError`; nothing is taken then."""
        lock = take(path / TALLY)
        if lock is None:
            return None
        folder = Folder(path, lock)
        try:
            head = read_head(path / TALLY)
            size = folder.segments.size
            homes = [frame.home for file in folder.segments.files() for frame, _ in folder.segments.read(file)]
        except OSError:
            folder.release()
            raise
        if head is not None and head.doubt:
            self.unknown.append(head)
        for home in homes:
            self._count(home, 1)
        self.bytes += size
        return folder

    def append(self, frame: Frame) -> None:
        """Keep one record. Raises `SpoolFull`; the record is not there then."""
        if self.bytes + len(frame.record) + 128 > self._max_bytes:
            self.trouble = "spool_full"
            raise SpoolFull(
                "is full.",
                reason=self.trouble,
                field="publisher.spool_bytes",
                remedy="Bring the broker back, or allow more.",
            )
        try:
            self.bytes += self._own.segments.write(frame)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.trouble = "disk_full" if full else "disk_error"
            raise SpoolFull(
                f"cannot be written ({error.strerror}).",
                reason=self.trouble,
                field="publisher.spool_directory",
                remedy="Free some disk." if full else "Check the disk.",
            ) from error
        self.trouble = ""
        self._count(frame.home, 1)

    def group(self) -> list[Frame]:
        """The oldest records, each of another home; the same again until they are `passed`. Empty: all is sent."""
        while True:
            folder = self._folders[0]
            if self._tails_of is folder:
                if self._tails:
                    return self._tails[:GROUP]
                self._tails_of = None
                folder.remove()
                self._folders.pop(0)
                continue
            frames = folder.group()
            self.bytes -= folder.freed
            folder.freed = 0
            if frames:
                return frames
            if folder is self._own:
                self.waiting.clear()
                self.bytes = 0
                return []
            self._tails_of, self._tails = folder, folder.tails()
            for frame in self._tails:
                if frame.home not in folder.ending:
                    self._count(frame.home, 1)
            if self._tails:
                log.warning("declaring the ends of %d lanes of a process that was killed", len(self._tails))

    def passed(self, frames: Iterable[Frame]) -> None:
        """These are at the other end."""
        frames = list(frames)
        for frame in frames:
            self._count(frame.home, -1)
        if self._tails_of is not None:
            self._tails = self._tails[len(frames) :]
            self.declared += len(frames)
        else:
            self._folders[0].passed()

    def rejected(self, frame: Frame) -> None:
        """The other end will never take this one: what it held has to show as a gap of its lane."""
        self.lost += frame.last - frame.first + 1
        folder = self._folders[0]
        folder.short.add(frame.home)
        if folder is self._own:
            self.tally.marks(frame.home).safe(0)

    def sync(self) -> None:
        """Put what is in the spool on the disk itself."""
        with suppress(OSError):
            self._own.segments.sync()

    def close(self) -> None:
        """Leave the folders to whoever comes next; an own one that holds nothing and lost nothing is removed."""
        self.sync()
        for folder in self._folders:
            folder.release()
        with suppress(OSError):
            if not self._own.segments.files() and self.tally.is_settled():
                self._own.remove()
        self.tally.close()

    def abandon(self) -> None:
        """In a forked child: the parent's folders are the parent's. What was inherited is closed, its locks stay."""
        for folder in self._folders:
            folder.release()
        self.tally.close()

    def _count(self, home: str, by: int) -> None:
        left = self.waiting.get(home, 0) + by
        if left > 0:
            self.waiting[home] = left
        else:
            self.waiting.pop(home, None)


def tails(head: Head, ends: Iterable[End], clock_ns: Callable[[], int] = time.time_ns) -> list[Frame]:
    """For each of these lanes, a heartbeat behind its last number: what is missing before it shows as a gap."""
    writer = Writer(head.node, head.incarnation)
    frames = []
    for end in ends:
        item = heartbeat(clock_ns(), end.home, "the process ended before everything was sent")
        frames.append(Frame(end.home, end.last + 1, end.last + 1, writer.write(end.home, end.last + 1, [item])))
    return frames
