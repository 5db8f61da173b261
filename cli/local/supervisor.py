"""Keeps the members of a stack running: one that dies is started again and a line says so."""

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...schemas.errors import StackError
from .kafka import KafkaBroker
from .processes import POLL_S, Child, describe

WATCH_S = 0.1
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
WINDOW_S = 60.0
"""A member that dies more often than `PAUSES_S` has entries within this time is given up, and the stack with it."""

_log = logging.getLogger("kvtrail.cli")


class Member(Protocol):
    """A part of the stack, as the supervisor sees it."""

    name: str

    @property
    def pid(self) -> int: ...
    @property
    def running(self) -> bool: ...
    def start(self) -> None: ...
    def ready(self) -> bool: ...
    def ask_to_stop(self, again: bool) -> None: ...
    def stop(self, deadline_s: float) -> bool: ...
    def kill(self) -> None: ...
    def death(self) -> StackError: ...
    def how(self) -> str: ...


class Worker:
    """A kvtrail command as a child process, ready when `is_ready(child)` holds."""

    def __init__(self, name: str, child: Child, is_ready: Callable[[Child], bool], *, hangup: bool = False) -> None:
        self.name = name
        self.child = child
        self._is_ready = is_ready
        self._hangup = hangup
        self._was_ready = False

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def running(self) -> bool:
        return self.child.running

    def start(self) -> None:
        self._was_ready = False
        self.child.start()

    def ready(self) -> bool:
        self._was_ready = self._was_ready or self._is_ready(self.child)
        return self._was_ready and self.running

    def ask_to_stop(self, again: bool) -> None:
        """`again`: it will be started again at once, which a static group member wants to know (SIGHUP)."""
        self.child.signal(signal.SIGHUP if again and self._hangup else signal.SIGTERM)

    def stop(self, deadline_s: float) -> bool:
        return self.child.finish(deadline_s)

    def kill(self) -> None:
        self.child.kill()

    def death(self) -> StackError:
        return self.child.death()

    def how(self) -> str:
        return describe(self.child.returncode)


class BrokerMember:
    """The local Kafka broker as a member; its start returns when it is ready."""

    name = "kafka"

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker

    @property
    def pid(self) -> int:
        return self.broker.pid

    @property
    def running(self) -> bool:
        return self.broker.running

    def start(self) -> None:
        self.broker.start()

    def ready(self) -> bool:
        return self.broker.running

    def ask_to_stop(self, again: bool) -> None:
        """Nothing: its `stop` asks and waits."""

    def stop(self, deadline_s: float) -> bool:
        return self.broker.stop(deadline_s)

    def kill(self) -> None:
        self.broker.kill()

    def death(self) -> StackError:
        return self.broker.death()

    def how(self) -> str:
        return self.broker.how()


class Supervisor:
    """Watches members from a thread. `failed` is set once a member had to be given up."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.lock = threading.RLock()
        self.over = threading.Event()
        self.failed: StackError | None = None
        self._say = say
        self._watched: dict[str, _Watched] = {}
        self._thread = threading.Thread(target=self._run, name="kvtrail-supervisor", daemon=True)

    def begin(self) -> None:
        """Start watching."""
        self._thread.start()

    def end(self) -> None:
        """Stop watching; members are left as they are."""
        self.over.set()
        if self._thread.is_alive():
            self._thread.join()

    def keep(self, member: Member) -> None:
        """From now on `member` is started again when it dies. It must be running."""
        with self.lock:
            self._watched[member.name] = _Watched(member)

    def let_go(self, member: Member) -> None:
        """From now on `member` may end."""
        with self.lock:
            self._watched.pop(member.name, None)

    def _run(self) -> None:
        while not self.over.wait(WATCH_S):
            with self.lock:
                for watched in list(self._watched.values()):
                    self._look_after(watched)

    def _look_after(self, watched: "_Watched") -> None:
        member, now = watched.member, time.monotonic()
        if member.running:
            if watched.died_at is not None and member.ready():
                self._say(f"{member.name} is back after {now - watched.died_at:.1f} s")
                watched.died_at = watched.due = None
            return
        if watched.due is None:
            watched.died_at = watched.died_at or now
            watched.deaths.append(now)
            while watched.deaths[0] < now - WINDOW_S:
                watched.deaths.popleft()
            if len(watched.deaths) > len(PAUSES_S):
                self._give_up(watched)
                return
            watched.due = now + PAUSES_S[len(watched.deaths) - 1]
            self._say(f"{member.name} ended with {member.how()}: starting it again")
        if now >= watched.due:
            watched.due = None
            try:
                member.start()
            except StackError as error:
                watched.refusal = error
                _log.warning("%s could not be started: %s", member.name, error)
            else:
                watched.refusal = None

    def _give_up(self, watched: "_Watched") -> None:
        self.failed = watched.refusal or watched.member.death()
        self._watched.clear()
        self.over.set()


class _Watched:
    def __init__(self, member: Member) -> None:
        self.member = member
        self.deaths: deque[float] = deque()
        self.died_at: float | None = None
        self.due: float | None = None
        self.refusal: StackError | None = None  # why its last start was refused


def wait_ready(member: Member, deadline_s: float) -> None:
    """Return once `member` is ready. Raises `StackError` with the end of its log when it dies or takes too long."""
    until = time.monotonic() + deadline_s
    while not member.ready():
        if not member.running:
            raise member.death()
        if time.monotonic() > until:
            raise StackError(
                f"{member.name} was not ready after {deadline_s:.0f} s.",
                remedy="Read its log in the logs folder; a machine under load may only need another try.",
            )
        time.sleep(POLL_S)
