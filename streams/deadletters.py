"""Dead letters to `kvtrail.dead-letter`. Only the sink writes them."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer

from ..schemas.dead_letters import DeadLetter, encode_dead_letter
from ..schemas.topics import DEAD_LETTER
from ..store.rows import Source


class DeadLetterTopic:
    """Publishes letters and says where each one landed."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def publish(self, letters: Sequence[DeadLetter]) -> list[tuple[Source, DeadLetter]]:
        """Returns when all are acknowledged, in order."""
        sent = [
            await self._producer.send(
                DEAD_LETTER, encode_dead_letter(letter), key=f"{letter.topic}/{letter.partition}".encode()
            )
            for letter in letters
        ]
        return [
            (Source(DEAD_LETTER, written.partition, written.offset, written.timestamp * 1000), letter)
            for written, letter in zip(await asyncio.gather(*sent), letters, strict=True)
        ]
