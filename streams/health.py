"""Where a worker says how it is: `/metrics`, `/livez` and `/readyz` on a port of its own, off by default.

Alive means that a restart would not help; ready means that it does its work now. Both say why not, as JSON.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..schemas.errors import ConfigError
from .metrics import Registry

_REQUEST_S = 5.0
_ANSWER_S = 10.0
_COLLECT_S = 8.0
_LARGEST_REQUEST = 16 * 1024

_log = logging.getLogger("kvtrail.streams.health")

Reasons = Callable[[], Awaitable[list[str]]]
"""Why the worker is not alive, or not ready; nothing where it is."""


class HealthServer:
    """Answers while it is started. `collect` brings the registry up to date before each scrape."""

    def __init__(
        self, registry: Registry, *, collect: Callable[[], Awaitable[None]], alive: Reasons, ready: Reasons
    ) -> None:
        self.port = 0
        self._registry = registry
        self._collect = collect
        self._reasons = {"/livez": alive, "/readyz": ready}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int | None) -> None:
        """Listen; does nothing without a port. Raises `ConfigError` where the port cannot be had."""
        if port is None:
            return
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_LARGEST_REQUEST)
        except OSError as error:
            raise ConfigError(
                f"cannot be listened on ({error.strerror}).",
                field="metrics_port",
                remedy="Choose a free port, or 0 for any.",
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        _log.info("metrics: listening", extra={"host": host, "port": self.port})

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A peer that sends nothing, too much, or goes away costs only its own connection.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                async with asyncio.timeout(_REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(_ANSWER_S):
                    writer.write(await self._answer(head))
                    await writer.drain()
            finally:
                writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(405, "text/plain", b"only GET\n")
        if path == "/metrics":
            try:
                async with asyncio.timeout(_COLLECT_S):
                    await self._collect()
            except Exception as error:
                # What is known is told: a page that is missing says less than one that is not up to date.
                _log.warning("metrics are not up to date: %r", error)
            body = self._registry.render().encode()
            return _response(200, "text/plain; version=0.0.4; charset=utf-8", body, method)
        if path in self._reasons:
            try:
                async with asyncio.timeout(_COLLECT_S):
                    reasons = await self._reasons[path]()
            except Exception as error:
                _log.warning("%s cannot be told: %r", path, error)
                reasons = [f"it cannot be told ({type(error).__name__})"]
            body = json.dumps({"ok": not reasons, "reasons": reasons}).encode() + b"\n"
            return _response(503 if reasons else 200, "application/json", body, method)
        return _response(404, "text/plain", b"/metrics, /livez, /readyz\n", method)


_PHRASES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def _response(status: int, kind: str, body: bytes, method: str = "GET") -> bytes:
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
