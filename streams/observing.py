"""Observations: what the judges of single partitions hand on to the rules that compare several homes.

One record holds what came of some records of one partition of the lifecycle topic, in their order. It says of each
which record that was, so that whoever reads it can drop what it has had: a detector that was killed says it again.
"""

import asyncio
import zlib
from collections.abc import Sequence

import msgspec
from aiokafka import AIOKafkaProducer
from msgspec import Struct

from ..judging.observations import Observation
from ..schemas.errors import UndecodableRecord
from ..schemas.topics import OBSERVATIONS

AT_ONCE_BYTES = 256 * 1024
"""Of one record on the topic, about; what came of one record of the log stays together, whatever its size."""
_LARGE_BYTES = 768 * 1024
_ZLIB = b"\x78"
"""How a compressed record begins; one that is not compressed begins as an array."""


class Observed(Struct, frozen=True, array_like=True):
    """What was observed in one record of the lifecycle topic, appended at `append_us`."""

    offset: int
    append_us: int
    observations: tuple[Observation, ...]


class Observations(Struct, frozen=True, array_like=True):
    """One record on `kvtrail.observations`."""

    partition: int
    observed: list[Observed]
    v: int = 1


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Observations)


def pack(partition: int, observed: Sequence[Observed]) -> list[bytes]:
    """The records that hold these, in order. One that is too large for a broker as it is, is compressed."""
    records: list[bytes] = []
    some: list[msgspec.Raw] = []
    size = 0
    for one in observed:
        raw = _encoder.encode(one)
        if some and size + len(raw) > AT_ONCE_BYTES:
            records.append(_record(partition, some))
            some, size = [], 0
        some.append(msgspec.Raw(raw))
        size += len(raw)
    return [*records, _record(partition, some)] if some else records


def _record(partition: int, observed: list[msgspec.Raw]) -> bytes:
    record = _encoder.encode((partition, observed, 1))
    return record if len(record) <= _LARGE_BYTES else zlib.compress(record, 1)


def unpack(raw: bytes) -> Observations:
    """A record's content. Raises `UndecodableRecord`."""
    try:
        found = _decoder.decode(zlib.decompress(raw) if raw.startswith(_ZLIB) else raw)
    except (msgspec.DecodeError, msgspec.ValidationError, zlib.error):
        found = None
    if found is None or found.v != 1:
        raise UndecodableRecord("holds no observations.", field="record", remedy="Run workers of one version.")
    return found


class ObservationsTopic:
    """Observations to `kvtrail.observations`, into the partition that they come from, awaited once a batch."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def publish(self, partition: int, observed: Sequence[Observed]) -> None:
        """Returns when all are acknowledged."""
        sent = [
            await self._producer.send(OBSERVATIONS, record, partition=partition) for record in pack(partition, observed)
        ]
        await asyncio.gather(*sent)
