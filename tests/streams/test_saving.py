"""When a partition's state is saved, and that it goes on meanwhile."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError
from kvtrail.streams.fold import Fold
from kvtrail.streams.saving import MOST_S, REPLAY_S, SHARE, Saving
from kvtrail.streams.snapshots import Manifest

EVERY_S = 10.0


def in_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """The test, run to its end."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Judge:
    """A state that is its number."""

    def __init__(self) -> None:
        self.number = 0

    def freeze(self) -> "Judge":
        frozen = Judge()
        frozen.number = self.number
        return frozen

    def encode(self) -> bytes:
        return str(self.number).encode()


class Shelf:
    """Keeps what is written, when it is let."""

    def __init__(self) -> None:
        self.written: list[tuple[int, bytes]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.broken = False

    async def write(
        self, partition: int, state: bytes, next_offset: int, last_append_us: int, unjudged: tuple[int, ...] = ()
    ) -> Manifest:
        await self.open.wait()
        if self.broken:
            raise KafkaConnectionError
        self.written.append((next_offset, state))
        return Manifest(
            id="m", partition=partition, next=next_offset, last_append_us=last_append_us, blobs=1, bytes=len(state),
            sha256="",
        )  # fmt: skip


class Scene:
    """One partition's saving, on a clock of ours."""

    def __init__(self, turn: asyncio.Lock | None = None, partitions: int = 1) -> None:
        self.now, self.mine = 1000.0, True
        self.shelf = Shelf()
        self.saving = Saving(0, self.shelf, lambda _: self.mine, EVERY_S, lambda: self.now, turn, lambda: partitions)
        self.judge = Judge()
        self.fold = Fold(cast(Any, self.judge), 1)

    def move(self, seconds: float, *, number: int = 0) -> None:
        """Time passes, and the state changes."""
        self.now += seconds
        self.fold.next += 1
        self.judge.number = number

    async def save(self, took_s: float) -> None:
        """A snapshot whose writing takes so long."""
        self.shelf.open.clear()
        await self.saving.begin(self.fold)
        self.now += took_s
        self.shelf.open.set()
        await self.saving.settled()


@in_a_loop
async def test_a_partition_goes_on_while_its_state_is_written() -> None:
    scene = Scene()
    scene.move(EVERY_S, number=1)
    scene.shelf.open.clear()
    await scene.saving.begin(scene.fold)
    scene.move(EVERY_S, number=2)
    assert scene.saving.wait_s() > 0, "one at a time"
    await scene.saving.begin(scene.fold)
    scene.shelf.open.set()
    await scene.saving.settled()
    assert scene.shelf.written == [(2, b"1")], "what was true when it began"
    assert scene.saving.reached == 2
    await scene.saving.now(scene.fold)
    assert scene.shelf.written == [(2, b"1"), (3, b"2")]


@in_a_loop
async def test_partitions_of_a_worker_are_saved_one_after_another() -> None:
    turn = asyncio.Lock()
    first, second = Scene(turn), Scene(turn)
    for scene in (first, second):
        scene.move(EVERY_S)
        scene.shelf.open.clear()
    await first.saving.begin(first.fold)
    await second.saving.begin(second.fold)
    assert 0 < second.saving.wait_s() < 1, "soon"
    last = asyncio.create_task(second.saving.now(second.fold))
    second.shelf.open.set()
    first.shelf.open.set()
    await first.saving.settled()
    await asyncio.wait_for(last, 10)
    assert first.saving.reached == second.saving.reached == 2
    assert not turn.locked()
    await second.saving.begin(second.fold)
    assert not turn.locked(), "nothing new"
    first.move(EVERY_S)
    first.shelf.broken = True
    await first.saving.now(first.fold)
    assert not turn.locked(), "a writing that fails ends its turn"


@in_a_loop
async def test_what_takes_long_is_done_less_often() -> None:
    scene = Scene()
    assert scene.saving.wait_s() == EVERY_S
    scene.move(EVERY_S)
    await scene.save(took_s=2.0)
    assert scene.saving.took_s == 2.0
    assert scene.saving.wait_s() == pytest.approx(2.0 / SHARE - 2.0)
    scene.move(1.0)
    await scene.save(took_s=40.0)
    assert scene.saving.wait_s() == pytest.approx(MOST_S - 40.0), "on a machine that is too busy, too"
    scene.move(MOST_S)
    await scene.save(took_s=0.1)
    scene.move(0.1)
    await scene.save(took_s=0.1)
    assert scene.saving.wait_s() == pytest.approx(EVERY_S - 0.1)


@in_a_loop
async def test_many_partitions_of_a_worker_share_its_time() -> None:
    scene = Scene(partitions=8)
    scene.move(EVERY_S)
    await scene.save(took_s=0.25)
    assert scene.saving.wait_s() == pytest.approx(8 * 0.25 / SHARE - 0.25)


@in_a_loop
async def test_a_restart_never_has_much_to_judge_again() -> None:
    scene = Scene()
    scene.move(EVERY_S)
    await scene.save(took_s=4.0)
    scene.move(EVERY_S)
    scene.saving.judged(REPLAY_S - 1)
    assert scene.saving.wait_s() > 0
    scene.saving.judged(1)
    assert scene.saving.wait_s() <= 0
    await scene.save(took_s=4.0)
    assert scene.saving.wait_s() > EVERY_S, "counted anew"


@in_a_loop
async def test_nothing_new_is_not_written_and_neither_is_what_is_another_workers() -> None:
    scene = Scene()
    scene.move(EVERY_S)
    scene.mine = False
    await scene.saving.now(scene.fold)
    assert scene.shelf.written == []
    scene.mine = True
    await scene.saving.now(scene.fold)
    scene.now += 1
    await scene.saving.now(scene.fold)
    assert [reached for reached, _ in scene.shelf.written] == [2]
    assert scene.saving.saved_at == scene.now


@in_a_loop
async def test_a_broker_that_is_away_costs_a_snapshot_and_any_other_failure_is_raised() -> None:
    scene = Scene()
    scene.move(EVERY_S)
    scene.shelf.broken = True
    await scene.saving.now(scene.fold)
    assert scene.saving.reached == 0
    scene.shelf.broken = False
    scene.move(EVERY_S)
    await scene.saving.now(scene.fold)
    assert scene.saving.reached == 3
    scene.move(EVERY_S)
    scene.judge.encode = None  # type: ignore[method-assign, assignment]  # fails as a defect would
    broken = scene.judge
    broken.freeze = lambda: broken  # type: ignore[method-assign]
    await scene.saving.begin(scene.fold)
    with pytest.raises(TypeError):
        await scene.saving.settled()
    with pytest.raises(TypeError):
        await scene.saving.begin(scene.fold)
