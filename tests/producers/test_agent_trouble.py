"""What a host does to an agent and its engines: huge calls, odd paths, two agents, a stop in the middle of work."""

import asyncio
import errno
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from kvtrail.cli.agent import may_publish
from kvtrail.producers.agent import Agent
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.agent_listener import Listener
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.spool import Spool
from kvtrail.producers.tally import TALLY, Tally, folder_name
from kvtrail.producers.transport import TransportError
from kvtrail.schemas.config import AgentConfig, Config, PublisherConfig
from kvtrail.schemas.errors import ConfigError

from .agents import Running
from .reading import TENANT, decode, events, gaps, runs, until


def hit(publisher: AgentPublisher | LifecyclePublisher, **arguments: Any) -> None:
    fields: dict[str, Any] = {"key": "k", "identity": TENANT, "store": "kv", "tier": "gpu"}
    publisher.hit(**(fields | arguments))


def sequence(memory: MemoryTransport) -> list[int]:
    return [event.seq for event in events(decode(record for _, record in memory.records)) if event.type != "check"]


def refused(agent: Agent) -> None:
    """Runs it: it is to raise before it serves."""

    async def run() -> None:
        async with asyncio.timeout(30):
            await agent.run(asyncio.Event())

    asyncio.run(run())


@pytest.mark.parametrize(
    ("huge", "count", "field"),
    [
        ({"request_id": "r" * 1_000_000}, 40, "hit.request_id"),
        ({"key": "k" * 20_000_000}, 2, "hit.size"),
        ({"place": "p" * 20_000_000}, 2, "hit.size"),
        ({"place": "ä" * 100_000}, 40, "hit.place"),
    ],
)
def test_calls_too_large_for_any_record_hold_nothing_up(
    tmp_path: Path, huge: dict[str, str], count: int, field: str
) -> None:
    with Running(tmp_path / "agent.sock", memory := MemoryTransport()) as running:
        with AgentPublisher("gpu-1", running.path, linger_s=0.05) as publisher:
            hit(publisher)
            for _ in range(count):
                hit(publisher, **huge)
            publisher.request_end("e" * 2_000_000)
            hit(publisher)
            assert publisher.flush(30)
            said = dict(publisher.stats().refused)
            assert said.pop(field) == count
            assert [name.partition(".")[0] for name in said] == ["request_end"]
        assert sequence(memory) == [1, 2, count + 4]


class Side(MemoryTransport):
    """Takes the records of two homes by turns: those of `late` are under way until it is told to go on."""

    def __init__(self, late: str) -> None:
        super().__init__()
        self._late = late
        self._begun, self._told = asyncio.Event(), threading.Event()

    def go_on(self) -> None:
        self._told.set()

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        if home == self._late:
            self._begun.set()
            await asyncio.to_thread(self._told.wait, 30)
        else:
            await asyncio.wait_for(self._begun.wait(), 30)
        await super().send(home, record, first, last)


def test_what_is_refused_of_a_lane_shows_in_that_lane_although_another_is_answered_first(tmp_path: Path) -> None:
    line = Side("n:gpu-9")
    with (
        Running(tmp_path / "agent.sock", line) as running,
        AgentPublisher("gpu-1", running.path, linger_s=0.05) as publisher,
    ):
        hit(publisher)
        hit(publisher, owner="gpu-9")
        hit(publisher, owner="gpu-9", place=5)
        until(lambda: running.agent.counts.runs == 1, "the other lane is answered")
        line.go_on()
        assert publisher.flush(30) and publisher.close(30)
        assert publisher.stats().refused == {"hit.place": 1}
    lanes = runs(decode(record for _, record in line.records))
    assert gaps(lanes[publisher.incarnation, "n:gpu-9"]) == 1
    assert gaps(lanes[publisher.incarnation, "n:gpu-1"]) == 0


