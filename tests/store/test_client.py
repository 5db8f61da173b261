"""The client: three kinds of failure, inserts that can be repeated, and no value in any message."""

import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, DataError, OperationalError
from clickhouse_connect.driver.httputil import all_managers
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.errors import ConfigError, StoreError, StoreRefused, StoreRejected, StoreUnavailable
from kvtrail.store.client import REFUSED_CODES, TRANSIENT_CODES, SchemaMissing, connect, connect_wait, mapped
from kvtrail.store.queries import DUPLICATES
from kvtrail.store.rows import record_rows

from .samples import example_events, many, record


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OperationalError("connection refused"), StoreUnavailable),
        (DatabaseError("x", code=252, name="TOO_MANY_PARTS"), StoreUnavailable),
        (DatabaseError("x", code=241, name="MEMORY_LIMIT_EXCEEDED"), StoreUnavailable),
        (DatabaseError("x", code=243, name="NOT_ENOUGH_SPACE"), StoreUnavailable),
        (DatabaseError("x", code=516, name="AUTHENTICATION_FAILED"), StoreRefused),
        (DatabaseError("x", code=497, name="ACCESS_DENIED"), StoreRefused),
        (DatabaseError("x", code=60, name="UNKNOWN_TABLE"), SchemaMissing),
        (DatabaseError("x", code=27, name="CANNOT_PARSE_INPUT_ASSERTION_FAILED"), StoreRejected),
        (DataError("x"), StoreRejected),
        (DatabaseError("x"), StoreRejected),
    ],
)
def test_errors_are_sorted(error: Exception, kind: type[StoreError]) -> None:
    ours = mapped(error, "query")
    assert type(ours) is kind
    assert ours.remedy


def test_no_code_is_both_transient_and_refused() -> None:
    assert not TRANSIENT_CODES & REFUSED_CODES


