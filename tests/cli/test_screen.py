"""Progress lines: shown for what takes time, plain in a pipe, drawn in place and coloured on a terminal."""

import io
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kvtrail.cli import screen
from kvtrail.cli.screen import say, step


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "PATIENCE_S", 0.01)


def terminal(monkeypatch: pytest.MonkeyPatch, **environ: str) -> Terminal:
    """From here on output goes to a terminal where colour is welcome. Not a fixture: pytest sets stdout in between."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm", **environ}.items():
        monkeypatch.setenv(name, value)
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    return found


def until(shown: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not shown():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_short_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with step("Looking around"):
        pass
    assert capsys.readouterr().out == "✓ Looking around\n"


@pytest.mark.usefixtures("quick")
def test_a_long_step_in_a_pipe_is_announced_once_and_ends_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    seen = ""

    def shown() -> bool:
        nonlocal seen
        seen += capsys.readouterr().out
        return "…" in seen

    with step("Downloading"):
        until(shown)
    assert re.fullmatch(r"… Downloading\n✓ Downloading \(\d+\.\d s\)\n", seen + capsys.readouterr().out)


@pytest.mark.usefixtures("quick")
def test_on_a_terminal_the_line_is_drawn_in_place_and_the_end_is_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = terminal(monkeypatch)
    with step("Downloading"):
        until(lambda: stdout.getvalue().count("… Downloading (0 s)") >= 2)
        say("by the way")
    text = stdout.getvalue()
    assert "\x1b[Kby the way\n" in text
    assert text.count("\n") == 2
    assert "\x1b[32m✓ Downloading" in text


@pytest.mark.usefixtures("quick")
def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = terminal(monkeypatch, NO_COLOR="1")
    with step("Looking around"):
        say("plain", style="red")
    assert "plain\n" in stdout.getvalue()
    assert "\x1b[3" not in stdout.getvalue()


def test_a_failed_step_says_so_and_the_error_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="boom"), step("Trying"):
        raise ValueError("boom")
    assert capsys.readouterr().out == "✗ Trying\n"


def test_an_ascii_stream_gets_words_for_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with step("Looking around"):
        pass
    assert raw.getvalue() == b"ok: Looking around\n"


def test_a_shell_that_does_not_know_the_command_is_told_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "a folder"
    here.mkdir()
    monkeypatch.setattr("sys.executable", str(here / "python"))
    monkeypatch.setenv("PATH", str(here))
    screen.say_path()
    assert capsys.readouterr().out == "", "there is nothing to activate"
    (here / "activate").touch()
    screen.say_path()
    assert capsys.readouterr().out == f"  . '{here}/activate'\n"
    (here / "kvtrail").touch(mode=0o755)
    screen.say_path()
    assert capsys.readouterr().out == ""
