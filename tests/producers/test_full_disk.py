"""A spool on a file system that really is full: a tmpfs of one megabyte."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import PublisherConfig

from .agents import Running, spooled
from .reading import TENANT, decode, events, first_arrivals, gaps, runs, until


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte; skips where none may be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def hit(publisher: LifecyclePublisher | AgentPublisher, number: int) -> None:
    publisher.hit(f"{number:064x}", TENANT, store="kv", tier="gpu", request_id=str(number))


def in_order(memory: MemoryTransport) -> tuple[list[int], int]:
    """Request ids in order of arrival, and how many numbers are missing."""
    batches = decode(record for _, record in memory.records)
    (lane,) = runs(batches).values()
    return [int(e.request_id) for e in first_arrivals(batches) if e.request_id], gaps(list(dict.fromkeys(lane)))


def test_a_publisher_on_a_full_disk_counts_what_is_lost_and_goes_on(small_disk: Path) -> None:
    memory = MemoryTransport(down=True)
    config = PublisherConfig(
        spool_directory=small_disk, spool_after_s=0.05, linger_s=0.0, envelope_events=100, max_events=500
    )
    publisher = LifecyclePublisher("gpu-1", memory, config)
    made = 0
    while publisher.stats().lost < 1_000:
        hit(publisher, made)
        made += 1
        if made % 100 == 0:
            publisher.flush(0.01)
    assert publisher.stats().spool_trouble == "disk_full"
    memory.down = False
    assert publisher.flush(30)
    until(lambda: publisher.stats().spooled == 0, "the spool is emptied")
    hit(publisher, made)
    assert publisher.close(30)
    stats = publisher.stats()
    arrived, missing = in_order(memory)
    beats = sum(event.body.__class__.__name__ == "Check" for event in events(decode(r for _, r in memory.records)))
    assert set(stats.dropped) == {"full"} and missing == stats.lost
    assert stats.accepted == made + 2 + beats and len(arrived) + missing == made + 1
    assert arrived == sorted(arrived) and arrived[-1] == made
    assert not list(small_disk.rglob("*.seg"))


def test_an_agent_on_a_full_disk_holds_its_engines_back_and_the_loss_is_theirs(
    small_disk: Path, tmp_path: Path
) -> None:
    memory = MemoryTransport(down=True)
    line = spooled(memory, small_disk, "1")
    with Running(tmp_path / "agent.sock", line) as running:
        publisher = AgentPublisher("gpu-1", running.path, linger_s=0.0, envelope_events=100, max_events=500)
        made = 0
        while publisher.stats().lost < 1_000:
            hit(publisher, made)
            made += 1
            if made % 100 == 0:
                publisher.flush(0.01)
        until(lambda: line.spool.trouble == "disk_full", "the agent says why")
        memory.down = False
        until(lambda: publisher.stats().buffered == 0, "the agent takes all again")
        hit(publisher, made)
        assert publisher.close(30)
        until(lambda: line.spool.records == 0, "the spool is emptied")
    arrived, missing = in_order(memory)
    assert set(publisher.stats().dropped) == {"full"} and missing == publisher.stats().lost
    assert len(arrived) + missing == made + 1
    assert arrived == sorted(arrived) and arrived[-1] == made


def fill(disk: Path) -> Path:
    """A file that takes what is left."""
    ballast = disk / "ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    with pytest.raises(OSError, match="No space left"):
        while True:
            os.write(descriptor, bytes(4096))
    os.close(descriptor)
    return ballast


@pytest.mark.parametrize("way", ["process", "agent"])
def test_lanes_and_threads_that_are_new_on_a_full_disk_lose_their_count_and_nothing_else(
    small_disk: Path, tmp_path: Path, way: str
) -> None:
    """Each new lane and thread is named in the tally, which has no room for it."""
    memory = MemoryTransport()
    with Running(small_disk / "agent.sock", memory) as running:
        if way == "agent":
            publisher: LifecyclePublisher | AgentPublisher = AgentPublisher("gpu-1", running.path, linger_s=0.01)
        else:
            config = PublisherConfig(spool_directory=small_disk, linger_s=0.01)
            publisher = LifecyclePublisher("gpu-1", memory, config)
        hit(publisher, 0)
        assert publisher.flush(30)
        ballast = fill(small_disk)

        def work() -> None:
            for number in range(100):
                owner = f"{number % 50}".rjust(200, "-")  # some of the last page is left
                publisher.hit("k", TENANT, store="kv", tier="gpu", owner=owner, request_id=str(number))
                hit(publisher, number)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert publisher.flush(30)
        ballast.unlink()
        hit(publisher, 0)
        assert publisher.close(30)
        stats = publisher.stats()
        assert stats.refused == {} and stats.lost == 0 and stats.sent == stats.accepted == 3 + 3 * 200
    batches = decode(record for _, record in memory.records)
    assert {gaps(lane) for lane in runs(batches).values()} == {0} and len(events(batches)) == 3 + 3 * 200
