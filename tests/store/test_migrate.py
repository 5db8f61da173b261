"""Migrations: resumable at every statement, refused when they changed, and the schema they make fits the schemas."""

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kvtrail.schemas.config import ClickHouseConfig, Config, RetentionConfig
from kvtrail.schemas.errors import StoreRejected, StoreUnavailable
from kvtrail.schemas.identity import DIMENSIONS
from kvtrail.store import migrate as m
from kvtrail.store.client import Client, connect
from kvtrail.store.rows import LANDING_COLUMNS

pytestmark = pytest.mark.engine

TARGETS = ("events", "evidence", "batches", "per_minute", "lookups", "entry", "resolutions", "findings", "dead_letters")


@pytest.fixture
def bare(engine: ClickHouseConfig) -> Iterator[Client]:
    """A client of a database that does not exist yet."""
    client = connect(engine, database=f"t_{uuid.uuid4().hex[:12]}")
    yield client
    client.command(f"DROP DATABASE IF EXISTS {client.database} SYNC", in_database=False)
    client.close()


def objects(client: Client) -> list[tuple[str, str]]:
    rows = client.query(
        "SELECT name, create_table_query AS q FROM system.tables WHERE database = {db:String} ORDER BY name",
        {"db": client.database},
    )
    return [(row["name"], row["q"].replace(client.database, "DB")) for row in rows]


class Stop(Exception):
    """The process ends here."""


class Dying(Client):
    """A client whose process ends at its nth command: before it, or after it and before anyone hears."""

    def __init__(
        self, like: Client, config: ClickHouseConfig, at: int, *, after: bool, kind: type[Exception] = Stop
    ) -> None:
        super().__init__(config, database=like.database)
        self.left, self.after, self.kind = at, after, kind

    def command(
        self, sql: str, params: Mapping[str, Any] = {}, settings: Mapping[str, Any] = {}, *, in_database: bool = True
    ) -> None:  # fmt: skip
        self.left -= 1
        if self.left == 0 and not self.after:
            raise self.kind("here")
        super().command(sql, params, settings, in_database=in_database)
        if self.left == 0:
            raise self.kind("here")


def commands() -> int:
    """How many commands a whole migration sends."""
    return 2 + 2 * sum(len(migration.statements) for migration in m.migrations())


def test_empty_to_head_and_head_again(bare: Client) -> None:
    steps = sum(len(migration.statements) for migration in m.migrations())
    assert m.migrate(bare, Config()) == steps
    once = objects(bare)
    assert m.migrate(bare, Config()) == 0
    assert objects(bare) == once
    m.verify(bare)


@pytest.mark.parametrize("kind", [Stop, StoreRejected])
def test_interrupted_at_every_statement_it_resumes(
    bare: Client, engine: ClickHouseConfig, kind: type[Exception]
) -> None:
    """The process ends, or the store refuses, after each statement before that was written down, and after that."""
    m.migrate(bare, Config())
    whole = objects(bare)
    bare.command(f"DROP DATABASE {bare.database} SYNC", in_database=False)
    # Two commands prepare; the third is the next statement, the fourth writes it down.
    for life in itertools.count():
        dying = Dying(bare, engine, 3 + life % 2, after=True, kind=kind)
        try:
            m.migrate(dying, Config())
            break
        except kind:
            continue
        finally:
            dying.close()
    assert life == commands() - 2
    assert objects(bare) == whole
    m.verify(bare)


def test_interrupted_before_it_has_begun_it_begins_again(bare: Client, engine: ClickHouseConfig) -> None:
    for at, after in itertools.product((1, 2, 3), (False, True)):
        dying = Dying(bare, engine, at, after=after)
        with contextlib.suppress(Stop):
            m.migrate(dying, Config())
        dying.close()
    m.migrate(bare, Config())
    m.verify(bare)


def test_two_at_once_do_no_harm(bare: Client, engine: ClickHouseConfig) -> None:
    import threading

    errors: list[BaseException] = []

    def run() -> None:
        try:
            with connect(engine, database=bare.database) as client:
                m.migrate(client, Config())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    m.verify(bare)


def migration(version: int, table: str, kind: str = "Int8") -> m.Migration:
    """A migration that makes one table."""
    sql = f"-- statement: a\nCREATE TABLE IF NOT EXISTS ${{database}}.{table} (x {kind}) ENGINE = Null\n"
    return m.parse(version, f"{version:04}_x.sql", sql)


