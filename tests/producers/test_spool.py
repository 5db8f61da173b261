"""The spool: what cannot be sent waits on disk, in order, within its bound, and outlives its process."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.segments import Frame, Segments
from kvtrail.producers.spool import Spool
from kvtrail.producers.spooled import SpooledTransport
from kvtrail.producers.tally import SLOTS, Tally, read_ends, read_head
from kvtrail.schemas.config import PublisherConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.events import Check

from .reading import TENANT, decode, events, first_arrivals, gaps, runs, until


def config(folder: Path, **changes: Any) -> PublisherConfig:
    return PublisherConfig(**({"spool_directory": folder, "spool_after_s": 0.05, "linger_s": 0.0} | changes))


def hits(publisher: LifecyclePublisher, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu", request_id=str(n))


def order(memory: MemoryTransport) -> list[str]:
    """Request ids in order of first arrival."""
    return [event.request_id for event in first_arrivals(decode(r for _, r in memory.records)) if event.request_id]


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/*/*"))


def test_while_the_other_end_is_away_records_wait_on_disk_and_leave_in_order(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    publisher = LifecyclePublisher("gpu-1", memory, config(tmp_path, envelope_events=10))
    hits(publisher, 100)
    assert publisher.flush(), "safe on disk"
    stats = publisher.stats()
    assert stats.spooled >= 10 and stats.spooled_bytes > 0 and stats.sent == 101 and memory.records == []
    until(lambda: publisher.stats().last_error == "down", "the outage is seen")
    memory.down = False
    hits(publisher, 100, 100)
    until(lambda: publisher.stats().spooled == 0 and len(order(memory)) == 200, "the spool is emptied")
    until(lambda: publisher.stats().last_error == "", "the outage is over")
    assert publisher.close()
    assert order(memory) == [str(n) for n in range(200)]
    assert {gaps(lane) for lane in runs(decode(record for _, record in memory.records)).values()} == {0}
    assert left(tmp_path) == []


def test_what_is_on_disk_at_the_end_is_sent_by_the_next_process_before_its_own(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    first = LifecyclePublisher("gpu-1", memory, config(tmp_path))
    hits(first, 50)
    assert first.close(), "everything is safe"
    assert memory.records == [] and left(tmp_path)
    second = LifecyclePublisher("gpu-1", memory, config(tmp_path))
    hits(second, 50, 50)
    assert second.flush()
    memory.down = False
    assert second.close()
    assert order(memory) == [str(n) for n in range(100)]
    assert [event.incarnation for event in events(decode(record for _, record in memory.records))] == (
        [first.incarnation] * 51 + [second.incarnation] * 51
    )
    assert left(tmp_path) == []


def test_another_nodes_spool_is_left_alone(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    first = LifecyclePublisher("gpu-1", memory, config(tmp_path))
    hits(first, 5)
    assert first.close()
    memory.down = False
    with LifecyclePublisher("gpu-2", memory, config(tmp_path)) as second:
        hits(second, 5, 5)
    assert order(memory) == ["5", "6", "7", "8", "9"]
    assert left(tmp_path)


def test_a_folder_that_several_use_at_once_keeps_everybodys_apart(tmp_path: Path) -> None:
    """Two nodes, and a node name that was given twice: nobody takes what belongs to a process that lives."""
    ends = [MemoryTransport(down=True) for _ in range(3)]
    publishers = [
        LifecyclePublisher(node, end, config(tmp_path))
        for node, end in zip(("gpu-1", "gpu-2", "gpu-1"), ends, strict=True)
    ]
    for number, publisher in enumerate(publishers):
        hits(publisher, 20, 100 * number)
        assert publisher.flush() and publisher.stats().spooled > 0
    for end in ends:
        end.down = False
    for publisher in publishers:
        until(lambda publisher=publisher: publisher.stats().spooled == 0, "its spool is emptied")  # type: ignore[misc]  # bound now
        assert publisher.close()
    for number, end in enumerate(ends):
        assert order(end) == [str(100 * number + n) for n in range(20)]
        assert {gaps(lane) for lane in runs(decode(record for _, record in end.records)).values()} == {0}
    assert left(tmp_path) == []


def test_a_full_spool_holds_its_bound_and_what_fits_nowhere_is_a_gap(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    publisher = LifecyclePublisher(
        "gpu-1", memory, config(tmp_path, spool_bytes=64 * 1024, max_events=50, envelope_events=10)
    )
    made, troubles = 0, set()
    while publisher.stats().lost < 500:
        hits(publisher, 50, made)
        made += 50
        publisher.flush(0.01)
        troubles.add(publisher.stats().spool_trouble)  # a shorter record may still fit, and ends it
    assert "spool_full" in troubles
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.seg")) <= 64 * 1024
    memory.down = False
    assert publisher.flush(30)
    assert publisher.close(30)
    stats = publisher.stats()
    (lane,) = runs(decode(record for _, record in memory.records)).values()
    beats = [e for e in events(decode(r for _, r in memory.records)) if isinstance(e.body, Check)]
    assert set(stats.dropped) == {"full"} and stats.accepted == made + 1 + len(beats)
    assert gaps(lane) == stats.lost
    assert len(order(memory)) + stats.lost + 1 == made + 1
    assert len(beats) <= made // 50, "at most one for each time in which the lane came to its end"
    assert left(tmp_path) == []


def test_a_full_disk_is_the_same_and_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryTransport(down=True)
    publisher = LifecyclePublisher("gpu-1", memory, config(tmp_path, envelope_events=5, max_events=30))
    hits(publisher, 20)
    assert publisher.flush()
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[:7]) if data[:4] == b"kvS1" else real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    hits(publisher, 100, 20)
    until(lambda: publisher.stats().spool_trouble == "disk_full", "the disk is full")
    until(lambda: publisher.stats().lost > 0, "memory is full too")
    monkeypatch.setattr(os, "write", real)
    memory.down = False
    assert publisher.close(30)
    (lane,) = runs(decode(record for _, record in memory.records)).values()
    assert gaps(lane) == publisher.stats().lost
    assert left(tmp_path) == []


def test_a_record_that_is_never_taken_from_the_spool_is_a_gap_that_outlives_the_process(tmp_path: Path) -> None:
    class Picky(MemoryTransport):
        async def send(self, home: str, record: bytes, first: int, last: int) -> None:
            await super().send(home, record, first, last)
            if b'"refuse"' in record:
                self.records.pop()
                from kvtrail.producers.transport import RecordRejected

                raise RecordRejected("is too large.", reason="too_large")

    memory = Picky(down=True)
    publisher = LifecyclePublisher("gpu-1", memory, config(tmp_path))
    hits(publisher, 3)
    assert publisher.flush()
    publisher.hit("refuse", TENANT, store="kv", tier="gpu")
    assert publisher.flush()
    memory.down = False
    until(lambda: publisher.stats().spooled == 0, "the spool is emptied")
    assert publisher.close()
    assert left(tmp_path), "the next process has something to declare"
    with LifecyclePublisher("gpu-1", memory, config(tmp_path)) as successor:
        hits(successor, 1)
    lanes = runs(decode(record for _, record in memory.records))
    assert gaps(lanes[publisher.incarnation, "n:gpu-1"]) == 1
    assert left(tmp_path) == []


def test_slow_is_treated_as_away(tmp_path: Path) -> None:
    gate = threading.Event()

    class Slow(MemoryTransport):
        async def send(self, home: str, record: bytes, first: int, last: int) -> None:
            while not gate.is_set():
                await asyncio.sleep(0.01)
            await super().send(home, record, first, last)

    memory = Slow()
    publisher = LifecyclePublisher("gpu-1", memory, config(tmp_path))
    hits(publisher, 10)
    assert publisher.flush()
    assert publisher.stats().spooled > 0 and publisher.stats().last_error == "slow"
    gate.set()
    assert publisher.close()
    assert order(memory) == [str(n) for n in range(10)]


def test_a_close_without_time_keeps_everything(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    publisher = LifecyclePublisher("gpu-1", memory, config(tmp_path, spool_after_s=30, linger_s=1))
    hits(publisher, 500)
    assert publisher.close(0)
    assert publisher.stats().lost == 0
    memory.down = False
    with LifecyclePublisher("gpu-1", memory, config(tmp_path)):
        until(lambda: len(order(memory)) == 500, "the next process sends it")


def test_a_publisher_that_is_closed_at_once_ends_as_any_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):  # most often before its sender has come to anything
        assert LifecyclePublisher("gpu-1", MemoryTransport(), config(tmp_path)).close()
    assert "has failed" not in caplog.text and left(tmp_path) == []


def test_a_bad_call_is_a_gap_here_too(tmp_path: Path) -> None:
    memory = MemoryTransport()
    publisher = LifecyclePublisher("gpu-1", memory, config(tmp_path))
    hits(publisher, 3)
    publisher.create("k", TENANT, store="kv", tier="gpu", tokens=-1)
    publisher.create(5, TENANT, store="pool", tier="shared")  # type: ignore[arg-type]  # on purpose
    publisher.invalidate(store="pool", tier="shared", scope="store")
    assert publisher.flush()
    publisher.create("k", TENANT, store="kv", tier="gpu", owner="kvtrail:x")
    publisher.request_end("r" * 1025)
    assert publisher.close()
    assert publisher.stats().refused == {
        "create.tokens": 1, "create.key": 1, "create.owner": 1, "request_end.request_id": 1
    }  # fmt: skip
    lanes = runs(decode(record for _, record in memory.records))
    assert gaps(lanes[publisher.incarnation, "n:gpu-1"]) == 3
    assert left(tmp_path) == [], "what is missing has been declared"


def test_an_impossible_folder_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"publisher\.spool_directory"):
        LifecyclePublisher("gpu-1", MemoryTransport(), config(tmp_path / "file"))


def test_an_end_on_another_boot_is_unknown_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.producers.tally._boot", lambda: "before")
    spool = Spool(tmp_path, "gpu-1", "0001", max_bytes=1 << 20)
    spool.tally.count("n:gpu-1")
    spool.abandon()
    monkeypatch.setattr("kvtrail.producers.tally._boot", lambda: "after")
    memory = MemoryTransport()
    with LifecyclePublisher("gpu-1", memory, config(tmp_path)) as publisher:
        hits(publisher, 1)
    found = events(decode(record for _, record in memory.records))
    assert {event.incarnation for event in found} == {publisher.incarnation}, "no number of the old lane is made up"
    (said,) = [event.body for event in found if isinstance(event.body, Check)]
    assert said.result == "inconclusive" and "0001" in said.detail
    assert left(tmp_path) == []


# Segments.


def write(folder: Path, count: int, **options: Any) -> Segments:
    segments = Segments(folder, **options)
    for n in range(count):
        segments.write(Frame("n:gpu-1", n, n, f"record {n}".encode() * 10))
    segments.close()
    return segments


def read(segments: Segments) -> list[int]:
    return [frame.first for path in segments.files() for frame, _ in segments.read(path)]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    segments = write(tmp_path, 50, segment_bytes=500)
    assert len(segments.files()) > 5
    assert read(segments) == list(range(50)) and segments.damaged == 0
    frame = next(segments.read(segments.files()[0]))[0]
    assert frame == Frame("n:gpu-1", 0, 0, b"record 0" * 10)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_happens_to_a_file_what_is_read_was_written(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    segments = write(folder, 8)
    (path,) = segments.files()
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    found = [frame for frame, _ in segments.read(path)]
    assert found == [Frame("n:gpu-1", n, n, f"record {n}".encode() * 10) for n in range(len(found))]
    assert len(found) < 8
    assert segments.damaged <= 1


def torn(tmp_path: Path) -> tuple[MemoryTransport, LifecyclePublisher]:
    """A publisher that is closed and has 100 events on disk, the last record of them torn; nobody got any."""
    memory = MemoryTransport(down=True)
    first = LifecyclePublisher("gpu-1", memory, config(tmp_path, envelope_events=10))
    hits(first, 99)
    assert first.close()
    (segment,) = tmp_path.rglob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-5])
    return memory, first


def test_a_torn_tail_is_left_out_and_declared(tmp_path: Path) -> None:
    memory, first = torn(tmp_path)
    memory.down = False
    with LifecyclePublisher("gpu-1", memory, config(tmp_path)) as second:
        hits(second, 1, 1000)
    lane = runs(decode(record for _, record in memory.records))[first.incarnation, "n:gpu-1"]
    assert lane[-1] == (101, 101) and 1 <= gaps(lane) <= 10
    assert left(tmp_path) == []


def test_what_is_torn_is_declared_also_where_other_events_were_not_counted(tmp_path: Path) -> None:
    memory, first = torn(tmp_path)
    (tally,) = tmp_path.rglob("tally")
    with tally.open("r+b") as file:
        file.seek(8 * (SLOTS - 1))
        file.write((3).to_bytes(8, sys.byteorder))
    memory.down = False
    with LifecyclePublisher("gpu-1", memory, config(tmp_path)) as second:
        hits(second, 1, 1000)
    lane = runs(decode(record for _, record in memory.records))[first.incarnation, "n:gpu-1"]
    assert lane[-1] == (104, 104), "behind every number that may have been given out"
    assert left(tmp_path) == []


# Tallies.


def test_many_threads_lose_no_count(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    homes = ["n:gpu-1", "n:gpu-2", "s:pool:3"]

    def work() -> None:
        for n in range(3000):
            tally.count(homes[n % 3])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {end.home: end.last for end in read_ends(tally.path)} == dict.fromkeys(homes, 6000)


def test_when_slots_run_out_lanes_share_and_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.producers.tally.SLOTS", 9)
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    for home in "abcdefgh":
        tally.count(home)
        tally.count(home)
    assert {end.home: end.last for end in read_ends(tally.path)} == dict.fromkeys("abcdefgh", 2)
    assert not tally.overflowed
    tally.count("i")
    assert tally.overflowed and not tally.is_settled()


def test_what_was_not_counted_makes_no_end_that_was_passed_and_blames_no_lane_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane has had 7 events, of which some were not counted: an end at 4 would say number 4 twice."""
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    for home in ("whole", "short", "unmarked"):
        for _ in range(3):
            tally.count(home)
    tally.marks("whole").safe(3)
    tally.marks("short").safe(2)
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        for home in ("short", "whole", "unmarked", "new"):
            other = threading.Thread(target=tally.count, args=(home,))
            other.start()
            other.join()
    assert {end.home: end.last for end in read_ends(tally.path) if not end.is_settled} == {"short": 3 + 4}
    head = read_head(tally.path)
    assert head is not None and "no room to count 4 events" in head.doubt, "nor is it passed over in silence"
    monkeypatch.setattr("kvtrail.producers.tally.time.monotonic", lambda: float("inf"))  # the disk has room again
    tally.count("another")
    assert not tally.overflowed
    assert {end.home: end.last for end in read_ends(tally.path)} == {
        "short": 4, "whole": 4, "unmarked": 4, "new": 1, "another": 1,
    }  # fmt: skip
    head = read_head(tally.path)
    assert head is not None and not head.doubt


