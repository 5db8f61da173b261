"""When a process ends or multiplies: every publisher is closed at exit, and begins anew in a forked child.

Standard library only.
"""

import atexit
import os
import sys
from typing import Protocol


class Publishing(Protocol):
    """What is closed and forked."""

    def close(self) -> bool:
        """Drain within its own deadline and stop."""
        ...

    def after_fork(self) -> None:
        """In the child: begin anew, without touching what is the parent's."""
        ...


_live: set[Publishing] = set()


def keep(publisher: Publishing) -> None:
    """Close it at exit unless it is closed before."""
    _live.add(publisher)


def forget(publisher: Publishing) -> None:
    """It is closed."""
    _live.discard(publisher)


def close_with_worker(publisher: Publishing) -> None:
    """A worker of multiprocessing ends without running atexit's handlers, only its own, which it forgets when it
    begins: so they are set when a worker begins to publish, and again when one that has a publisher begins."""
    if "multiprocessing.process" in sys.modules:
        from multiprocessing.process import parent_process
        from multiprocessing.util import Finalize, register_after_fork

        if parent_process() is not None:
            Finalize(None, publisher.close, exitpriority=0)
        register_after_fork(publisher, lambda ours: Finalize(None, ours.close, exitpriority=0))


def _close_all() -> None:
    for publisher in list(_live):
        publisher.close()


def _fork_all() -> None:
    for publisher in list(_live):
        publisher.after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_fork_all)
