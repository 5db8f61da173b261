"""ClickHouse's HTTP protocol over the embedded engine, on loopback: reads and writes, for any ClickHouse client.

What is there: `/ping`, `query` in URL, body or form, `param_*`, `database`, `default_format`, settings, every format of
the engine, chunked and compressed request bodies, ClickHouse's error codes. What is not: sessions, progress headers,
compressed answers, external tables.
"""

import base64
import contextlib
import hmac
import json
import logging
import threading
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import SecretStr

from .embedded import Answer, Engine, EngineError
from .http_body import MAX_REFUSED_BYTES, BrokenRequest, decoded, form_fields, read_body
from .native import with_revision

log = logging.getLogger("kvtrail.store")

_NOT_SETTINGS = frozenset(
    {"query", "database", "default_format", "user", "password", "quota_key", "session_id", "session_timeout"}
    | {
        "session_check",
        "close_session",
        "compress",
        "decompress",
        "query_id",
        "wait_end_of_query",
        "buffer_size",
        "role",
    }
    | {"client_protocol_version", "stacktrace", "enable_http_compression", "send_progress_in_http_headers"}
    | {"http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close", "output_format"}
)
_CONTENT_TYPES = {
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TabSeparatedWithNames": "text/tab-separated-values; charset=UTF-8",
    "TabSeparatedWithNamesAndTypes": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "Native": "application/octet-stream",
    "RowBinary": "application/octet-stream",
}
_STATUS: Mapping[int, HTTPStatus] = {
    **dict.fromkeys((46, 47, 60, 81), HTTPStatus.NOT_FOUND),
    **dict.fromkeys((27, 36, 43, 53, 62, 69, 70, 115, 456, 457), HTTPStatus.BAD_REQUEST),
    **dict.fromkeys((192, 193, 194, 497, 516), HTTPStatus.FORBIDDEN),
    236: HTTPStatus.SERVICE_UNAVAILABLE,
    202: HTTPStatus.SERVICE_UNAVAILABLE,
}


