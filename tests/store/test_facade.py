"""The facade speaks ClickHouse's HTTP protocol: to plain HTTP, to clickhouse-connect as it comes, to Go's client."""

import gzip
import http.client
import json
import uuid
import zlib
from collections.abc import Iterator
from urllib.parse import urlencode, urlsplit

import clickhouse_connect
import pytest
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.client import Client as ConnectClient
from clickhouse_connect.driver.ctypes import RespBuffCls
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.query import QueryContext
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.store.client import connect
from kvtrail.store.embedded import EngineError
from kvtrail.store.native import LEAST_REVISION, with_revision

pytestmark = pytest.mark.engine


class Http:
    """One keep-alive connection, and what came back."""

    def __init__(self, config: ClickHouseConfig) -> None:
        url = urlsplit(config.url)
        assert url.hostname
        self.connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
        self.status = 0
        self.headers: dict[str, str] = {}

    def __call__(
        self,
        body: bytes | Iterator[bytes] = b"",
        method: str = "POST",
        path: str = "/",
        headers: dict[str, str] | None = None,
        **params: object,
    ) -> bytes:
        target = f"{path}?{urlencode(params)}" if params else path
        self.connection.request(method, target, body or None, headers or {}, encode_chunked=not isinstance(body, bytes))
        response = self.connection.getresponse()
        self.status, self.headers = response.status, dict(response.getheaders())
        return response.read()


@pytest.fixture
def database(engine: ClickHouseConfig) -> Iterator[ClickHouseConfig]:
    """An empty database: nothing here needs the schema."""
    config = engine.model_copy(update={"database": f"t_{uuid.uuid4().hex[:12]}"})
    with connect(config) as client:
        client.command(f"CREATE DATABASE {config.database}", in_database=False)
        yield config
        client.command(f"DROP DATABASE {config.database} SYNC", in_database=False)


@pytest.fixture
def ask(database: ClickHouseConfig) -> Iterator[Http]:
    http = Http(database)
    http(b"CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a", database=database.database)
    assert http.status == 200
    yield http
    http.connection.close()


def test_ping_and_queries_in_url_and_body(ask: Http) -> None:
    assert ask(method="GET", path="/ping") == b"Ok.\n"
    assert ask(method="GET", path="/") == b"Ok.\n"
    assert ask(method="GET", query="SELECT 1") == b"1\n"
    assert ask(b"SELECT 2") == b"2\n"
    # ClickHouse joins both: the URL's text first.
    assert ask(b"+ 2", query="SELECT 1") == b"3\n"
    assert ask(method="GET", path="/nowhere", query="SELECT 1").startswith(b"There is no handler")
    assert ask.status == 404


def test_formats_and_their_headers(ask: Http) -> None:
    assert ask(b"SELECT 1 AS x", default_format="JSONEachRow") == b'{"x":1}\n'
    assert ask.headers["X-ClickHouse-Format"] == "JSONEachRow"
    assert json.loads(ask(b"SELECT 'ab' AS x FORMAT JSON"))["data"] == [{"x": "ab"}]
    assert ask.headers["Content-Type"].startswith("application/json")
    assert ask(b"SELECT 1 AS x FORMAT TabSeparatedWithNames;", default_format="Native") == b"x\n1\n"
    assert ask(b"SELECT 'x FORMAT JSON'") == b"x FORMAT JSON\n"
    assert ask(b"SELECT 7 AS n FORMAT Native") == b"\x01\x01\x01n\x05UInt8\x07"
    assert "X-ClickHouse-Summary" in ask.headers
    assert ask.headers["X-ClickHouse-Timezone"]
    assert ask(b"SELECT 1", query_id="mine")
    assert ask.headers["X-ClickHouse-Query-Id"] == "mine"


def test_parameters_settings_and_database(ask: Http, database: ClickHouseConfig) -> None:
    assert ask(b"SELECT {x:String}", param_x="it's\\ta \\\\ tab") == b"it\\'s\\ta \\\\ tab\n"
    assert ask(b"SELECT {x:Array(String)}[2]", param_x="['a','b']") == b"b\n"
    assert ask(b"SELECT currentDatabase()", database=database.database).decode().strip() == database.database
    assert ask(b"SELECT getSetting('max_threads')", max_threads="3") == b"3\n"
    # One request's settings and database are not another's.
    assert ask(b"SELECT currentDatabase(), getSetting('max_block_size')", max_block_size=7).endswith(b"\t7\n")
    assert not ask(b"SELECT currentDatabase(), getSetting('max_block_size')").endswith(b"\t7\n")