@pytest.mark.parametrize("url", ["ftp://host", "host:8123", "http://", "http://host:notaport", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(ClickHouseConfig(url=url))
    assert caught.value.field == "clickhouse.url"


@pytest.mark.engine
def test_a_store_that_is_not_there_is_told_once_and_not_by_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # held, and nobody listens
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match="kvtrail up"):
            connect(ClickHouseConfig(url=url))
    assert [one for one in caplog.records if one.name.startswith("clickhouse_connect")] == []


def test_a_store_on_this_machine_is_not_asked_for_through_a_proxy(
    engine: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{nobody.getsockname()[1]}")
        for url in (engine.url, engine.url.replace("127.0.0.1", "localhost")):
            with connect(engine.model_copy(update={"url": url})) as client:
                assert client.server_version


def test_a_closed_client_leaves_nothing_behind(engine: ClickHouseConfig) -> None:
    held = len(all_managers)
    for _ in range(3):
        connect(engine).close()
    with pytest.raises(StoreUnavailable):
        connect(ClickHouseConfig(url="http://127.0.0.1:9"))
    assert len(all_managers) == held


def test_values_stay_out_of_messages(database: ClickHouseConfig, caplog: pytest.LogCaptureFixture) -> None:
    import traceback

    with connect(database) as client:
        rows = record_rows([record(example_events(), 0)])
        columns: dict[str, list[Any]] = {**rows.columns, "event_time": ["my-prompt"] * rows.size}
        with pytest.raises(StoreRejected) as caught:
            client.insert("events_in", columns, token="x")
        assert "my-prompt" not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(StoreRejected) as refused:
            client.query("SELECT {x:UInt8}", {"x": "my-prompt"})
        assert "my-prompt" not in str(refused.value)
    assert "my-prompt" not in caplog.text


@pytest.mark.engine
def test_inserts_that_cannot_be_right(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        rows = record_rows([record(example_events(), 0)])
        with pytest.raises(StoreRejected, match="without a token"):
            client.insert(*rows, token="")
        with pytest.raises(SchemaMissing, match="has no column nonsense") as caught:
            client.insert("events_in", {**rows.columns, "nonsense": [1] * rows.size}, token="x")
        assert "migrations" in caught.value.remedy
        with pytest.raises(SchemaMissing):
            client.insert("no_such_table", rows.columns, token="x")
        client.insert(*record_rows([]), token="nothing")
        assert client.query("SELECT count() AS n FROM events") == [{"n": 0}]


TOTALS = """SELECT (SELECT count() FROM events) AS events, (SELECT count() FROM evidence) AS evidence,
  (SELECT count() FROM batches) AS batches, (SELECT sum(n) FROM per_minute) AS per_minute,
  (SELECT sum(hit) FROM lookups) AS lookups, (SELECT sum(hits) FROM entry) AS hits,
  (SELECT count() FROM resolutions) AS r"""


@pytest.mark.engine
def test_the_same_token_again_changes_no_target(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        rows = record_rows([record(example_events(), 0)])
        client.insert(*rows, token="one")
        before = client.query(TOTALS)
        assert before[0] == {
            "events": 10, "evidence": 1, "batches": 1, "per_minute": 10, "lookups": 48, "hits": 1, "r": 1,
        }  # fmt: skip
        for _ in range(3):
            client.insert(*rows, token="one")
        assert client.query(TOTALS) == before
        client.insert(*rows, token="two")
        assert client.query(TOTALS)[0]["events"] == 20


@pytest.mark.engine
def test_a_large_insert_is_whole(database: ClickHouseConfig) -> None:
    """More rows and bytes than clickhouse-connect would put into one block by itself."""
    hit = next(event for event in example_events() if event.type == "hit")
    records = [record(many(hit, 4096, first=1 + n * 4096), n) for n in range(3)]
    with connect(database) as client:
        for _ in range(2):
            client.insert(*record_rows(records), token="large")
        totals = client.query(TOTALS)[0]
        assert (totals["events"], totals["evidence"], totals["per_minute"], totals["hits"]) == (12288, 3, 12288, 12288)
        assert DUPLICATES.run(client) == []


@pytest.mark.engine
def test_threads_share_a_client(database: ClickHouseConfig) -> None:
    hit = next(event for event in example_events() if event.type == "hit")
    errors: list[BaseException] = []
    with connect(database) as client:

        def write(lane: int) -> None:
            try:
                for n in range(4):
                    rows = record_rows([record(many(hit, 50, first=1 + n * 50, prefix=f"l{lane}"), n, partition=lane)])
                    client.insert(*rows, token=f"{lane}/{n}")
                    client.query("SELECT count() FROM events WHERE key = {k:String}", {"k": f"l{lane}-key-7"})
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(lane,)) for lane in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert client.query("SELECT count() AS n FROM events") == [{"n": 4 * 4 * 50}]


@pytest.mark.engine
def test_connect_wait_answers_at_once_where_the_store_is_up(engine: ClickHouseConfig) -> None:
    connect_wait(engine, 10).close()


@pytest.mark.engine
def test_a_missing_database_is_rejected_not_transient(engine: ClickHouseConfig) -> None:
    with connect(engine, database="no_such_database") as client, pytest.raises(StoreRejected, match="UNKNOWN_DATABASE"):
        client.query("SELECT 1")


@pytest.mark.engine
def test_a_full_disk_is_transient_and_the_retry_is_whole(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        rows = record_rows([record(example_events(), 0)])
        full = "ALTER TABLE evidence MODIFY SETTING min_free_disk_bytes_to_perform_insert = {n}"
        client.command(full.format(n=10**18))
        for _ in range(2):
            with pytest.raises(StoreUnavailable) as caught:
                client.insert(*rows, token="full")
            assert "Free disk space" in caught.value.remedy
        client.command(full.format(n=0))
        client.insert(*rows, token="full")
        totals = client.query(TOTALS)[0]
        assert (totals["events"], totals["evidence"], totals["batches"], totals["per_minute"]) == (10, 1, 1, 10)


@pytest.mark.parametrize(("told", "imported"), [("only_lists()", False), ("", True)])
def test_a_sink_does_not_import_pandas_to_insert_lists(told: str, imported: bool) -> None:
    pytest.importorskip("pandas")
    script = f"""
import sys
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext
from kvtrail.store.client import only_lists
{told}
InsertContext("t", ["a"], [get_from_name("UInt8")], [[1, 2]], column_oriented=True)
print("pandas" in sys.modules)
"""
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(imported)