def test_a_publisher_that_gets_no_thread_closes_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    publisher = AgentPublisher("gpu-1", tmp_path / "agent.sock")
    hit(publisher)
    assert not publisher.close(0.1) and publisher.stats().buffered == 1


def test_two_agents_that_start_at_once_do_not_take_each_others_socket(tmp_path: Path) -> None:
    first, second = (Listener(tmp_path / "agent.sock", None, lambda uid, gid: True) for _ in range(2))
    first.claim()
    listener = first.bind()  # and listens to nobody yet
    try:
        with pytest.raises(ConfigError, match="another agent"):
            second.claim()
        assert (tmp_path / "agent.sock").is_socket()
    finally:
        listener.close()
        first.release()


def test_the_second_agent_on_a_socket_ends_its_own_line(tmp_path: Path) -> None:
    class Watched(MemoryTransport):
        stopped = False

        async def stop(self) -> None:
            self.stopped = True

    line = Watched()
    with Running(tmp_path / "agent.sock", MemoryTransport()), pytest.raises(ConfigError, match="another agent"):
        refused(Agent(tmp_path / "agent.sock", line))
    assert line.stopped


def test_a_socket_that_a_killed_agent_has_left_is_taken_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "agent.sock"))
    memory = MemoryTransport()
    with Running(tmp_path / "agent.sock", memory) as running, AgentPublisher("gpu-1", running.path) as publisher:
        hit(publisher)
        assert publisher.flush(30)


def test_a_file_where_the_socket_should_be_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "kvtrail.toml").write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        refused(Agent(tmp_path / "kvtrail.toml", MemoryTransport()))
    assert (tmp_path / "kvtrail.toml").read_text() == "precious"


@pytest.mark.parametrize("name", ["s" * 120, "file/agent.sock", "folder"])
def test_a_path_that_cannot_be_a_socket_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"agent\.socket: ") as caught:
        refused(Agent(tmp_path / name, MemoryTransport()))
    assert "None" not in str(caught.value)


def test_an_engine_without_a_way_to_its_agent_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    publisher = AgentPublisher("gpu-1", tmp_path / "file" / ("s" * 120), linger_s=0.0)
    hit(publisher)
    until(lambda: publisher.stats().failures > 0, "it has tried")
    assert not publisher.close(0.1) and publisher.stats().lost == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize(("group", "gets_in"), [(54_321, True), (54_322, False)])
