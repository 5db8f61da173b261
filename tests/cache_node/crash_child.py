"""Run as a script: stores entries until it kills itself, with SIGKILL, at one point of the way to the disk.

    crash_child.py DIRECTORY POINT

Points are counted over every write, sync and rename; at a write, half of the bytes are written first. What `put` has
returned for is written to DIRECTORY/done.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.tests.cache_node.rig import identity, tensors

VERSIONS = ("one", "two", "three")


class Fuse:
    """Kills the process at the n-th point."""

    def __init__(self, point: int) -> None:
        self.left = point

    def wrap(self, call: Callable[..., Any], half: bool = False) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if half:
                    descriptor, data, offset = args
                    call(descriptor, data[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args)

        return guarded


def main(directory: Path, point: int) -> None:
    publisher = LifecyclePublisher("node-1", MemoryTransport())
    store = EntryStore(directory / "nvme", publisher, capacity_bytes=1 << 30)
    fuse = Fuse(point)
    for name, half in (("pwrite", True), ("fdatasync", False), ("fsync", False)):
        setattr(os, name, fuse.wrap(getattr(os, name), half))
    rename = Path.rename
    Path.rename = fuse.wrap(rename)  # type: ignore[method-assign]  # this process is here to die at it
    done = os.open(directory / "done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for version in VERSIONS:
        assert store.put("k", tensors(version), identity(content=version), tokens=1)
        assert store.put(f"k-{version}", tensors(version), identity(), tokens=1)
        os.write(done, f"{version}\n".encode())
    os.write(done, b"end\n")


if __name__ == "__main__":
    # One interpreter for many crashes: each runs in a child, forked before any thread exists.
    root = Path(sys.argv[1])
    for at in range(int(sys.argv[2]), int(sys.argv[3])):
        child = os.fork()
        if child == 0:
            folder = root / str(at)
            folder.mkdir()
            main(folder, at)
            os._exit(0)
        os.waitpid(child, 0)
