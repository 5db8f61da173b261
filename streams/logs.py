"""Structured logs on stderr: one JSON object a line, and no flood from a client whose broker is away."""

import json
import logging
import sys
import time
from typing import Any

_NOISY = ("aiokafka", "faust", "mode")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """`time`, `level`, `logger`, `message`, then whatever `extra` brought."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class RateLimit(logging.Filter):
    """At most `burst` lines a `window_s` for one message template; the next window says how many were held back."""

    def __init__(self, burst: int = 5, window_s: float = 10.0) -> None:
        super().__init__()
        self._burst = burst
        self._window_s = window_s
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_NOISY):
            return True
        key = (record.name, str(record.msg))
        started, seen = self._windows.get(key, (record.created, 0))
        if record.created - started > self._window_s:
            if seen > self._burst:
                record.held_back = seen - self._burst
            started, seen = record.created, 0
        self._windows[key] = (started, seen + 1)
        return seen < self._burst


def log_to_stderr(level: int = logging.INFO) -> None:
    """Configure this process's root logger. Call once, in a process of ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
