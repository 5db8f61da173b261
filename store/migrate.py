"""Numbered, forward-only migrations: the schema in `migrations/NNNN_*.sql`, its progress in `schema_migrations`.

ClickHouse's DDL has no transactions, so progress is recorded statement by statement, and every statement can be
run again: an interruption anywhere resumes where it stopped.
"""

import contextlib
import hashlib
import importlib.resources
import logging
import re
from collections.abc import Iterator
from string import Template

from msgspec import Struct

from ..schemas.config import Config
from ..schemas.errors import StoreRejected, StoreUnavailable
from .client import Client, NoSuchDatabase

log = logging.getLogger("kvtrail.store")

_MARKER = re.compile(r"^-- statement: (\w+)[ \t]*$", re.MULTILINE)
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")

_PROGRESS = """CREATE TABLE IF NOT EXISTS {database}.schema_migrations (
  version UInt32, step UInt32, name String, checksum String, status LowCardinality(String), at DateTime64(6, 'UTC')
) ENGINE = MergeTree ORDER BY (version, step, at)"""

_READ = """SELECT version, step, argMax(m.checksum, m.at) AS checksum, argMax(m.status, m.at) AS status
FROM schema_migrations AS m GROUP BY version, step ORDER BY version, step"""

_PRESENT = """SELECT count() AS n FROM system.tables
WHERE database = {database:String} AND name = 'schema_migrations'"""

_RECORD = """INSERT INTO schema_migrations (version, step, name, checksum, status, at)
SELECT {version:UInt32}, {step:UInt32}, {name:String}, {checksum:String}, {status:String}, now64(6, 'UTC')"""


class Statement(Struct, frozen=True):
    """One statement of a migration; `sql` still holds its template variables."""

    name: str
    sql: str


class Migration(Struct, frozen=True):
    """One migration file. `checksum` is over its text as written, before variables: retention may change, it not."""

    version: int
    name: str
    checksum: str
    statements: tuple[Statement, ...]


class MigrationRefused(StoreRejected):
    """The database was made by other migrations than this build has."""

    code = "migration_refused"


def parse(version: int, name: str, text: str) -> Migration:
    """A migration from its file's text. Raises `MigrationRefused` for a file without statements."""
    parts = _MARKER.split(text)
    statements = tuple(
        Statement(title, body.strip()) for title, body in zip(parts[1::2], parts[2::2], strict=True) if body.strip()
    )
    if not statements:
        raise MigrationRefused("holds no statement.", field=name, remedy="Start each with '-- statement: NAME'.")
    return Migration(version, name, hashlib.sha256(text.encode()).hexdigest(), statements)


def migrations() -> tuple[Migration, ...]:
    """This build's migrations, in order. Raises `MigrationRefused` where their numbers have a hole."""
    found: list[Migration] = []
    for entry in importlib.resources.files(f"{__package__}.migrations").iterdir():
        match = _FILE.match(entry.name)
        if match:
            found.append(parse(int(match[1]), entry.name, entry.read_text()))
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationRefused("are not numbered 0001, 0002, ...", field="migrations", remedy="Renumber the newest.")
    return tuple(found)


def migrate(client: Client, config: Config, *, only: tuple[Migration, ...] | None = None) -> int:
    """Bring the client's database to this build's schema; how many statements ran.

    Nothing runs twice that was recorded as done. Raises `MigrationRefused` for a migration that changed after it
    was applied, or a database newer than this build.
    """
    wanted = migrations() if only is None else only
    client.command(f"CREATE DATABASE IF NOT EXISTS {client.database}", in_database=False)
    client.command(_PROGRESS.replace("{database}", client.database), in_database=False)
    done = _done(client, wanted)
    variables = _variables(client, config)
    ran = 0
    for migration in wanted:
        for step, statement in enumerate(migration.statements, 1):
            if (migration.version, step) in done:
                continue
            client.command(Template(statement.sql).substitute(variables))
            client.command(
                _RECORD,
                {"version": migration.version, "step": step, "name": statement.name, "checksum": migration.checksum,
                 "status": "done"},
            )  # fmt: skip
            ran += 1
    _retain(client, config)
    if ran:
        log.info("schema of %s brought to version %d (%d statements)", client.database, wanted[-1].version, ran)
    return ran


def verify(client: Client) -> None:
    """Check that the database has this build's schema, without changing it.

    Raises `StoreUnavailable` where migrations are missing (whoever migrates may be at it), `MigrationRefused` where
    the database is another build's.
    """
    wanted = migrations()
    missing = {(m.version, step) for m in wanted for step in range(1, len(m.statements) + 1)}
    with contextlib.suppress(NoSuchDatabase):
        if client.query(_PRESENT, {"database": client.database})[0]["n"]:
            missing -= _done(client, wanted)
    if missing:
        raise StoreUnavailable(
            f"lacks {len(missing)} steps of this build's schema.",
            field="clickhouse.database",
            remedy="`kvtrail up` and `kvtrail init` bring it up to date.",
        )


def _done(client: Client, wanted: tuple[Migration, ...]) -> set[tuple[int, int]]:
    known = {migration.version: migration for migration in wanted}
    done: set[tuple[int, int]] = set()
    for row in client.query(_READ):
        migration = known.get(row["version"])
        if migration is None:
            raise MigrationRefused(
                f"has version {row['version']}, which this build does not know.",
                field="clickhouse.database",
                remedy="Upgrade kvtrail, or name another database.",
            )
        if row["checksum"] != migration.checksum:
            raise MigrationRefused(
                "changed after it was applied.",
                field=migration.name,
                remedy="Restore the file and put the change into a new migration.",
            )
        if row["status"] == "done":
            done.add((row["version"], row["step"]))
    return done


def _variables(client: Client, config: Config) -> dict[str, str]:
    return {
        "database": client.database,
        "events_days": str(config.retention.events_days),
        "evidence_days": str(config.retention.evidence_days),
    }


def _retain(client: Client, config: Config) -> None:
    """Apply a changed retention to tables that exist: their TTL is the only part of the schema that may vary."""
    for table, wanted, ttl in _retained(client, config):
        log.info("retention of %s changes to %d days", table, wanted)
        client.command(f"ALTER TABLE {client.database}.{table} MODIFY TTL {ttl}")


def _retained(client: Client, config: Config) -> Iterator[tuple[str, int, str]]:
    days = {"events": config.retention.events_days, "resolutions": config.retention.events_days}
    for row in client.query(
        "SELECT name, extract(engine_full, 'TTL (.+?) \\\\+ toIntervalDay') AS base,"
        " toUInt32OrZero(extract(engine_full, 'toIntervalDay\\\\((\\\\d+)\\\\)')) AS days"
        " FROM system.tables WHERE database = {db:String} AND engine_full LIKE '%toIntervalDay%' ORDER BY name",
        {"db": client.database},
    ):
        wanted = days.get(row["name"], config.retention.evidence_days)
        if row["days"] != wanted:
            yield row["name"], wanted, f"{row['base']} + INTERVAL {wanted} DAY DELETE"
