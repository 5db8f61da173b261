"""Child processes: logs kept, readiness by condition, deadlines kept, nothing outlives its parent."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from kvtrail.cli.local import processes as module
from kvtrail.cli.local.processes import Child, describe
from kvtrail.schemas.errors import StackError

from .test_kafka import gone

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
WAITS = "import time; print('up', flush=True); time.sleep(600)"


def child(folder: Path, code: str) -> Child:
    return Child("worker", [sys.executable, "-c", code], log=folder / "worker.log", environ=os.environ, cwd=folder)


def test_ready_by_a_line_of_this_start_not_of_an_earlier_one(tmp_path: Path) -> None:
    worker = child(tmp_path, WAITS)
    (tmp_path / "worker.log").write_text("an earlier start\n")
    worker.start()
    worker.wait_for_line("up", 20)
    assert "earlier" not in worker.output()
    assert worker.stop(10)
    assert (tmp_path / "worker.log").read_text().startswith("an earlier start\n")


def test_a_crash_shows_the_end_of_its_log(tmp_path: Path) -> None:
    worker = child(tmp_path, "import sys; print('reading the map', flush=True); sys.exit('no such island')")
    worker.start()
    with pytest.raises(StackError, match=r"(?s)worker ended with exit status 1.*reading the map.*no such island"):
        worker.wait_for_line("up", 20)


def test_not_ready_in_time_is_an_error_with_the_log(tmp_path: Path) -> None:
    worker = child(tmp_path, WAITS)
    worker.start()
    worker.wait_for_line("up", 20)
    with pytest.raises(StackError, match=r"(?s)not ready after 0 s.*up"):
        worker.wait_for_line("never", 0.1)
    worker.kill()


def test_a_process_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path: Path) -> None:
    worker = child(tmp_path, STUBBORN)
    worker.start()
    worker.wait_for_line("up", 20)
    assert not worker.stop(0.1)
    assert not worker.running
    assert describe(worker.returncode) == "signal SIGKILL"


def test_what_a_child_started_goes_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {WAITS!r}]); print('pid', p.pid, flush=True); time.sleep(600)"
    )
    worker = child(tmp_path, code)
    worker.start()
    worker.wait_for_line("up", 20)
    grandchild = int(worker.output().split()[1])
    worker.kill()
    assert gone(grandchild)


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    worker = child(tmp_path, WAITS)
    thread = threading.Thread(target=worker.start)
    thread.start()
    thread.join()
    worker.wait_for_line("up", 20)
    assert worker.running
    worker.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_never_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import os, sys; from pathlib import Path; from kvtrail.cli.local.processes import Child\n"
        "here = Path(sys.argv[1])\n"
        f"c = Child('c', [sys.executable, '-c', {STUBBORN!r}], log=here / 'log', environ=os.environ, cwd=here)\n"
        "c.start(); c.wait_for_line('up', 20); print(c.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.send_signal(number)
    assert gone(pid)


def test_a_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    worker = Child("worker", ["/nowhere/at-all"], log=tmp_path / "log", environ=os.environ, cwd=tmp_path)
    worker.start()
    with pytest.raises(StackError, match="cannot start /nowhere/at-all: No such file"):
        worker.wait_for_line("up", 20)


def test_a_long_log_is_put_aside_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 10)
    (tmp_path / "worker.log").write_text("a very long history\n")
    worker = child(tmp_path, WAITS)
    worker.start()
    worker.wait_for_line("up", 20)
    worker.kill()
    assert (tmp_path / "worker.log.old").read_text() == "a very long history\n"
    assert (tmp_path / "worker.log").read_text() == "up\n"


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    worker = Child("worker", ["true"], log=tmp_path / "logs" / "log", environ=os.environ, cwd=tmp_path)
    with pytest.raises(StackError, match="worker cannot be started"):
        worker.start()
