"""A member that dies is started again with a line on the screen; one that keeps dying is given up."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvtrail.cli.local import supervisor as module
from kvtrail.cli.local.processes import Child
from kvtrail.cli.local.supervisor import Supervisor, Worker, wait_ready
from kvtrail.schemas.errors import StackError

SERVES = "import time; print('ready: worker', flush=True); time.sleep(600)"
SAYS_HOW = (
    "import signal, sys, time\n"
    "for number in (signal.SIGTERM, signal.SIGHUP):\n"
    "    signal.signal(number, lambda number, frame: (print(signal.Signals(number).name, flush=True), sys.exit()))\n"
    "print('ready: worker', flush=True); time.sleep(600)"
)


def worker(folder: Path, code: str) -> Worker:
    child = Child("worker", [sys.executable, "-c", code], log=folder / "log", environ=os.environ, cwd=folder)
    return Worker("worker", child, lambda child: "ready: " in child.output(), hangup=True)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(said: list[str]) -> Iterator[Supervisor]:
    found = Supervisor(said.append)
    found.begin()
    yield found
    found.end()


def test_a_killed_member_comes_back_and_the_screen_says_so(
    tmp_path: Path, supervisor: Supervisor, said: list[str]
) -> None:
    member = worker(tmp_path, SERVES)
    member.start()
    wait_ready(member, 20)
    supervisor.keep(member)
    first = member.pid
    member.kill()
    until(lambda: len(said) == 2)
    assert member.running
    assert member.pid != first
    assert said[0] == "worker ended with signal SIGKILL: starting it again"
    assert said[1].startswith("worker is back after ")
    supervisor.end()
    member.kill()


def test_a_member_that_keeps_dying_is_given_up_with_its_last_words(
    tmp_path: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.01))
    member = worker(tmp_path, "import sys; sys.exit('the map is missing')")
    member.start()
    supervisor.keep(member)
    assert supervisor.over.wait(20)
    assert supervisor.failed is not None
    assert "the map is missing" in str(supervisor.failed)


def test_a_member_that_cannot_even_be_started_again_is_given_up_with_the_reason(
    tmp_path: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.01))
    member = worker(tmp_path, SERVES)
    member.start()
    wait_ready(member, 20)
    member.child.log = tmp_path / "log" / "not-a-folder"
    supervisor.keep(member)
    member.kill()
    assert supervisor.over.wait(20)
    assert "worker cannot be started" in str(supervisor.failed)


def test_a_member_let_go_stays_down(tmp_path: Path, supervisor: Supervisor, said: list[str]) -> None:
    kept, free = worker(tmp_path, SERVES), worker(tmp_path, SERVES)
    free.name = "free"
    for member in (kept, free):
        member.start()
        wait_ready(member, 20)
        supervisor.keep(member)
    supervisor.let_go(free)
    free.kill()
    kept.kill()
    until(lambda: len(said) == 2)
    assert not free.running
    assert all(line.startswith("worker ") for line in said)
    supervisor.end()
    kept.kill()


@pytest.mark.parametrize(("again", "word"), [(True, "SIGHUP"), (False, "SIGTERM")])
def test_a_worker_is_told_whether_it_comes_back(tmp_path: Path, again: bool, word: str) -> None:
    member = worker(tmp_path, SAYS_HOW)
    member.start()
    wait_ready(member, 20)
    member.ask_to_stop(again)
    assert member.stop(20)
    assert word in member.child.output()


def test_waiting_for_a_member_that_dies_shows_its_end(tmp_path: Path) -> None:
    member = worker(tmp_path, "import sys; sys.exit('no such island')")
    member.start()
    with pytest.raises(StackError, match="no such island"):
        wait_ready(member, 20)
