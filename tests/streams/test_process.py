"""What both workers do as processes: logs, the instance lock, the watch over a stolen name."""

import gc
import io
import json
import logging
import os
from pathlib import Path

import pytest
from kvtrail.schemas.config import Config, LocalConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.streams.logs import JsonLines, RateLimit
from kvtrail.streams.membership import FencingWatch, InstanceLock
from kvtrail.streams.process import calm_collector


def _logger(name: str, *handlers: logging.Handler) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.handlers[:] = handlers
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return logger


def test_a_log_line_is_one_json_object_with_its_extras() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines())
    logger = _logger("kvtrail.test.lines", handler)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("two\nlines", extra={"partition": 3, "path": Path("x")})
    [line] = out.getvalue().splitlines()
    found = json.loads(line)
    assert (found["message"], found["level"], found["partition"], found["path"]) == ("two\nlines", "error", 3, "x")
    assert found["time"].endswith("Z")
    assert "ValueError: why" in found["exception"]


def test_a_client_whose_broker_is_away_cannot_flood_the_log() -> None:
    limit = RateLimit(burst=2, window_s=10)

    def line(name: str, at: float) -> bool:
        record = logging.LogRecord(name, logging.ERROR, "", 0, "Unable to connect to %s", ("b",), None)
        record.created = at
        return bool(limit.filter(record))

    assert [line("aiokafka.conn", 100 + n / 10) for n in range(50)] == [True, True, *[False] * 48]
    assert line("aiokafka.conn", 111)
    assert all(line("kvtrail.streams", 100 + n / 10) for n in range(50))


def test_the_next_window_says_how_many_lines_were_held_back() -> None:
    limit = RateLimit(burst=1, window_s=10)
    records = [logging.LogRecord("aiokafka", logging.ERROR, "", 0, "away", (), None) for _ in range(5)]
    for at, record in zip([0, 1, 2, 3, 20], records, strict=True):
        record.created = at
        limit.filter(record)
    assert records[-1].__dict__["held_back"] == 3


def test_one_instance_name_is_one_process(tmp_path: Path) -> None:
    config = Config(local=LocalConfig(directory=tmp_path))
    told = rf"already runs on this machine: detector-0, process {os.getpid()}\."
    with InstanceLock(config, "detector-0"):
        with pytest.raises(ConfigError, match=told), InstanceLock(config, "detector-0"):
            pass
        with InstanceLock(config, "detector-1"):
            pass
    with InstanceLock(config, "detector-0"):
        pass


def test_a_lock_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = Config(local=LocalConfig(directory=tmp_path / "file"))
    with pytest.raises(ConfigError) as caught, InstanceLock(config, "detector-0"):
        pass
    assert str(tmp_path) in caught.value.field


def test_a_broker_that_keeps_forgetting_this_member_ends_the_worker() -> None:
    said: list[str] = []
    watch = FencingWatch(said.append, limit=3, window_s=30)

    def line(text: str, at: float) -> None:
        record = logging.LogRecord("aiokafka", logging.WARNING, "", 0, text, (), None)
        record.created = at
        watch.handle(record)

    forgotten = "Heartbeat failed: local member_id was not recognized; resetting and re-joining group"
    for at in (0, 40, 80, 81):
        line(forgotten, at)
        line("Heartbeat failed for group because it is rebalancing", at)
    for part in range(9):
        line(forgotten, 81.1 + part / 10)
    assert said == [], "one answer, said by everybody who waited for it"
    line(forgotten, 82.1)
    assert len(said) == 1


def test_the_collector_leaves_what_was_imported_alone() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        calm_collector(2_000)
        assert gc.get_freeze_count() > frozen
        young, middle, old = gc.get_threshold()
        assert young == 2_000
        assert young * middle * old > 10_000_000, "all of a large state is never looked at in one go"
        assert gc.isenabled(), "cycles still go, later"
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