@pytest.mark.parametrize(
    ("sql", "code", "status", "name"),
    [
        (b"SELEC 1", 62, 400, b"SYNTAX_ERROR"),
        (b"SELECT nope", 47, 404, b"UNKNOWN_IDENTIFIER"),
        (b"SELECT * FROM nope", 60, 404, b"UNKNOWN_TABLE"),
        (b"SELECT throwIf(1)", 395, 500, b"FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
        (b"INSERT INTO nope FORMAT TSV\n1", 60, 404, b"UNKNOWN_TABLE"),
        (b"", 62, 400, b"SYNTAX_ERROR"),
        (b"\xff\xfe", 62, 400, b"SYNTAX_ERROR"),
    ],
)
def test_errors_carry_the_code(ask: Http, sql: bytes, code: int, status: int, name: bytes) -> None:
    body = ask(sql, default_format="TSV")
    assert ask.headers["X-ClickHouse-Exception-Code"] == str(code)
    assert ask.status == status
    assert body.startswith(b"Code: %d. DB::Exception:" % code)
    assert name in body
    assert b"(version " in body
    assert ask(b"SELECT 1") == b"1\n", "the connection goes on"


def test_unknown_settings_and_databases_are_refused(ask: Http) -> None:
    ask(b"SELECT 1", no_such_setting="1")
    assert ask.headers["X-ClickHouse-Exception-Code"] == "115"
    hostile: dict[str, object] = {"x; DROP TABLE t": "1"}
    ask(b"SELECT 1", "POST", "/", None, **hostile)
    assert ask.headers["X-ClickHouse-Exception-Code"] == "115"
    ask(b"SELECT 1", database="no`such")
    assert ask.headers["X-ClickHouse-Exception-Code"] == "81"
    assert ask(b"SELECT getSetting('log_comment')", log_comment="a'b\\") == b"a\\'b\\\\\n"


def test_inserts_in_every_shape(ask: Http, database: ClickHouseConfig) -> None:
    db = database.database

    def rows() -> list[list[str]]:
        text = ask(b"SELECT a, b FROM t ORDER BY a", database=db).decode()
        ask(b"TRUNCATE TABLE t", database=db)
        return [line.split("\t") for line in text.splitlines()]

    two = [["1", "one"], ["2", "two"]]
    ask(b"INSERT INTO t VALUES (1, 'one'), (2, 'two')", database=db)
    assert rows() == two
    ask(b"INSERT INTO t FORMAT TabSeparated\n1\tone\n2\ttwo\n", database=db)
    assert ask.headers["X-ClickHouse-Summary"].find('"written_rows": "2"') > 0
    assert rows() == two
    ask(b"1\tone\n2\ttwo\n", query="INSERT INTO t (a, b) FORMAT TSV", database=db)
    assert rows() == two
    ask(b'{"a":1,"b":"one"}\n{"a":2,"b":"two"}', query="INSERT INTO t FORMAT JSONEachRow", database=db)
    assert rows() == two
    ask(iter([b"INSERT INTO t FORM", b"AT TSV\n1\tone\n", b"", b"2\ttwo\n"]), database=db)
    assert rows() == two
    ask(b"INSERT INTO t SELECT number + 1, ['one', 'two'][number + 1] FROM numbers(2)", database=db)
    assert rows() == two
    # Data that looks like SQL, and a table that is called like a keyword.
    ask(b"/* c */ insert into t -- FORMAT JSON\n (b, a) format TSV \nFORMAT X\t1\n", database=db)
    assert rows() == [["1", "FORMAT X"]]
    ask(b"", query="INSERT INTO t FORMAT TSV", database=db)
    assert rows() == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "lz4", "zstd"])
def test_compressed_bodies(ask: Http, database: ClickHouseConfig, encoding: str) -> None:
    import lz4.frame  # type: ignore[import-untyped]  # ships no types
    from clickhouse_connect.driver.compression import _zstd_compress

    plain = b"INSERT INTO t FORMAT TSV\n1\tone\n"
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "lz4": lz4.frame.compress, "zstd": _zstd_compress}
    packed = pack[encoding](plain)
    ask(packed, headers={"Content-Encoding": encoding}, database=database.database)
    assert ask(b"SELECT count() FROM t", database=database.database) == b"1\n"
    ask(b"not " + packed, headers={"Content-Encoding": encoding})
    assert ask.headers["X-ClickHouse-Exception-Code"] == "354"
    ask(packed, headers={"Content-Encoding": "snappy"})
    assert ask.headers["X-ClickHouse-Exception-Code"] == "48"


def test_a_row_that_does_not_parse_leaves_nothing(ask: Http, database: ClickHouseConfig) -> None:
    ask(b"INSERT INTO t FORMAT TSV\n1\tone\nx\ttwo\n", database=database.database)
    assert ask.status == 400
    assert ask(b"SELECT count() FROM t", database=database.database) == b"0\n"