def test_the_sockets_rights_let_in_its_group_and_nobody_else(group: int, gets_in: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        with Running(Path(name) / "agent.sock", MemoryTransport(), group=54_321) as running:
            child = os.fork()
            if child == 0:  # another user, with a group of its own: says by its exit status whether it got in
                status = -1
                try:
                    os.setgroups([])
                    os.setgid(group)
                    os.setuid(54_323)
                    with socket.socket(socket.AF_UNIX) as engine:
                        status = engine.connect_ex(str(running.path))
                finally:
                    os._exit(status)
            said = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert said == (0 if gets_in else errno.EACCES)


def test_of_whom_the_rights_let_in_only_those_may_publish_that_are_named() -> None:
    own = os.geteuid()
    named = may_publish(Config(agent=AgentConfig(users=("54321",))), None)
    assert named(0, 0) and named(own, 7) and named(54_321, 7) and not named(54_322, 7)
    assert may_publish(Config(), 54_321)(54_322, 54_321), "a group's members are let in by the socket's rights"
    with pytest.raises(ConfigError, match=r"agent\.users"):
        may_publish(Config(agent=AgentConfig(users=("nobody-of-this-name",))), None)


def test_an_engine_that_comes_first_makes_nothing_that_keeps_an_agent_of_another_user_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    publisher = AgentPublisher("gpu-1", tmp_path / "agent.sock", linger_s=0.0)
    hit(publisher)
    assert "start the agent before its engines" in caplog.text and not list(tmp_path.iterdir())
    monkeypatch.undo()
    with Running(tmp_path / "agent.sock", memory := MemoryTransport()):
        assert publisher.close(30)
        assert sequence(memory) == [1, 2]


def test_a_stop_leaves_nothing_at_work_behind_its_line_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(MemoryTransport):
        carried = -1

        async def send(self, home: str, record: bytes, first: int, last: int) -> None:
            raise TransportError("takes nothing.")

        async def stop(self) -> None:
            others = [repr(task) for task in asyncio.all_tasks() if not task.done()]
            self.carried = sum("_carry" in each for each in others)

    stuck, memory = Stuck(), MemoryTransport()
    running = Running(tmp_path / "agent.sock", stuck)
    publisher = AgentPublisher("gpu-1", running.path, linger_s=0.0, envelope_events=1)
    for number in range(10):
        hit(publisher, request_id=str(number))
        hit(publisher, owner="gpu-2", request_id=str(number))
    until(lambda: len(running.agent._carrying) >= 10, "several runs of each lane are in hand")
    running.stop()
    assert stuck.carried == 0 and "asyncio" not in {record.name for record in caplog.records}
    with Running(tmp_path / "agent.sock", memory):
        assert publisher.close(30) and publisher.stats().lost == 0
    batches = decode(record for _, record in memory.records)
    for owner, count in (("gpu-1", 11), ("gpu-2", 10)):
        lane = [event.seq for event in events(batches) if event.home == f"n:{owner}"]
        assert lane == list(range(1, count + 1))


def test_what_one_engine_has_left_keeps_no_other_from_being_served_or_declared(tmp_path: Path) -> None:
    tallies = tmp_path / "agent.sock.tallies"
    odd = tallies / folder_name("gpu-0")
    (odd / "1" / TALLY).mkdir(parents=True)
    (odd / "2").mkdir()
    (odd / "2" / TALLY).write_bytes(bytes(8 * 8192) + b'{"node":"gpu-0"}\n')
    (odd / "3").symlink_to("3")
    killed = tallies / folder_name("gpu-1") / "1"
    killed.mkdir(parents=True)
    tally = Tally(killed / TALLY, "gpu-1", "1")
    tally.count("n:gpu-1")
    tally.close()
    with Running(tmp_path / "agent.sock", memory := MemoryTransport()) as running:
        until(lambda: not killed.exists(), "its end is declared")
        assert running.agent.counts.declared == 1
        with AgentPublisher("gpu-2", running.path) as publisher:
            hit(publisher)
            assert publisher.flush(30)
    lanes = runs(decode(record for _, record in memory.records))
    assert lanes["1", "n:gpu-1"] == [(2, 2)]


def test_what_cannot_be_taken_over_waits_where_it_is_and_nothing_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = tmp_path / folder_name("gpu-1")
    (node / "0001" / TALLY).mkdir(parents=True)
    (node / "stray").write_text("")
    down = MemoryTransport(down=True)
    config = PublisherConfig(spool_directory=tmp_path, spool_after_s=0.01, linger_s=0.0)
    first = LifecyclePublisher("gpu-1", down, config)
    hit(first)
    assert first.close()
    with LifecyclePublisher("gpu-1", memory := MemoryTransport(), config) as second:
        hit(second)
        assert second.flush(30)
        until(lambda: len(memory.records) == 2, "the earlier process's record is sent, too")
    assert {gaps(lane) for lane in runs(decode(record for _, record in memory.records)).values()} == {0}
    assert "0001 cannot be taken over" in caplog.text
    assert (node / "0001" / TALLY).is_dir()


def test_a_spool_gives_back_the_lock_of_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Spool(tmp_path, "gpu-1", "0001", max_bytes=1 << 20)
    left.tally.count("n:gpu-1")
    left.abandon()
    spool = Spool(tmp_path, "gpu-1", "0002", max_bytes=1 << 20)

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("kvtrail.producers.spool.read_head", broken)
        spool.adopt()
    assert spool.records == 0
    spool.adopt()
    assert spool.records == 1, "the end of the lane, to be declared"
    spool.abandon()
