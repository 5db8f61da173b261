"""The one way to ClickHouse: a typed wrapper over clickhouse-connect's HTTP client.

A ClickHouse server and the embedded engine behind its facade are spoken to alike; nothing here knows which it is.
"""

import ipaddress
import logging
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import clickhouse_connect
import urllib3.exceptions
from clickhouse_connect.driver import options
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError, OperationalError
from clickhouse_connect.driver.httpclient import HttpClient
from clickhouse_connect.driver.httputil import all_managers, get_pool_manager

from ..schemas.config import ClickHouseConfig
from ..schemas.errors import ConfigError, StoreError, StoreRefused, StoreRejected, StoreUnavailable

log = logging.getLogger("kvtrail.store")
# It logs the value that does not fit a column, with a traceback.
logging.getLogger("clickhouse_connect.driver.transform").setLevel(logging.CRITICAL)
# It warns of each failed request, without saying which; the errors raised here do.
logging.getLogger("clickhouse_connect.driver._backend.http_sync").setLevel(logging.ERROR)

REFUSED_CODES = frozenset({164, 192, 193, 194, 291, 492, 497, 516})
"""READONLY, unknown user, wrong or missing password, no access, authentication failed: a person has to act."""

TRANSIENT_CODES = frozenset(
    {3, 159, 160, 198, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 279, 319, 373, 394, 425, 439, 473}
    | {499, 519, 585, 700, 735, 745, 999, 1000, 1001, 1002}
)
"""Timeouts, limits, memory, disk, keeper, overload: the same request may succeed later."""

_UNKNOWN_DATABASE = 81
_NO_SUCH_SCHEMA = frozenset({16, 60})
"""No such column in the table, unknown table."""
_NOT_ENOUGH_SPACE = 243

INSERT_SETTINGS: Mapping[str, str] = {
    # Said on every insert, so that servers with other defaults behave alike.
    "async_insert": "0",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
}
_EMPTY: Mapping[str, Any] = {}


class NoSuchDatabase(StoreRejected):
    """The configured database was never made."""

    code = "no_such_database"


class SchemaMissing(StoreRejected):
    """A table or column that this build writes to is not there: no row is at fault, a migration was not run."""

    code = "schema_missing"


