"""What a snapshot that is broken off leaves behind, without a broker."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from kvtrail.schemas.config import KafkaConfig
from kvtrail.streams.snapshots import BLOB_BYTES
from kvtrail.streams.statetopic import StateTopic


class Log:
    """A producer that keeps what would be there after compaction; its next sends may fail."""

    def __init__(self) -> None:
        self.live: dict[bytes, bytes] = {}
        self.fails_after = 1_000_000
        self._sent = 0

    async def send(self, topic: str, value: bytes | None, *, key: bytes, partition: int) -> "asyncio.Future[Any]":
        if self._sent >= self.fails_after:
            raise KafkaError("away")
        self._sent += 1
        if value is None:
            self.live.pop(key, None)
        else:
            self.live[key] = value
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(SimpleNamespace(offset=self._sent - 1))
        return done


@pytest.mark.parametrize("sent", [1, 2, 3, 4])
def test_a_snapshot_that_was_broken_off_goes_with_the_next_one(sent: int) -> None:
    async def scene() -> int:
        log = Log()
        state = StateTopic(KafkaConfig(), log, "writer")
        large = bytes(range(256)) * (2 * BLOB_BYTES // 256)
        await state.write(1, b"whole", 1, 1)
        kept = len(log.live)
        log.fails_after = log._sent + sent
        with pytest.raises(KafkaError):
            await state.write(1, large + b"broken off", 2, 2)
            await state.write(1, large + b"broken off as well", 3, 3)
        log.fails_after = 1_000_000
        await state.write(1, b"whole again", 4, 4)
        return len(log.live) - kept

    assert asyncio.run(scene()) == 0