def test_a_changed_migration_is_refused(bare: Client) -> None:
    first = migration(1, "a", "Int8")
    changed = migration(1, "a", "Int16")
    assert m.migrate(bare, Config(), only=(first,)) == 1
    with pytest.raises(m.MigrationRefused, match="changed after it was applied") as caught:
        m.migrate(bare, Config(), only=(changed,))
    assert caught.value.field == "0001_x.sql"
    assert caught.value.remedy


def test_a_newer_database_is_refused(bare: Client) -> None:
    first = migration(1, "a", "Int8")
    second = migration(2, "b", "Int8")
    assert m.migrate(bare, Config(), only=(first, second)) == 2
    with pytest.raises(m.MigrationRefused, match="version 2, which this build does not know"):
        m.migrate(bare, Config(), only=(first,))
    # What is new is added to what is there.
    third = m.parse(3, "0003_x.sql", "-- statement: a\nALTER TABLE ${database}.b ADD COLUMN IF NOT EXISTS y Int8\n")
    assert m.migrate(bare, Config(), only=(first, second, third)) == 1


def test_missing_migrations_are_told_apart(bare: Client) -> None:
    with pytest.raises(StoreUnavailable, match=r"lacks \d+ steps"):
        m.verify(bare)
    m.migrate(bare, Config(), only=())
    with pytest.raises(StoreUnavailable, match=r"lacks \d+ steps"):
        m.verify(bare)


def test_statements_are_split_by_markers_alone() -> None:
    text = "-- words\n-- statement: a\nSELECT ';' -- statement: no\n-- statement: b\nSELECT 2;\n"
    assert [s.sql for s in m.parse(1, "x", text).statements] == ["SELECT ';' -- statement: no", "SELECT 2;"]
    with pytest.raises(m.MigrationRefused):
        m.parse(1, "x", "SELECT 1")


def test_migrations_are_numbered_and_can_be_run_again() -> None:
    for migration in m.migrations():
        assert len({statement.name for statement in migration.statements}) == len(migration.statements)
        for statement in migration.statements:
            assert "IF NOT EXISTS" in statement.sql or "MODIFY" in statement.sql, statement.name


def test_retention_follows_the_configuration(bare: Client) -> None:
    m.migrate(bare, Config())
    longer = Config(retention=RetentionConfig(events_days=500, evidence_days=3000))
    assert m.migrate(bare, longer) == 0
    ttl = {name: sql for name, sql in objects(bare) if "toIntervalDay" in sql}
    assert set(ttl) == set(TARGETS)
    for name, sql in ttl.items():
        days = 500 if name in ("events", "resolutions") else 3000
        assert f"toIntervalDay({days})" in sql, name
        assert sql.count("toIntervalDay") == 1
    unchanged = objects(bare)
    m.migrate(bare, longer)
    assert objects(bare) == unchanged


def test_every_dimension_is_a_column_of_events(bare: Client) -> None:
    """Fails when a dimension is added without a migration that gives it its column."""
    m.migrate(bare, Config())
    rows = bare.query(
        "SELECT name, default_kind AS kind, default_expression AS e FROM system.columns"
        " WHERE database = {db:String} AND table = 'events'",
        {"db": bare.database},
    )
    columns = {row["name"]: row for row in rows}
    missing = set(DIMENSIONS) - set(columns)
    assert not missing, f"write a migration that adds {sorted(missing)} to events"
    for name in DIMENSIONS:
        if name != "tenant_id":  # the sort key's first column: sent, not computed
            assert columns[name]["kind"] in ("MATERIALIZED", "ALIAS")
            assert columns[name]["e"] == f"identity['{name}']"


def test_the_landing_table_takes_what_rows_send(bare: Client) -> None:
    m.migrate(bare, Config())
    rows = bare.query(
        "SELECT name FROM system.columns WHERE database = {db:String} AND table = 'events_in'", {"db": bare.database}
    )
    assert {row["name"] for row in rows} == set(LANDING_COLUMNS) | {"inserted_at"}


def test_every_target_deduplicates(bare: Client) -> None:
    m.migrate(bare, Config())
    for name, sql in objects(bare):
        if "MergeTree" in sql and name != "schema_migrations":
            assert "non_replicated_deduplication_window = 10000" in sql, name
        assert "toDate(event_time)" not in sql
