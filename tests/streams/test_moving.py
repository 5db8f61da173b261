"""Partitions that go and come back while a worker waits for records: what it reads then is another one's, perhaps."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from kvtrail.schemas.config import Config
from kvtrail.streams.fleet import FleetWorker
from kvtrail.streams.notifier import Notifier

MINE = {TopicPartition("t", 0)}


class Consumer:
    """Each fetch lets something happen, and brings record 50 of a partition of which 10 is the next."""

    def __init__(self, *happens: Callable[[], Any]) -> None:
        self._happens = [*happens]

    def assignment(self) -> set[TopicPartition]:
        return MINE

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        await self._happens.pop(0)()
        record = SimpleNamespace(topic="t", partition=0, offset=50, timestamp=0, value=b"")
        return {tp: [record] for tp in MINE}


class Log(list[str]):
    """What a worker did."""

    def note(self, what: str) -> Callable[..., Any]:
        async def noted(*_: Any) -> None:
            self.append(what)

        return noted


@pytest.mark.parametrize("make", [FleetWorker, Notifier])
@pytest.mark.parametrize("back", [True, False])
def test_what_is_read_during_a_move_is_not_folded_and_the_state_is_read_again_after_it(make: Any, back: bool) -> None:
    async def run() -> Log:
        worker, did = make(Config()), Log()

        async def move() -> None:
            await worker.revoked(MINE)
            did.append("revoked")

        async def assign() -> None:
            worker.assigned(MINE if back else set())
            did.append("assigned")

        async def both() -> None:
            await move()
            await assign()

        async def stop() -> None:
            worker._stopping._event.set()

        async def take_over(owned: set[TopicPartition]) -> None:
            did.append("taken over")
            worker.state = SimpleNamespace(next={0: 10}, offsets={0: 10})

        await worker._consumer.stop()
        worker._consumer = Consumer(both, move, assign, stop)
        worker._take_over, worker._save = take_over, did.note("saved")
        worker._take = worker._fold = lambda *_: did.append("folded")
        worker._advance, worker._behind = did.note("advanced"), lambda _: True
        worker.assigned(MINE)
        await worker._loop()
        await worker._producer.stop()
        return did

    found = asyncio.run(run())
    taken = ["taken over"] if back else []
    assert [each for each in found if each not in ("saved", "advanced")] == [
        "taken over", "revoked", "assigned", *taken, "revoked", "assigned", *taken, *(["folded"] if back else []),
    ]  # fmt: skip


@pytest.mark.parametrize("make", [FleetWorker, Notifier])
def test_what_may_be_anothers_by_now_is_not_saved_over_it(make: Any) -> None:
    async def run() -> Log:
        worker, did = make(Config()), Log()
        await worker._consumer.stop()
        worker._consumer = SimpleNamespace(commit=did.note("committed"))
        worker._snapshots = SimpleNamespace(write=did.note("saved"))
        worker._saving = SimpleNamespace(save=did.note("saved"))
        state = SimpleNamespace(
            changed=True, dump=lambda: b"", encode=lambda _: b"", resume={0: 10}, offsets={0: 10}, journal=0
        )
        await worker.revoked(MINE)
        await worker._save(state)
        assert did == []
        worker._moved, worker._uncommitted = False, True
        await worker._save(state)
        await worker._producer.stop()
        return did

    assert asyncio.run(run()) == ["saved", "committed"]
