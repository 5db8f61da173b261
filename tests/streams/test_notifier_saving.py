"""The notifier's snapshots: what is read back, and how often they are written."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from kvtrail.schemas.paging import HeartbeatConfig, NotifyConfig
from kvtrail.streams import notifier_saving
from kvtrail.streams.heartbeat_watch import HeartbeatWatch
from kvtrail.streams.notifier_policy import Pager
from kvtrail.streams.notifier_saving import NotifierSaving
from kvtrail.streams.notifier_state import State, encode
from kvtrail.streams.snapshots import Manifest, Snapshot

from .test_notifier_policy import NOW, finding


def fresh() -> State:
    return State(pager=Pager(NotifyConfig(), "test"), watch=HeartbeatWatch(HeartbeatConfig(), 2, NOW))


def told() -> State:
    """A state in which something was found and told."""
    state = fresh()
    state.pager.take(finding("f"), NOW, NOW)
    state.pager.decide(NOW + 10_000_000)
    state.offsets, state.journal = {0: 7, 1: 3}, 2
    return state


class Shelf:
    """Keeps one snapshot; writing takes `writing_s` by a clock that moves only then."""

    def __init__(self, writing_s: float = 0.0) -> None:
        self.writing_s, self.now = writing_s, 0.0
        self.written: list[bytes] = []

    async def write(
        self, partition: int, state: bytes, next_offset: int, last_append_us: int, unjudged: tuple[int, ...] = ()
    ) -> Manifest:
        self.now += self.writing_s
        self.written.append(state)
        return self.manifest(state)

    async def restore(self, partition: int) -> Snapshot | None:
        return Snapshot(manifest=self.manifest(self.written[-1]), state=self.written[-1]) if self.written else None

    def manifest(self, state: bytes) -> Manifest:
        return Manifest(id="m", partition=0, next=0, last_append_us=0, blobs=1, bytes=len(state), sha256="")

    def saving(self) -> NotifierSaving:
        return NotifierSaving(self, 10.0, lambda: self.now)


def test_what_was_saved_is_restored() -> None:
    async def run() -> None:
        shelf, state = Shelf(), told()
        assert (await shelf.saving().restore(fresh)).dump() == fresh().dump()
        assert await shelf.saving().save(state)
        assert (await shelf.saving().restore(fresh)).dump() == state.dump()

    asyncio.run(run())


@pytest.mark.parametrize("missing", ["pager", "beats", "offsets", "journal", "queues"])
def test_of_a_snapshot_that_cannot_be_read_whole_nothing_is_taken(missing: str) -> None:
    async def run() -> State:
        shelf = Shelf()
        whole = msgspec.msgpack.decode(encode(told().dump()), strict=False)
        shelf.written.append(msgspec.msgpack.encode({name: part for name, part in whole.items() if name != missing}))
        return await shelf.saving().restore(fresh)

    assert asyncio.run(run()).dump() == fresh().dump()


def test_the_interval_follows_what_writing_takes() -> None:
    async def run() -> list[bool]:
        shelf, state = Shelf(writing_s=2.0), told()
        saving, due = shelf.saving(), []
        for waited in (9.9, 0.1):
            shelf.now += waited
            due.append(saving.is_due)
        await saving.save(state)
        for waited in (10.0, 67.0, 1.0):  # forty times two seconds, begun two seconds ago
            shelf.now += waited
            due.append(saving.is_due)
        return due

    assert asyncio.run(run()) == [False, True, False, False, True]


def test_what_is_saved_already_is_not_saved_again() -> None:
    async def run() -> None:
        shelf, state = Shelf(), told()
        saving = shelf.saving()
        assert [await saving.save(state), await saving.save(state)] == [True, False]
        state.offsets[0] += 1
        assert [await saving.save(state), await saving.save(state)] == [True, False]
        state.journal += 1
        assert [await saving.save(state), await saving.save(state)] == [True, False]
        await saving.restore(fresh)  # another one may have written meanwhile
        assert await saving.save(state) and len(shelf.written) == 4

    asyncio.run(run())


def test_it_is_encoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def encoding(dumped: Any) -> bytes:
        threads.append(threading.get_ident())
        return encode(dumped)

    monkeypatch.setattr(notifier_saving, "encode", encoding)
    assert asyncio.run(Shelf().saving().save(told()))
    assert threads and threads != [threading.get_ident()]