def test_what_becomes_of_the_rows_is_what_is_answered(ask: Http, database: ClickHouseConfig) -> None:
    """chDB's streaming inserter reports success here: a failed view, a constraint, a full disk."""
    db = database.database
    for sql in (
        b"CREATE TABLE landing (a UInt64, b String) ENGINE = Null",
        b"CREATE MATERIALIZED VIEW v TO t AS SELECT a, b FROM landing WHERE NOT throwIf(a = 7)",
        b"CREATE TABLE held (a UInt64, CONSTRAINT small CHECK a < 5) ENGINE = MergeTree ORDER BY a",
        b"CREATE TABLE full (a UInt64) ENGINE = MergeTree ORDER BY a"
        b" SETTINGS min_free_disk_bytes_to_perform_insert = 1000000000000000000",
    ):
        ask(sql, database=db)
        assert ask.status == 200
    for target, code in ((b"landing (a)", "395"), (b"held", "469"), (b"full", "243")):
        ask(b"INSERT INTO " + target + b" FORMAT TSV\n7\n", database=db)
        assert ask.headers.get("X-ClickHouse-Exception-Code") == code, target
    assert ask(b"SELECT count() FROM t", database=db) == b"0\n"


def test_every_byte_of_the_data_arrives(ask: Http, database: ClickHouseConfig) -> None:
    """Blank lines, semicolons and NULs are data; several blocks under one token are one insert."""
    db = database.database
    ask(b'INSERT INTO t FORMAT JSONEachRow\n{"a":1,"b":";"}\n\n;\n\n{"a":2}'.replace(b"\n\n;", b"\n"), database=db)
    assert ask(b"SELECT count() FROM t", database=db) == b"2\n"
    block = b"\x01\x02\x01a\x06UInt64" + (0x0A0A0A0A0A0A3B0A).to_bytes(8, "little") + bytes(8)
    ask(
        b"CREATE TABLE n (a UInt64) ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 9",
        database=db,
    )
    ask(b"CREATE TABLE n_in (a UInt64) ENGINE = Null", database=db)
    ask(b"CREATE MATERIALIZED VIEW n_mv TO n AS SELECT a FROM n_in", database=db)
    for _ in range(2):
        ask(block * 3, query="INSERT INTO n_in FORMAT Native", database=db, insert_deduplication_token="x")
        assert ask(b"SELECT count(), max(a) = 0x0A0A0A0A0A0A3B0A FROM n", database=db) == b"6\t1\n"
    # A block cut short is refused whole.
    ask(block * 3 + block[:-1], query="INSERT INTO n_in FORMAT Native", database=db)
    assert ask.headers["X-ClickHouse-Exception-Code"] == "33"
    assert ask(b"SELECT count() FROM n", database=db) == b"6\n"


def test_settings_in_the_statement(ask: Http, database: ClickHouseConfig) -> None:
    ask(
        b"INSERT INTO t (a, b) SETTINGS input_format_tsv_empty_as_default = 1 FORMAT TSV\n\tx\n",
        database=database.database,
    )
    assert ask.status == 200
    assert ask(b"SELECT a, b FROM t", database=database.database) == b"0\tx\n"


def test_forms(ask: Http) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="query"\r\n\r\nSELECT {a:String}\r\n'
        b'--x\r\nContent-Disposition: form-data; name="param_a"\r\n\r\n' + "zwölf".encode() + b"\r\n--x--\r\n"
    )
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    assert ask(body, headers=form).decode() == "zwölf\n"
    table = b'--x\r\nContent-Disposition: form-data; name="t"; filename="t"\r\n\r\n1\r\n--x--\r\n'
    ask(table, headers=form, query="SELECT 1")
    assert ask.headers["X-ClickHouse-Exception-Code"] == "48"


def test_get_only_reads(ask: Http, database: ClickHouseConfig) -> None:
    ask(method="GET", query="DROP TABLE t", database=database.database)
    assert ask.headers["X-ClickHouse-Exception-Code"] == "164"
    assert ask(b"SELECT count() FROM t", database=database.database) == b"0\n"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "evil.example:8123"}, {"Origin": "null"}],
)
def test_other_sites_in_a_browser_are_refused(ask: Http, database: ClickHouseConfig, headers: dict[str, str]) -> None:
    ask(b"DROP TABLE t", headers=headers, database=database.database)
    assert ask.status == 403
    assert ask.headers["X-ClickHouse-Exception-Code"] == "497"
    assert ask(b"SELECT count() FROM t", database=database.database) == b"0\n"


def test_broken_bodies(ask: Http) -> None:
    raw = ask.connection
    raw.connect()
    assert raw.sock is not None
    raw.sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert b"CANNOT_READ_ALL_DATA" in raw.sock.recv(4096)
    raw.close()
    raw.connect()
    assert raw.sock is not None
    raw.sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n")
    assert b"BAD_ARGUMENTS" in raw.sock.recv(4096)
    raw.close()
    assert ask(b"SELECT 1") == b"1\n"


