"""The engine's connection to its agent: never waits, and comes back by itself after ever longer pauses."""

import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .agent_wire import take_frames
from .telling import Teller

RETRY_FIRST_S = 0.05
RETRY_CAP_S = 1.0


class Connection:
    """To the agent at `path`; `hello` is said first, each time. What fails is counted, and told to `teller`."""

    def __init__(self, path: Path, hello: bytes, teller: Teller) -> None:
        self.failures = 0
        self.last_error = ""
        self._path = path
        self._hello = hello
        self._teller = teller
        self._socket: socket.socket | None = None
        self._out = bytearray()
        self._in = bytearray()
        self._retry_at = 0.0
        self._pause = RETRY_FIRST_S

    def is_due(self, now: float) -> bool:
        """Whether there is none, and it is time to try."""
        return self._socket is None and now >= self._retry_at

    @property
    def has_unwritten(self) -> bool:
        """Whether the agent has still to take something."""
        return bool(self._out)

    def sockets(self) -> list[int]:
        """What to wait for."""
        return [self._socket.fileno()] if self._socket is not None else []

    def open(self, unanswered: Iterable[bytes]) -> None:
        """Connect, and send what was not answered again."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(str(self._path))
            link.setblocking(False)
        except OSError as error:
            link.close()
            self.failed(type(error).__name__, error)
            return
        self._socket, self._in = link, bytearray()
        self._out = bytearray(self._hello)
        for data in unanswered:
            self._out += data

    def put(self, data: bytes) -> None:
        """Send this after what was put before; nothing without a connection: `open` is told of it."""
        if self._socket is not None:
            self._out += data

    def write(self) -> None:
        """As much as the agent takes now."""
        if self._socket is None or not self._out:
            return
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.failed(type(error).__name__, error)

    def read(self) -> Iterator[dict[str, Any]]:
        """What the agent has answered by now, run by run."""
        if self._socket is None:
            return
        try:
            got = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self.failed(type(error).__name__, error)
            return
        if not got:
            self.failed("agent_gone", ConnectionError("the agent has gone"))
            return
        self._in += got
        for answer in take_frames(self._in):
            if "error" in answer:
                self.failed("agent_refused", PermissionError(str(answer["error"])))
            else:
                yield answer

    def works(self, waiting: int) -> None:
        """A run was answered; `waiting` events are left."""
        self._pause = RETRY_FIRST_S
        if self._teller.up(waiting):
            self.last_error = ""

    def failed(self, reason: str, error: Exception) -> None:
        """It is of no use; another will be tried after a pause."""
        self.failures += 1
        self.last_error = reason
        self._teller.down(error)
        self.hang_up()
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, RETRY_CAP_S)

    def hang_up(self) -> None:
        """Without a word to the agent."""
        link, self._socket = self._socket, None
        if link is not None:
            link.close()
        self._out = bytearray()