class Facade:
    """The HTTP server over `engine`; `port` 0 takes a free one.

    With a `password`, every request but `/ping` must carry it. Requests that a browser sent from another site (an
    Origin header, or a Host that is no loopback name) are refused: loopback alone does not stop those.
    """

    def __init__(self, engine: Engine, port: int, *, password: SecretStr | None = None) -> None:
        self.engine = engine
        self.password = password
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.facade = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="facade", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer requests, from threads of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections. Requests already inside go on; `Engine.close` waits for them."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    facade: Facade

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "kvtrail-store"
    sys_version = ""
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("http " + format, *args)

    def do_GET(self) -> None:
        self._answer(read_only=True)

    def do_POST(self) -> None:
        self._answer(read_only=False)

    def do_PUT(self) -> None:
        self._answer(read_only=False)

    def do_HEAD(self) -> None:
        self._send(HTTPStatus.OK, b"", {})

    def _answer(self, *, read_only: bool) -> None:
        try:
            path, params, body = self._request()
            if path in ("/ping", "/replicas_status") or (path == "/" and not params and not body):
                self._send(HTTPStatus.OK, b"Ok.\n", {"Content-Type": "text/html; charset=UTF-8"})
            elif path not in ("/", "/query"):
                self._send(HTTPStatus.NOT_FOUND, b"There is no handler for this path.\n", {})
            else:
                self._run(params, body, read_only)
        except EngineError as error:
            log.debug("statement refused with code %d", error.code)
            self.close_connection |= isinstance(error, BrokenRequest)
            status = _STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
            version = f" (version {self.server.facade.engine.version})" if "(version " not in error.text else ""
            self._send(status, f"{error.text}{version}\n".encode(), {"X-ClickHouse-Exception-Code": str(error.code)})

    def _request(self) -> tuple[str, dict[str, str], bytes]:
        try:
            url = urlsplit(self.path)
            params = dict(parse_qsl(url.query, keep_blank_values=True))
            self._admit(url.path, params)
        except ValueError:
            read_body(self.headers, self.rfile, MAX_REFUSED_BYTES)
            raise EngineError(36, "Code: 36. DB::Exception: The address does not parse. (BAD_ARGUMENTS)") from None
        except EngineError:
            # Read what was sent: closing over unread bytes would reset the connection before the answer is read.
            read_body(self.headers, self.rfile, MAX_REFUSED_BYTES)
            raise
        body = read_body(self.headers, self.rfile)
        return url.path, params, decoded(body, self.headers.get("Content-Encoding", ""))

    def _run(self, params: dict[str, str], body: bytes, read_only: bool) -> None:
        if self.headers.get_content_type() == "multipart/form-data":
            params |= form_fields(self.headers["Content-Type"], body)
            body = b""
        if "1" in (params.get("compress"), params.get("decompress")):
            raise EngineError(
                48, "Code: 48. DB::Exception: Use HTTP compression (gzip) or none, not compress=1. (NOT_IMPLEMENTED)"
            )
        query = params.get("query", "").encode()
        text = query + b"\n" + body if query and body else query or body
        if not text.strip():
            raise EngineError(62, "Code: 62. DB::Exception: Empty query. (SYNTAX_ERROR)")
        answer = self.server.facade.engine.run(
            text,
            database=params.get("database") or self.headers.get("X-ClickHouse-Database") or "",
            settings={k: v for k, v in params.items() if k not in _NOT_SETTINGS and not k.startswith("param_")},
            params={k.removeprefix("param_"): v for k, v in params.items() if k.startswith("param_")},
            default_format=params.get("default_format") or self.headers.get("X-ClickHouse-Format") or "TabSeparated",
            read_only=read_only,
        )
        data = answer.data
        if answer.format == "Native" and params.get("client_protocol_version", "").isdecimal():
            data = with_revision(data, int(params["client_protocol_version"]))
        self._send(HTTPStatus.OK, data, self._headers(answer, params))

    def _headers(self, answer: Answer, params: Mapping[str, str]) -> dict[str, str]:
        engine = self.server.facade.engine
        summary = {
            "read_rows": answer.rows_read, "read_bytes": answer.bytes_read, "written_rows": answer.rows_written,
            "written_bytes": answer.bytes_written, "total_rows_to_read": "0", "result_rows": "0",
            "result_bytes": len(answer.data), "elapsed_ns": int(answer.elapsed_s * 1e9),
        }  # fmt: skip
        headers = {
            "X-ClickHouse-Summary": json.dumps({name: str(value) for name, value in summary.items()}),
            "X-ClickHouse-Server-Display-Name": "kvtrail-store",
            "X-ClickHouse-Query-Id": params.get("query_id") or str(uuid.uuid4()),
            "X-ClickHouse-Timezone": engine.timezone,
            "Content-Type": "text/plain; charset=UTF-8",
        }
        if answer.format is not None:
            headers["X-ClickHouse-Format"] = answer.format
            headers["Content-Type"] = _CONTENT_TYPES.get(answer.format, "text/plain; charset=UTF-8")
        return headers

    def _send(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _admit(self, path: str, params: Mapping[str, str]) -> None:
        host = urlsplit(f"//{self.headers.get('Host', 'localhost')}").hostname or ""
        if "Origin" in self.headers or host not in ("127.0.0.1", "localhost", "::1"):
            raise EngineError(497, "Code: 497. DB::Exception: Only programs on this machine may ask. (ACCESS_DENIED)")
        password = self.server.facade.password
        if password is None or not password.get_secret_value() or path == "/ping":
            return
        given = (
            params.get("password") or self.headers.get("X-ClickHouse-Key") or _basic(self.headers.get("Authorization"))
        )
        if not hmac.compare_digest(given.encode(), password.get_secret_value().encode()):
            raise EngineError(516, "Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)")


def _basic(header: str | None) -> str:
    if header and header.startswith("Basic "):
        with contextlib.suppress(ValueError):
            return base64.b64decode(header[6:]).decode(errors="replace").partition(":")[2]
    return ""
