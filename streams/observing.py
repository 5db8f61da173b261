"""Observations: what the judges of single partitions hand on to the rules that compare several homes.

One record holds what came of some records of one partition of the lifecycle topic, in their order. It says of each
which record that was, so that whoever reads it can drop what it has had: a detector that was killed says it again.
"""

import asyncio
from collections.abc import Sequence

import msgspec
from aiokafka import AIOKafkaProducer
from msgspec import Struct

from ..judging.observations import Observation
from ..schemas.errors import UndecodableRecord
from ..schemas.topics import OBSERVATIONS

_AT_ONCE = 2000
"""Observations in one record, about: a few hundred KB at most."""


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
    """The records that hold these, in order."""
    records: list[bytes] = []
    some: list[Observed] = []
    size = 0
    for one in observed:
        some.append(one)
        size += len(one.observations)
        if size >= _AT_ONCE:
            records.append(_encoder.encode(Observations(partition, some)))
            some, size = [], 0
    return [*records, _encoder.encode(Observations(partition, some))] if some else records


def unpack(raw: bytes) -> Observations:
    """A record's content. Raises `UndecodableRecord`."""
    try:
        found = _decoder.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError):
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