class Client:
    """A connection to one database. Threads may share it.

    Every method raises `StoreUnavailable` (try again), `StoreRejected` (never will) or `StoreRefused` (a person has
    to act). Messages carry ClickHouse's error name and number, never its text: that may quote data.
    """

    def __init__(self, config: ClickHouseConfig, *, database: str | None = None, timeout_s: float = 60.0) -> None:
        self.database = config.database if database is None else database
        url = urlsplit(config.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError("is no http or https address.", field="clickhouse.url", remedy="Write http://host:8123.")
        try:
            port = url.port or (8443 if url.scheme == "https" else 8123)
        except ValueError:
            raise ConfigError("has no usable port.", field="clickhouse.url", remedy="Write http://host:8123.") from None
        # clickhouse-connect takes http_proxy for this machine too, and knows neither its names nor its networks.
        self._direct = get_pool_manager() if url.scheme == "http" and _is_here(url.hostname) else None
        try:
            client = clickhouse_connect.get_client(
                interface=url.scheme,
                host=url.hostname,
                port=port,
                username=config.user,
                password=config.password.get_secret_value(),
                database="default",
                connect_timeout=5,
                send_receive_timeout=int(timeout_s),
                query_retries=0,
                autogenerate_session_id=False,
                client_name="kvtrail",
                proxy_path=url.path.strip("/"),
                pool_mgr=self._direct,
                dedicated_pool=self._direct is None,
                # Over loopback, compressing costs both sides more than the bytes do (docs/decisions/0120).
                compress="zstd" if self._direct is None else False,
            )
        except (ClickHouseError, urllib3.exceptions.HTTPError) as error:
            self._let_go()
            raise mapped(error, "connect") from error
        assert isinstance(client, HttpClient)
        # urllib3 would retry by itself and log the address it retries, parameters included.
        client.http_retries = 0
        self._client = client
        # Set afterwards: the handshake must work before the first migration has made the database.
        self._client.database = self.database
        self._types: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    @property
    def server_version(self) -> str:
        """The engine's version, as it announced it."""
        return str(self._client.server_version)

    def query(
        self, sql: str, params: Mapping[str, Any] = _EMPTY, settings: Mapping[str, Any] = _EMPTY
    ) -> list[dict[str, Any]]:
        """The rows of a SELECT, each a mapping from column to value. `params` bind `{name:Type}` on the server."""
        try:
            result = self._client.query(sql, parameters=dict(params), settings=dict(settings))
        except (ClickHouseError, urllib3.exceptions.HTTPError) as error:
            raise mapped(error, "query") from error
        names = result.column_names
        return [dict(zip(names, row, strict=True)) for row in result.result_rows]

    def command(
        self,
        sql: str,
        params: Mapping[str, Any] = _EMPTY,
        settings: Mapping[str, Any] = _EMPTY,
        *,
        in_database: bool = True,
    ) -> None:
        """Run a statement whose result does not matter."""
        try:
            self._client.command(
                sql, parameters=dict(params) or None, settings=dict(settings), use_database=in_database
            )
        except (ClickHouseError, urllib3.exceptions.HTTPError) as error:
            raise mapped(error, "command") from error

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str) -> None:
        """One atomic block of equally long columns. The same `token` again changes nothing, in any dependent table.

        The token names the *content* (topic, partition and offset range): other rows under a token already used
        are dropped by ClickHouse without a word.
        """
        if not token:
            raise StoreRejected("an insert without a token could be applied twice.", field="token")
        names = list(columns)
        if not names or not len(columns[names[0]]):
            return
        types = self._column_types(table)
        unknown = [name for name in names if name not in types]
        if unknown:
            raise SchemaMissing(
                f"has no column {', '.join(unknown)}.", field=table, remedy="Run this build's migrations first."
            )
        try:
            context = self._client.create_insert_context(
                table,
                names,
                column_types=[types[name] for name in names],
                column_oriented=True,
                settings={**INSERT_SETTINGS, "insert_deduplication_token": token},
            )
            # One block, whatever its size: atomic in each target, and no question of how an engine behind a Null
            # table deduplicates the second block under the same token.
            context.req_block_size = len(columns[names[0]])
            context.data = [columns[name] for name in names]
            self._client.insert(context=context)
        except (ClickHouseError, urllib3.exceptions.HTTPError) as error:
            # The chain is cut: clickhouse-connect and the engine quote the offending value.
            raise mapped(error, f"insert into {table}") from None
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error):
            raise StoreRejected(
                "a value does not fit its column.", field=table, remedy="Send what kvtrail.store.rows makes."
            ) from None

    def _column_types(self, table: str) -> dict[str, Any]:
        with self._lock:
            known = self._types.get(table)
        if known is None:
            try:
                context = self._client.create_insert_context(table, "*")
            except (ClickHouseError, urllib3.exceptions.HTTPError) as error:
                raise mapped(error, f"insert into {table}") from error
            known = dict(zip(context.column_names, context.column_types, strict=True))
            with self._lock:
                self._types[table] = known
        return known

    def close(self) -> None:
        """Close the connections of this client."""
        self._client.close()
        self._let_go()

    def _let_go(self) -> None:
        # clickhouse-connect closes only pools that it made, and keeps a list of all.
        if self._direct is not None:
            all_managers.pop(self._direct, None)
            self._direct.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def only_lists() -> None:
    """This process inserts nothing but lists, so pandas is not looked for. Where it is installed (chDB wants it),
    clickhouse-connect's first insert would import it: most of a second of processor time, and its memory for good."""
    options.pd = options.np = None


def connect(config: ClickHouseConfig, *, database: str | None = None, timeout_s: float = 60.0) -> Client:
    """A client of the store; `timeout_s` bounds each request. The database need not exist yet."""
    return Client(config, database=database, timeout_s=timeout_s)


def connect_wait(config: ClickHouseConfig, deadline_s: float, *, database: str | None = None) -> Client:
    """A client, as soon as the store answers. Raises the last `StoreUnavailable` after `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    pause = 0.05
    while True:
        try:
            return connect(config, database=database)
        except StoreUnavailable:
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
            pause = min(pause * 1.6, 1.0)


def mapped(error: Exception, doing: str) -> StoreError:
    """What clickhouse-connect raised, as one of the three errors of ours."""
    code: int | None = getattr(error, "code", None)
    name: str = getattr(error, "name", None) or type(error).__name__
    what = f"{doing} failed: {name}" + ("" if code is None else f" (ClickHouse error {code})") + "."
    if code in REFUSED_CODES:
        return StoreRefused(what, field="clickhouse", remedy="Check clickhouse.user, its password and its grants.")
    if code == _NOT_ENOUGH_SPACE:
        return StoreUnavailable(what, field="clickhouse", remedy="Free disk space where the store keeps its data.")
    if code in TRANSIENT_CODES or (code is None and not isinstance(error, DataError) and _is_transport(error)):
        return StoreUnavailable(
            what,
            field="clickhouse",
            remedy="Is the store running and reachable at clickhouse.url? `kvtrail up` runs one on this machine.",
        )
    if code == _UNKNOWN_DATABASE:
        return NoSuchDatabase(what, field="clickhouse.database", remedy="`kvtrail up` and `kvtrail init` make it.")
    if code in _NO_SUCH_SCHEMA:
        return SchemaMissing(what, field="clickhouse.database", remedy="Run this build's migrations: `kvtrail init`.")
    return StoreRejected(what, field="clickhouse", remedy="ClickHouse's own log has the details.")


def _is_transport(error: Exception) -> bool:
    return isinstance(error, OperationalError | urllib3.exceptions.HTTPError)
