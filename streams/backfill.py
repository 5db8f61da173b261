"""Recorded events into Kafka, through the publisher's own transport: the same bytes, under the same lanes and numbers.

So it may be done twice, or over what a live producer has sent already: event ids are the same, and what is known is
dropped by the sink and by every judge. Lines of one home are sent one after the other, as a publisher does, many homes
at once; a fact waits until everything before it has been acknowledged, since it governs only what follows it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ..producers.facts import publish_facts_async
from ..producers.kafka import KafkaTransport
from ..producers.transport import RecordRejected, Transport, TransportError
from ..schemas.config import KafkaConfig
from ..schemas.envelope import EnvelopeDecoder
from ..schemas.errors import BadInput, BrokerError, InvalidField
from ..schemas.facts import Fact, decode_fact
from .clients import LARGEST_RECORD

IN_FLIGHT = 64
LARGEST_LINE = LARGEST_RECORD - 4096
"""Bytes; beside its value a record has a key and a head."""
_PATIENCE_S = 60.0


class Line(Struct, frozen=True):
    """One record of a recording: a fact, or bytes for the log with the run of the home that they announce."""

    fact: Fact | None = None
    home: str = ""
    raw: bytes = b""
    first: int = 0
    last: int = 0


class Tally(Struct):
    """What has been sent. `events` counts numbers, refused ones included."""

    records: int = 0
    events: int = 0
    facts: int = 0
    refused: int = 0


class _Other(Struct):
    """Lines of a recording that are not for the log."""

    recording: msgspec.Raw = msgspec.Raw()
    answer: msgspec.Raw = msgspec.Raw()
    fact: msgspec.Raw = msgspec.Raw()


def read(path: Path, refuse: Callable[[int, BadInput], None]) -> Iterator[Line]:
    """The lines of a JSON Lines file: envelopes, plain events, `{"fact": ...}`. `refuse` hears of each line that a
    worker would refuse, whole or in part: none of it is sent."""
    decoder = EnvelopeDecoder()
    with path.open("rb") as stream:
        for number, line in enumerate(_lines(stream), 1):
            raw = line.strip()
            if not raw:
                continue
            try:
                if len(line.rstrip(b"\r\n")) > LARGEST_LINE:
                    raise InvalidField(
                        f"is longer than {LARGEST_LINE} bytes.", field="record",
                        remedy="Split the envelope: a run of its events is an envelope too.",
                    )  # fmt: skip
                found = _line(decoder, raw)
            except BadInput as error:
                refuse(number, error)
                continue
            if found is not None:
                yield found


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one that is too long its beginning, which is too long as well."""
    while line := stream.readline(LARGEST_LINE + 2):
        yield line
        while line and not line.endswith(b"\n"):
            line = stream.readline(LARGEST_LINE)


def _line(decoder: EnvelopeDecoder, raw: bytes) -> Line | None:
    if raw.startswith((b'{"fact"', b'{"recording"', b'{"answer"')):
        try:
            other = msgspec.json.decode(raw, type=_Other)
        except msgspec.DecodeError:
            other = _Other()
        if bytes(other.fact):
            return Line(fact=decode_fact(bytes(other.fact)))
        if bytes(other.recording) or bytes(other.answer):
            return None
    batch = decoder.decode(raw)
    for reject in batch.rejects:
        raise reject.error
    assert batch.first is not None and batch.last is not None
    return Line(home=batch.home, raw=raw, first=batch.first, last=batch.last)


async def backfill(
    kafka: KafkaConfig, lines: Iterable[Line], *, transport: Transport | None = None, tally: Tally | None = None
) -> Tally:
    """Send the lines, and return when the broker has all of them. Raises `BrokerError`: what was sent stays, and
    sending everything again is harmless."""
    sender = _Sender(kafka, transport or KafkaTransport(kafka), tally if tally is not None else Tally())
    try:
        for line in lines:
            await sender.take(line)
        await sender.drain()
    finally:
        await sender.stop()
    return sender.tally


class _Sender:
    def __init__(self, kafka: KafkaConfig, transport: Transport, tally: Tally) -> None:
        self.tally = tally
        self._kafka = kafka
        self._transport = transport
        self._last: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def take(self, line: Line) -> None:
        if line.fact is not None:
            await self.drain()
            await publish_facts_async(self._kafka, [line.fact])
            self.tally.facts += 1
            return
        await self._room.acquire()
        before = self._last.get(line.home)
        if before is not None and before.done():
            before.result()
        self._last[line.home] = asyncio.create_task(self._send(line, before))

    async def drain(self) -> None:
        for task in [*self._last.values()]:
            await task
        self._last.clear()

    async def stop(self) -> None:
        tasks = [*self._last.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.stop()

    async def _send(self, line: Line, before: "asyncio.Task[None] | None") -> None:
        try:
            if before is not None:
                await before
            await self._try(line)
            self.tally.records += 1
            self.tally.events += line.last - line.first + 1
        finally:
            self._room.release()

    async def _try(self, line: Line) -> None:
        """The same bytes until they are acknowledged, for a while."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + _PATIENCE_S, 0.1
        while True:
            try:
                await self._transport.send(line.home, line.raw, line.first, line.last)
            except TransportError as error:
                if isinstance(error, RecordRejected) or loop.time() > until:
                    raise BrokerError(
                        f"a record could not be sent ({error.reason}).",
                        field="kafka.bootstrap",
                        remedy="Check the broker, then send the whole file again: what is there already is dropped.",
                    ) from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                return
