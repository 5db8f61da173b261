"""What both workers do as processes: stop on a signal within a deadline of their own, and die rather than go wrong."""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

STOP_DEADLINE_S = 20.0
"""From the signal to the end of the process, whatever hangs. Keep it below the supervisor's own patience."""

FAILED = 1
"""Exit status of a worker that gave up without acknowledging; starting it again is safe and right."""

_log = logging.getLogger("kvtrail.streams.process")


_MIDDLE = 3
"""Looks at the young before those that stayed are looked at a second time."""
_OLD_OBJECTS = 45_000_000
"""That are added to the old before those are looked at: longer than a worker lives."""


def calm_collector(young: int = 50_000) -> None:
    """Let the garbage collector look seldom, and never at what was imported. Workers make millions of objects that
    end by themselves and next to no cycles; looking for those took a seventh of a detector's time.

    An object that stays is looked at twice, however many at a time. So a worker whose objects end soon or stay for good
    wants few at a time, which are still in the processor's caches: a third of the time, and never for long. Where many
    end a little later, with their batch, `young` has to be more than those."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, _MIDDLE, _OLD_OBJECTS // (_MIDDLE * young))


def die(reason: str, error: BaseException | None = None) -> NoReturn:
    """End the process now, unwinding nothing: what has not been acknowledged stays unacknowledged."""
    _log.critical("giving up: %s", reason, exc_info=error)
    logging.shutdown()
    os._exit(FAILED)


async def report(counts: Callable[[], dict[str, int]], log: logging.Logger, every_s: float = 60.0) -> None:
    """Say what has been done so far, now and then, for as long as something is being done."""
    last = counts()
    while True:
        await asyncio.sleep(every_s)
        now = counts()
        if now != last:
            log.info("progress", extra=now)
        last = now


class Stopping:
    """The request to stop. SIGTERM and SIGINT leave for good; SIGHUP is a stop before a restart, after which a
    static member wants its partitions back (systemd: `RestartKillSignal=SIGHUP`)."""

    def __init__(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        self.restart = False
        self._deadline_s = deadline_s
        self._event = asyncio.Event()

    def install(self) -> None:
        """Take over the signals of this process. Call inside its running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._event.is_set():
            return
        _log.info("stopping", extra={"signal": number.name})
        self.restart = number is signal.SIGHUP
        # A thread, not the loop: the loop may be what hangs.
        timer = threading.Timer(self._deadline_s, die, (f"the stop took longer than {self._deadline_s:g} s",))
        timer.daemon = True
        timer.start()
        self._event.set()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Until a signal asks for the stop."""
        await self._event.wait()
