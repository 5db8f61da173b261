"""Dead letters to `kvtrail.dead-letter`."""

import asyncio
import base64
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from msgspec.structs import replace

from ..schemas.dead_letters import DeadLetter, encode_dead_letter
from ..schemas.topics import DEAD_LETTER
from ..store.rows import Source
from .clients import LARGEST_RECORD

_ROOM = 8 * 1024
"""Bytes of a record that are not the letter: key, headers, framing."""


class DeadLetterTopic:
    """Publishes letters and says where each one landed."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def publish(self, letters: Sequence[DeadLetter]) -> list[tuple[Source, DeadLetter]]:
        """Returns when all are acknowledged, in order, each as it was given."""
        sent = [
            await self._producer.send(DEAD_LETTER, fitted(letter), key=f"{letter.topic}/{letter.partition}".encode())
            for letter in letters
        ]
        return [
            (Source(DEAD_LETTER, written.partition, written.offset, written.timestamp * 1000), letter)
            for written, letter in zip(await asyncio.gather(*sent), letters, strict=True)
        ]


def fitted(letter: DeadLetter, limit: int = LARGEST_RECORD - _ROOM) -> bytes:
    """The letter in at most `limit` bytes: a record near the broker's limit has no room in base64, and only its
    beginning is kept on the topic then. Not to be able to refuse it would stop its partition for ever."""
    encoded = encode_dead_letter(letter)
    if len(encoded) <= limit:
        return encoded
    raw = letter.raw
    cut = f" The topic has only the beginning of its {len(raw)} bytes."
    bare = len(encode_dead_letter(replace(letter, raw_base64="", message=letter.message + cut)))
    kept = raw[: max(0, (limit - bare) // 4 * 3)]
    return encode_dead_letter(replace(letter, raw_base64=base64.b64encode(kept).decode(), message=letter.message + cut))
