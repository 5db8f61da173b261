"""Observations: what the judges of single partitions hand on to the rules that compare several homes.

One record holds what came of some records of one partition of the lifecycle topic, in their order. It says of each
which record that was, so that whoever reads it can drop what it has had: a detector that was killed says it again.
"""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec
from aiokafka import AIOKafkaProducer
from msgspec import Struct

from ..judging.observations import Observation
from ..schemas.errors import UndecodableRecord
from ..schemas.topics import OBSERVATIONS

AT_ONCE_BYTES = 256 * 1024
"""Of one record on the topic, about."""


class Observed(Struct, frozen=True, array_like=True):
    """What was observed in one record of the lifecycle topic, appended at `append_us`.

    A record that settles much at once, as one that closes a gap, can be the occasion of more observations than a record
    on the topic holds: they come in parts, numbered from 0, and `more` follow all but the last.
    """

    offset: int
    append_us: int
    observations: tuple[Observation, ...]
    part: int = 0
    more: bool = False


class Observations(Struct, frozen=True, array_like=True):
    """One record on `kvtrail.observations`."""

    partition: int
    observed: list[Observed]
    v: int = 1


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Observations)


def pack(partition: int, observed: Sequence[Observed]) -> list[bytes]:
    """The records that hold these, in order, none much larger than `AT_ONCE_BYTES`."""
    records: list[bytes] = []
    some: list[msgspec.Raw] = []
    size = 0
    for one in observed:
        whole = _encoder.encode(one)
        for raw in (whole,) if len(whole) <= AT_ONCE_BYTES else map(_encoder.encode, _parts(one)):
            if some and size + len(raw) > AT_ONCE_BYTES:
                records.append(_encoder.encode((partition, some, 1)))
                some, size = [], 0
            some.append(msgspec.Raw(raw))
            size += len(raw)
    return [*records, _encoder.encode((partition, some, 1))] if some else records


def _parts(one: Observed) -> Iterator[Observed]:
    part, begin, size = 0, 0, 0
    for at, observation in enumerate(one.observations):
        length = len(_encoder.encode(observation))
        if at > begin and size + length > AT_ONCE_BYTES:
            yield Observed(one.offset, one.append_us, one.observations[begin:at], part, True)
            part, begin, size = part + 1, at, 0
        size += length
    yield Observed(one.offset, one.append_us, one.observations[begin:], part)


def unpack(raw: bytes) -> Observations:
    """A record's content. Raises `UndecodableRecord`."""
    try:
        found = _decoder.decode(raw)
    except msgspec.DecodeError:
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