class Interrupted:
    """The slots, where another thread comes in between reading one and writing it."""

    def __init__(self, view: "memoryview[int]", comes_in: Callable[[], None]) -> None:
        self._view, self._comes_in = view, [comes_in]

    def __getitem__(self, at: int) -> int:
        value = self._view[at]
        if self._comes_in:
            self._comes_in.pop()()
        return value

    def __setitem__(self, at: int, value: int) -> None:
        self._view[at] = value


def test_threads_without_a_slot_take_nothing_from_those_that_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrail.producers.tally.SLOTS", 9)
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    for home in "abcdef":
        tally.count(home)

    def comes_in() -> None:
        other = threading.Thread(target=tally.count, args=("a",))
        other.start()
        other.join()

    tally.view = Interrupted(tally.view, comes_in)  # type: ignore[assignment]  # as far as counting uses it
    tally.count("a")
    assert {end.home: end.last for end in read_ends(tally.path)}["a"] == 3
    assert not tally.overflowed


def test_a_slot_is_noted_while_nobody_goes_through_them(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")

    class Slots(dict[tuple[int, str], int]):
        def __setitem__(self, key: tuple[int, str], at: int) -> None:
            with ThreadPoolExecutor(1) as other:
                assert not other.submit(tally._lock.acquire, False).result(), "another thread may go through them"
            super().__setitem__(key, at)

    tally._slots = Slots()
    tally.count("n:gpu-1")


def test_a_signal_handler_counts_in_a_slot_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes in the middle of its own thread's first count, where a slot is being named."""
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    real, comes_in = os.write, [1]

    def write(descriptor: int, data: bytes) -> int:
        if comes_in:
            comes_in.pop()
            tally.count("n:gpu-1")
            tally.count("n:gpu-2")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    for _ in range(3):
        tally.count("n:gpu-1")
    assert {end.home: end.last for end in read_ends(tally.path)} == {"n:gpu-1": 4, "n:gpu-2": 1}


def test_a_number_of_our_own_is_counted_also_where_there_was_no_room_for_the_lanes_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lane's end would be declared at a number that an event has had."""
    now = [0.0]
    monkeypatch.setattr("kvtrail.producers.tally.time.monotonic", lambda: now[0])
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        marks = tally.marks("a")
        marks.extra()
        tally.count("a")
    head = read_head(tally.path)
    assert head is not None and head.uncounted == 2
    now[0] += 10  # the disk has room again
    tally.count("a")
    marks.extra()
    marks.safe(4)
    assert {end.home: (end.last, end.is_settled) for end in read_ends(tally.path)} == {"a": (4, False)}


@contextmanager
def interrupted_at(call: int, then: Callable[[], None]) -> Iterator[None]:
    """Calls `then` once, where Python may run a signal handler: at that many calls of the tally."""
    left = [call]

    def profile(frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_return") and frame.f_globals["__name__"] == Tally.__module__:
            left[0] -= 1
            if left[0] == 0:
                then()

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_signal_handler_anywhere_in_a_count_loses_none_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the lanes cannot be named for a while: what the last slot says is what is not counted."""
    real, now = os.write, [0.0]
    monkeypatch.setattr("kvtrail.producers.tally.time.monotonic", lambda: now[0])
    for call in range(1, 120):
        tally = Tally(tmp_path / f"tally-{call}", "gpu-1", "0001")
        counted = dict.fromkeys("abcd", 0)

        def count(*homes: str, tally: Tally = tally, counted: dict[str, int] = counted) -> None:
            for home in homes:
                counted[home] += 1
                tally.count(home)

        def handler(count: Callable[..., None] = count) -> None:
            count("a", "d")

        with monkeypatch.context() as full:
            full.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
            count("a", "b", "a")
            with interrupted_at(call, handler):
                count("a", "b")
        head = read_head(tally.path)
        assert head is not None and head.uncounted == sum(counted.values()), call
        now[0] += 10
        with interrupted_at(call, handler):
            count("a", "c")
        count("c")
        assert {end.home: end.last for end in read_ends(tally.path)} == {home: n for home, n in counted.items() if n}
        tally.close()


def test_what_is_dropped_after_the_close_is_nothing_that_was_not_counted(tmp_path: Path) -> None:
    """Also in a forked child, whose tally is its parent's: it is closed there and goes on here."""
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    tally.count("a")
    tally.close()
    tally.count("b")
    head = read_head(tally.path)
    assert head is not None and not head.doubt
    assert {end.home: end.last for end in read_ends(tally.path)} == {"a": 1}


def test_the_last_slot_of_an_earlier_version_is_a_lane_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    for _ in range(3):
        tally.count("first")
    raw = bytearray(tally.path.read_bytes())
    head = b', "uncounted": %d' % (SLOTS - 1)
    assert head in raw
    raw = raw.replace(head, b"") + b'{"home": "last", "count": %d}\n' % (SLOTS - 1)
    raw[8 * (SLOTS - 1) : 8 * SLOTS] = (5).to_bytes(8, sys.byteorder)
    earlier = tmp_path / "earlier"
    earlier.write_bytes(raw)
    assert {end.home: end.last for end in read_ends(earlier)} == {"first": 3, "last": 5}
    known = read_head(earlier)
    assert known is not None and not known.doubt


def test_a_line_that_finds_no_room_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    tally.count("n:gpu-1")
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        tally.count("n:gpu-2")
    assert tally.overflowed
    monkeypatch.setattr("kvtrail.producers.tally.time.monotonic", lambda: float("inf"))  # later
    tally.count("n:gpu-3")
    assert {end.home: end.last for end in read_ends(tally.path)} == {"n:gpu-1": 1, "n:gpu-2": 1, "n:gpu-3": 1}


def test_a_tally_torn_anywhere_says_what_it_can(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "tally", "gpu-1", "0001")
    tally.count("n:gpu-1")
    tally.marks("n:gpu-1").extra()
    raw = (tmp_path / "tally").read_bytes()
    for length in (0, 1, 1000, SLOTS * 8 - 1, *range(SLOTS * 8, len(raw))):
        torn = tmp_path / "torn"
        torn.write_bytes(raw[:length])
        assert all(end.last <= 2 for end in read_ends(torn))
        head = read_head(torn)
        assert head is None or head.node == "gpu-1"


def test_a_spool_without_a_loop_to_run_in_is_inert(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "gpu-1", "0001", max_bytes=1 << 20)
    asyncio.run(SpooledTransport(MemoryTransport(), spool).stop())
    assert left(tmp_path) == []


FORKS = """
    import os, sys
    from pathlib import Path
    from kvtrail.producers import LifecyclePublisher
    from kvtrail.producers.recording import RecordingTransport
    from kvtrail.schemas.config import PublisherConfig
    from kvtrail.schemas.identity import Identity

    folder, path = Path(sys.argv[1]), sys.argv[2]
    tenant = Identity(tenant_id="northwind")
    publisher = LifecyclePublisher("gpu-1", RecordingTransport(path), PublisherConfig(spool_directory=folder))
    publisher.hit("before", tenant, store="kv", tier="gpu")
    child = os.fork()
    publisher.hit("after", tenant, store="kv", tier="gpu")
    assert publisher.close(), publisher.stats()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_child_has_a_spool_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(FORKS), str(tmp_path / "spool"), str(path)],
        check=True,
        timeout=60,
    )
    lanes = runs(decode(path.read_bytes().splitlines()))
    assert len(lanes) == 2 and {gaps(lane) for lane in lanes.values()} == {0}
    assert left(tmp_path / "spool") == []
