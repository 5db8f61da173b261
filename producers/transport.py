"""Where records go: one interface, several ends (Kafka, a recording, memory, a spool in front of another).

A transport is used by one sender thread with one event loop and never sees the engine. It keeps no buffer of its
own: `send` returns when the record is safe at the other end, and what was not acknowledged is sent again, by the
sender, with the same bytes. So a record may arrive twice, never out of a lane's order, and event ids remove the rest.
"""

from typing import Protocol, Self

from ..schemas.errors import KvtrailError


class TransportError(KvtrailError):
    """The record was not acknowledged. Sending the same bytes again may succeed; the sender does, for ever."""

    code = "transport"

    def __init__(self, message: str, *, reason: str = "", field: str = "", remedy: str = "") -> None:
        super().__init__(message, field=field, remedy=remedy)
        self.reason = reason or self.code
        """Short and stable, for metrics: what the other end said."""


class RecordRejected(TransportError):
    """The other end will never take this record. Its events are dropped, counted, and show as a gap."""

    code = "rejected"


class Line(Protocol):
    """What a sender needs of an end. All coroutines run in the sender's loop; any exception means "try again"."""

    async def start(self) -> None:
        """Open what can be opened. Called again, after a pause, when it raises."""
        ...

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        """Deliver one record of the lane of `home`, the run `first`..`last`; return when it is safe.

        Called for several homes at once, never twice at once for one home. Raises `RecordRejected` for a record
        that can never be taken, anything else where trying again can help.
        """
        ...

    async def stop(self) -> None:
        """Close everything, without waiting for what was not acknowledged. Harmless when nothing was opened."""
        ...


class Transport(Line, Protocol):
    """An end that a publisher can be given: one that can be had anew after a fork."""

    def fresh(self) -> Self:
        """A transport to the same end that shares no socket, file or task with this one, for a forked child."""
        ...
