"""What a person sees while something takes time: one line a step, with elapsed time, with or without a terminal."""

import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

PATIENCE_S = 1.0
"""A step shorter than this is not worth a progress line; its end is a line all the same."""

_lock = threading.RLock()
_steps: list["_Ticker"] = []  # running steps, innermost last: only that one draws
_CLEAR = "\r\x1b[K"


def say(text: str = "", *, style: str = "") -> None:
    """One line for the person. `style` is a colour name of click's, used only on a terminal without NO_COLOR."""
    with _lock:
        stream = sys.stdout
        if _steps and _draws(stream):
            stream.write(_CLEAR)
        line = text if _writable(text, stream) else _plain(text, stream)
        click.echo(click.style(line, fg=style) if style and colourful(stream) else line, file=stream)
        stream.flush()


def say_path() -> None:
    """What makes `kvtrail` known to a shell that does not know it; nothing where it is known."""
    activate = Path(sys.executable).parent / "activate"
    if shutil.which("kvtrail") is None and activate.is_file():
        say(f"  . {shlex.quote(str(activate))}")


def colourful(stream: TextIO) -> bool:
    """Whether colour may be used: a terminal, and nobody asked for none (NO_COLOR, TERM=dumb)."""
    return _draws(stream) and not os.environ.get("NO_COLOR")


@contextmanager
def step(title: str) -> Iterator[None]:
    """A step that may take longer than a second.

    On a terminal one line counts the seconds and ends as `✓ title (3.4 s)`. Elsewhere (a pipe, CI) the line
    `… title` appears once the step has taken a second, and its end is another line. A step that fails says so, and
    the error goes on.
    """
    ticker = _Ticker(title)
    with _lock:
        _steps.append(ticker)
    ticker.start()
    mark, style = "✗", "red"
    try:
        yield
        mark, style = "✓", "green"
    finally:
        ticker.stop()
        elapsed = time.monotonic() - ticker.started
        took = f" ({elapsed:.1f} s)" if elapsed >= PATIENCE_S else ""
        with _lock:
            say(f"{mark} {title}{took}", style=style)
            _steps.remove(ticker)


_PLAIN = str.maketrans({"✓": "ok:", "✗": "failed:", "…": "...", "▸": "=>", "←": "<-", "“": '"', "”": '"'})


def _plain(text: str, stream: TextIO) -> str:
    """`text` as this stream can write it; what has no plain form becomes a question mark."""
    encoding = stream.encoding or "ascii"
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


def _writable(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _draws(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class _Ticker(threading.Thread):
    """Shows that a step is still going, from a thread, since the step itself is busy."""

    def __init__(self, title: str) -> None:
        super().__init__(name="kvtrail-screen", daemon=True)
        self.started = time.monotonic()
        self._title = title
        self._done = threading.Event()

    def run(self) -> None:
        if self._done.wait(PATIENCE_S):
            return
        if not _draws(sys.stdout):
            say(f"… {self._title}")
            return
        while True:
            with _lock:
                if _steps and _steps[-1] is self:
                    seconds = f"{time.monotonic() - self.started:.0f} s"
                    sys.stdout.write(f"{_CLEAR}… {self._title} ({seconds})")
                    sys.stdout.flush()
            if self._done.wait(PATIENCE_S):
                return

    def stop(self) -> None:
        self._done.set()
        self.join()
