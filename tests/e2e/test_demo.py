"""`kvtrail demo` as a user runs it, with detector and sink killed in the middle."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from kvtrail.cli.tour import load
from kvtrail.judging.offline import judge_history
from kvtrail.schemas.config import JudgingConfig

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.kafka, pytest.mark.engine, pytest.mark.timeout(600)]


def demo(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "kvtrail.cli", "demo", *arguments],
        env={**os.environ, "KVTRAIL_LOCAL__DIRECTORY": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )


def left_over(folder: Path) -> list[str]:
    """Processes of a stack in this folder that are still there."""
    found = []
    for process in psutil.process_iter(["environ", "cmdline", "status"]):
        said = process.info
        if said["status"] != psutil.STATUS_ZOMBIE and str(folder) in f"{said['environ']} {said['cmdline']}":
            found.append(str(said["cmdline"]))
    return found


def test_both_incidents_are_found_once_though_detector_and_sink_are_killed(tmp_path: Path) -> None:
    recorded = tmp_path / "r.jsonl"
    process = demo(tmp_path / "state", "--crash", "--record", str(recorded))
    shown, _ = process.communicate(timeout=500)
    assert process.returncode == 0, shown
    assert shown.count("ended with signal SIGKILL") == 4
    assert len(re.findall(r"▸ [^▸]*?\(\d+\.\d\d\s+s\s+from\s+event\s+to\s+queryable\s+finding\)", shown)) == 2
    assert shown.count("WRONG") == 2
    assert "each stored once; 2 wrong answers, 2 findings; 7 right answers, none." in shown
    assert re.search(r"Console: http://127\.0\.0\.1:\d+", shown)
    # The crashed run's findings are those of an undisturbed one over the same records.
    recording = load(recorded)
    first, _ = judge_history(recording.records, JudgingConfig(), recording.about.deployment)
    assert f"finding {first.id} revision 1" in shown
    assert left_over(tmp_path) == []


def test_ctrl_c_ends_it_and_everything_it_started(tmp_path: Path) -> None:
    process = demo(tmp_path / "state", "--keep")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("Console: "):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
        assert "stopped" in rest
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while left_over(tmp_path) and time.monotonic() < deadline:
        os.sched_yield()
    assert left_over(tmp_path) == []
