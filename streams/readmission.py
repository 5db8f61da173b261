"""Dead letters sent again: the exact bytes, to the topic they came from, once this build can read them."""

import asyncio
import uuid
from collections.abc import Sequence

from aiokafka.errors import KafkaError
from msgspec import Struct

from ..schemas.config import KafkaConfig
from ..schemas.context import decode_record
from ..schemas.dead_letters import DeadLetter
from ..schemas.envelope import EnvelopeDecoder
from ..schemas.errors import BadInput, KvtrailError
from ..schemas.facts import decode_fact
from ..schemas.findings import decode_finding
from ..schemas.topics import CONTEXT, FACTS, FINDINGS, LIFECYCLE
from .clients import producer as make_producer
from .clients import unreachable

_PATIENCE_S = 30.0


class NotReadmitted(KvtrailError):
    """Sending the record again would change nothing, or not what it should."""

    code = "not_readmitted"


class Readmitted(Struct, frozen=True, kw_only=True):
    """Where a letter's record stands now."""

    letter: DeadLetter
    partition: int
    offset: int


def letter_id(letter: DeadLetter) -> str:
    """`kvtrail.lifecycle/2/1041`, and `/7` behind it where only the event with that index was refused."""
    where = f"{letter.topic}/{letter.partition}/{letter.offset}"
    return where if letter.index is None else f"{where}/{letter.index}"


def key_of(letter: DeadLetter) -> bytes:
    """The key to send the record with: the one its content demands. Raises `NotReadmitted`, or the `BadInput` that
    this build has against the record still."""
    if letter.index is not None:
        raise NotReadmitted(
            "is a single event of a record whose other events were accepted; its number counts as seen.",
            field=letter_id(letter),
            remedy="Let its producer, mended, report the same again as a new event.",
        )
    if letter.topic == LIFECYCLE:
        batch = EnvelopeDecoder().decode(letter.raw)
        for reject in batch.rejects:
            raise reject.error
        return batch.home.encode()
    if letter.topic == FINDINGS:
        return decode_finding(letter.raw).home.encode()
    if letter.topic == FACTS:
        # Facts get a fresh key each time: the topic is compacted, and a fact keeps its first place.
        return f"{decode_fact(letter.raw).id}/{uuid.uuid4().hex}".encode()
    if letter.topic == CONTEXT:
        return decode_record(letter.raw, EnvelopeDecoder()).request_id.encode()
    raise NotReadmitted("comes from a topic that nothing is sent to again.", field=letter_id(letter), remedy="None.")


def sort_out(
    letters: Sequence[DeadLetter],
) -> tuple[list[tuple[DeadLetter, bytes]], list[tuple[DeadLetter, KvtrailError]]]:
    """Those that can be sent again, with their keys, in the order in which they stood in their topics, each record
    once; and the others, with the reason."""
    good: dict[str, tuple[DeadLetter, bytes]] = {}
    bad: list[tuple[DeadLetter, KvtrailError]] = []
    for letter in sorted(letters, key=lambda one: (one.topic, one.partition, one.offset, one.index or -1)):
        try:
            good.setdefault(letter_id(letter), (letter, key_of(letter)))
        except (BadInput, NotReadmitted) as error:
            bad.append((letter, error))
    return [*good.values()], bad


async def readmit(kafka: KafkaConfig, letters: Sequence[tuple[DeadLetter, bytes]]) -> list[Readmitted]:
    """Publish the records in order, and return when the broker has all of them. Raises `BrokerError`; some may be
    there then, and sending all of them again is harmless: events that were stored before are dropped."""
    producer = make_producer(kafka, "kvtrail-dead-letter-replay")
    done: list[Readmitted] = []
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await producer.start()
        for letter, key in letters:
            async with asyncio.timeout(_PATIENCE_S):
                written = await producer.send_and_wait(letter.topic, letter.raw, key=key)
            done.append(Readmitted(letter=letter, partition=written.partition, offset=written.offset))
    except (KafkaError, OSError, TimeoutError) as error:
        wrapped = error if isinstance(error, KafkaError) else KafkaError(type(error).__name__)
        raise unreachable(kafka, wrapped) from error
    finally:
        await producer.stop()
    return done
