"""`kvtrail store` as a process: it starts, says where it is, refuses what it cannot have, survives kill -9."""

import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from kvtrail.schemas.config import ClickHouseConfig, Config
from kvtrail.schemas.errors import StackError, StoreRefused, StoreUnavailable
from kvtrail.store import embedded
from kvtrail.store.client import connect, connect_wait
from kvtrail.store.migrate import migrate
from kvtrail.store.queries import DUPLICATES, STORED_UNTIL
from kvtrail.store.rows import Rows, record_rows
from kvtrail.tests.fixtures.engine import start_store, stop_store, wait_for_port

from .samples import TOPIC, example_events, many, record

pytestmark = pytest.mark.engine

Start = Callable[..., "tuple[subprocess.Popen[bytes], ClickHouseConfig]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `kvtrail store` on the test's directory; whatever is left is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(directory: Path = tmp_path / "store") -> "tuple[subprocess.Popen[bytes], ClickHouseConfig]":
        process = start_store(directory)
        running.append(process)
        return process, wait_for_port(directory, process)

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


def output(directory: Path) -> str:
    return directory.with_suffix(".log").read_text()


def until(done: Callable[[], bool], deadline_s: float = 30.0) -> None:
    end = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_it_says_where_it_is_and_stops_cleanly(start: Start, tmp_path: Path) -> None:
    process, config = start()
    with connect(config) as client:
        assert client.server_version
    listening = [c for c in psutil.Process(process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [c.laddr.ip for c in listening] == ["127.0.0.1"]
    assert "ready: store on 127.0.0.1:" in output(tmp_path / "store")
    assert stop_store(process) == 0
    assert not (tmp_path / "store" / "port").exists()


def test_what_was_stored_is_there_after_a_restart(start: Start) -> None:
    process, config = start()
    with connect(config) as client:
        migrate(client, Config(clickhouse=config))
        client.insert(*record_rows([record(example_events(), 0)]), token="a")
    assert stop_store(process) == 0
    process, config = start()
    with connect(config) as client:
        assert migrate(client, Config(clickhouse=config)) == 0
        assert STORED_UNTIL.run(client, topic=TOPIC, partition=0)[0].events == 10
    assert stop_store(process) == 0


def test_a_second_process_is_told_why_not(start: Start, tmp_path: Path) -> None:
    process, config = start()
    second = start_store(tmp_path / "store")
    assert second.wait(60) == 2
    assert "is in use by another process" in output(tmp_path / "store")
    assert "name another --directory" in output(tmp_path / "store")
    with urllib.request.urlopen(f"{config.url}/ping") as answer:
        assert answer.read() == b"Ok.\n"
    assert (tmp_path / "store" / "port").exists()
    assert stop_store(process) == 0


def test_a_taken_port_is_named(start: Start, tmp_path: Path) -> None:
    process, config = start()
    second = start_store(tmp_path / "other", port=int(config.url.rpartition(":")[2]))
    assert second.wait(60) == 2
    text = output(tmp_path / "other")
    assert "cannot be listened on (Address already in use)" in text
    assert "take port 0" in text
    assert stop_store(process) == 0


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="cannot hold the store") as caught:
        embedded.claim(tmp_path / "file")
    assert caught.value.remedy
    with pytest.raises(StackError, match=r"holds one of"):
        embedded.claim(tmp_path / "what?")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(StackError, match="No space left on device") as caught:
        embedded.claim(tmp_path / "store")
    assert "Free at least" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StackError, match="Permission denied"):
        embedded.claim(tmp_path / "store")


def test_a_running_statement_is_waited_for(start: Start) -> None:
    process, config = start()
    answers: list[bytes] = []

    def slow() -> None:
        with urllib.request.urlopen(f"{config.url}/?query=SELECT%20sleepEachRow(0.5)%20FROM%20numbers(4)") as answer:
            answers.append(answer.read())

    thread = threading.Thread(target=slow)
    thread.start()
    with connect(config, database="default") as client:
        until(lambda: len(client.query("SELECT 1 FROM system.processes WHERE query LIKE '%sleepEach%'")) == 2)
    assert stop_store(process) == 0
    thread.join()
    assert answers == [b"0\n0\n0\n0\n"]


def test_with_a_password_nobody_else_gets_in(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__PASSWORD", "s3cret-word")
    process, config = start()
    monkeypatch.undo()
    with pytest.raises(StoreRefused) as caught:
        connect(config)
    assert "s3cret" not in str(caught.value)
    right = Config.model_validate({"clickhouse": {"url": config.url, "password": "s3cret-word"}}).clickhouse
    connect(right).close()
    for url in (f"{config.url}/?query=SELECT%201&password=s3cret-word", f"{config.url}/ping"):
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
    assert stop_store(process) == 0


def test_nobody_there_is_transient() -> None:
    nobody = ClickHouseConfig(url="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable):
        connect(nobody)
    with pytest.raises(StoreUnavailable):
        connect_wait(nobody, 0.3)


def batch(number: int, size: int = 400) -> tuple[Rows, str]:
    """The same rows and the same token each time: what a sink sends again after a crash."""
    hit = next(event for event in example_events() if event.type == "hit")
    rows = record_rows([record(many(hit, size, first=1 + number * size), number)])
    return rows, f"{TOPIC}/0/{number}-{number}"


TARGETS = ("events", "evidence", "batches", "per_minute", "entry")


def counts(config: ClickHouseConfig) -> dict[str, int]:
    """What each target of the landing table says it holds, in events or batches."""
    with connect(config) as client:
        (row,) = client.query(
            """SELECT (SELECT count() FROM events) AS events, (SELECT count() FROM evidence) AS evidence,
              (SELECT count() FROM batches) AS batches, (SELECT sum(n) FROM per_minute) AS per_minute,
              (SELECT sum(hits) FROM entry) AS entry"""
        )
        assert DUPLICATES.run(client) == []
    return {name: int(row[name]) for name in TARGETS}


def test_kill_9_during_inserts_loses_and_doubles_nothing(start: Start) -> None:
    """Six times: insert batch after batch, kill -9 in the middle, open again, send the unanswered batch again."""
    rounds, size, acknowledged = 6, 400, 0
    process, config = start()
    with connect(config) as client:
        migrate(client, Config(clickhouse=config))
    for round_ in range(rounds):
        killer = threading.Timer(0.05 + 0.11 * round_, process.kill)
        with connect(config) as client:
            killer.start()
            try:
                while True:
                    rows, token = batch(acknowledged, size)
                    client.insert(*rows, token=token)
                    acknowledged += 1
            except StoreUnavailable:
                pass
        killer.join()
        assert process.wait() == -signal.SIGKILL
        process, config = start()
        with connect(config) as client:
            rows, token = batch(acknowledged, size)
            client.insert(*rows, token=token)
            acknowledged += 1
            # And once more everything that was acknowledged lately: a no-op in every target.
            for number in range(max(0, acknowledged - 3), acknowledged):
                rows, token = batch(number, size)
                client.insert(*rows, token=token)
        expected = dict.fromkeys(TARGETS, acknowledged * size) | {"evidence": acknowledged, "batches": acknowledged}
        assert counts(config) == expected, f"round {round_}"
    assert acknowledged > rounds
    assert stop_store(process) == 0


def test_nothing_of_a_value_reaches_the_log(start: Start, tmp_path: Path) -> None:
    process, config = start()
    for body in (b"SELECT 'my-prompt' + 1", b"INSERT INTO t FORMAT TSV\nmy-prompt"):
        request = urllib.request.Request(config.url, data=body)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request)
    assert stop_store(process) == 0
    assert "my-prompt" not in output(tmp_path / "store")
