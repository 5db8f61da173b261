"""The agent's socket: which of two agents has it, its rights, and which processes may publish through it."""

import asyncio
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..schemas.errors import ConfigError

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group id of a peer."""


class Listener:
    """The socket at `path`, and beside it the folder `tallies`, where engines count for the agent to read.

    `group`, where there is one, may open both. `allowed` says whether a process may publish, by its user and group id.
    """

    def __init__(self, path: Path, group: int | None, allowed: Callable[[int, int], bool]) -> None:
        self.path = path
        self.tallies = path.with_name(path.name + ".tallies")
        self._group = group
        self._allowed = allowed
        self._lock = -1

    def claim(self) -> None:
        """Make the folders and lock them against other agents, until `release`. Raises `ConfigError`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.tallies.mkdir(exist_ok=True)
            self._lock = self._locked()
            self.tallies.chmod(0o2770)
            self._give_to_group(self.tallies)
        except OSError as error:
            raise _impossible(error) from error

    def bind(self) -> socket.socket:
        """The socket, in place of one that a dead agent left. Raises `ConfigError`."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if os.path.lexists(self.path):
                if not stat.S_ISSOCK(self.path.lstat().st_mode):
                    raise ConfigError(
                        "is there, and is no socket.", field="agent.socket", remedy="Name a path for a socket."
                    )
                self.path.unlink()
            before = os.umask(0o117)  # from the first moment: 0660
            try:
                listener.bind(str(self.path))
            finally:
                os.umask(before)
            self._give_to_group(self.path)
        except OSError as error:
            listener.close()
            raise _impossible(error) from error
        except ConfigError:
            listener.close()
            raise
        return listener

    def may_publish(self, writer: asyncio.StreamWriter) -> bool:
        """Whether the process at the other end of a connection may."""
        link = writer.get_extra_info("socket")
        _, uid, gid = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return self._allowed(uid, gid)

    def unlink(self) -> None:
        """Nobody can connect any more."""
        with suppress(OSError):
            self.path.unlink()

    def release(self) -> None:
        """Another agent may have the socket."""
        if self._lock >= 0:
            os.close(self._lock)

    def _locked(self) -> int:
        """Two agents that start at once find no other that listens: which one serves is decided before."""
        lock = os.open(self.tallies, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError("is served by another agent.", field="agent.socket", remedy="Stop that one.") from None
        return lock

    def _give_to_group(self, path: Path) -> None:
        if self._group is not None:
            os.chown(path, -1, self._group)


def _impossible(error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot be made ({error.strerror or error}).",
        field="agent.socket",
        remedy="Name a short path in a folder of this user's that can be written.",
    )
