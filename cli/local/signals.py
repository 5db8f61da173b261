"""The first Ctrl-C or SIGTERM stops in order, wherever the program is; the second one ends it at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_BY_SIGNAL = 128


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP raises `KeyboardInterrupt` in the main thread, and the second ends
    the process: its children are on a leash and end with it. Main thread only."""
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(_BY_SIGNAL + number)
        asked = True
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