@pytest.fixture
def connect_client(database: ClickHouseConfig) -> Iterator[ConnectClient]:
    """clickhouse-connect with nothing set: sessions, compression and protocol probing as it comes."""
    url = urlsplit(database.url)
    client = clickhouse_connect.get_client(host=url.hostname or "", port=url.port or 0, database=database.database)
    yield client
    client.close()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd", "gzip"])
def test_clickhouse_connect_as_it_comes(connect_client: ConnectClient, compression: str | None) -> None:
    client = connect_client
    client.command("CREATE TABLE w (a UInt64, b LowCardinality(String), c Map(String, Array(Int32))) ENGINE = Memory")
    data = [[n, str(n % 7), {"x": [n, -n]}] for n in range(70_000)]
    context = client.create_insert_context("w", "*", data=data)
    context.compression = compression if compression else False
    client.data_insert(context)
    result = client.query("SELECT * FROM w WHERE a >= {low:UInt64} ORDER BY a", parameters={"low": 69_000})
    assert [list(row) for row in result.result_rows] == data[69_000:]
    assert client.command("SELECT count() FROM w") == 70_000
    assert client.query_df("SELECT sum(a) AS s FROM w")["s"][0] == sum(range(70_000))
    assert client.ping()
    with pytest.raises(DatabaseError) as caught:
        client.query("SELECT * FROM nope")
    assert (caught.value.code, caught.value.name) == (60, "UNKNOWN_TABLE")


ZOO = """SELECT number AS n, toString(number) AS s, repeat('long', toUInt16(number % 90)) AS l,
  toFixedString('abc', 3) AS f,
  toNullable(if(number % 2 = 0, NULL, number)) AS nn, [number, number] AS arr, CAST([], 'Array(String)') AS none,
  map('k', [toLowCardinality('v')]) AS m,
  (1, 'two', toLowCardinality('three'))::Tuple(a UInt8, `b c` String, d LowCardinality(String)) AS t,
  toLowCardinality(toString(number % 300)) AS lc, CAST(toString(number % 3), 'LowCardinality(Nullable(String))') AS lcn,
  toDecimal64(1.5, 3) AS d64, toDecimal256(1.5, 3) AS d256, toUUID('00000000-0000-0000-0000-000000000001') AS u,
  now64(6, 'UTC') AS dt, toDate('2026-01-01') AS d, toIPv6('::1') AS ip,
  CAST('a', 'Enum8(\\'a\\' = 1, \\'b, (c\\' = 2)') AS e,
  INTERVAL 1 DAY AS i, true AS b, toFloat32(1) AS fl, [[[number]]] AS deep, [toLowCardinality('')] AS alc
FROM numbers(200000) SETTINGS max_block_size = 60000"""


class Source:
    """A byte source for clickhouse-connect's column readers: they walk types independently of ours."""

    last_message = None
    exception_tag = None

    def __init__(self, data: bytes) -> None:
        self.gen = iter([data])

    def close(self) -> None:
        """Nothing to close."""


def test_native_for_newer_protocols_reads_back(ask: Http) -> None:
    plain = ask(ZOO.encode(), default_format="Native")
    newer = ask(ZOO.encode(), default_format="Native", client_protocol_version=54485)
    assert len(newer) > len(plain)
    assert ask(ZOO.encode(), default_format="Native", client_protocol_version=LEAST_REVISION - 1)[:2] == plain[:2]
    source = RespBuffCls(Source(newer))  # type: ignore[no-untyped-call]  # untyped there
    context = QueryContext()
    rows, names = 0, []
    while True:
        try:
            header = source.read_bytes(8)
        except Exception:
            break
        assert bytes(header) == b"\x01\x00\x02\xff\xff\xff\xff\x00"
        columns, count = source.read_leb128(), source.read_leb128()
        rows += count
        for _ in range(columns):
            name, kind = source.read_leb128_str(), source.read_leb128_str()
            assert source.read_byte() == 0
            names.append(name)
            if count:
                values = get_from_name(kind).read_column(source, count, context)
                if name == "n":
                    assert list(values) == list(range(rows - count, rows))
    assert rows == 200_000
    assert names[:3] == ["n", "s", "l"]


def test_types_that_cannot_be_walked_say_so() -> None:
    column = b"\x01\x01" + b"\x01x" + b"\x07Dynamic" + b"\x00" * 30
    with pytest.raises(EngineError, match="Dynamic"):
        with_revision(column, 54485)
    assert with_revision(column, 0) == column
    assert with_revision(b"", 54485) == b""


def test_clickhouse_compression_is_refused_with_the_way_out(ask: Http) -> None:
    body = ask(b"SELECT 1", compress="1")
    assert ask.headers["X-ClickHouse-Exception-Code"] == "48"
    assert b"gzip" in body
