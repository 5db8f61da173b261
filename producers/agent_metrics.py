"""What the agent says of itself: Prometheus metrics and a health snapshot, over HTTP on an address of its own."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress

from .agent import Agent
from .spooled import SpooledTransport

_READ_S = 5.0


class AgentMetrics:
    """`GET /metrics` and `GET /health` for one agent."""

    def __init__(self, agent: Agent, line: SpooledTransport) -> None:
        self._agent = agent
        self._line = line
        self._since = time.monotonic()

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listen; `port` 0 takes a free one. Raises `OSError`."""
        return await asyncio.start_server(self._answer, host, port, limit=8192)

    def health(self) -> dict[str, object]:
        """Whether records reach the broker, and what waits. `status`: ok, degraded (they go to disk), losing (the
        spool takes no more, so that engines will drop the newest events)."""
        spool = self._line.spool
        status = "losing" if spool.trouble else "degraded" if self._line.is_failing or spool.records else "ok"
        return {
            "status": status,
            "engines": self._agent.counts.engines,
            "spooled_records": spool.records,
            "spooled_bytes": spool.bytes,
            "lag_s": round(self._line.lag_s(), 3),
            "spool_trouble": spool.trouble,
            "last_error": self._line.last_error,
            "uptime_s": round(time.monotonic() - self._since, 1),
        }

    def text(self) -> str:
        """The metrics in Prometheus' text format."""
        return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        counts, spool = self._agent.counts, self._line.spool
        for name, kind, text, value in (
            ("engines", "gauge", "Engines connected.", counts.engines),
            ("connections_total", "counter", "Connections taken.", counts.connections),
            ("turned_away_total", "counter", "Connections of processes that may not publish.", counts.turned_away),
            ("events_total", "counter", "Events that are safe: at the broker or on disk.", counts.events),
            ("refused_total", "counter", "Events that no record can hold.", counts.refused),
            ("records_total", "counter", "Records that are safe.", counts.records),
            ("rejected_events_total", "counter", "Events of records that the broker never takes.", counts.rejected),
            ("declared_lanes_total", "counter", "Lanes of killed engines whose end was declared.", counts.declared),
            ("sent_records_total", "counter", "Records that the broker has.", self._line.sent),
            ("failures_total", "counter", "Attempts that the broker did not acknowledge.", self._line.failures),
            ("spooled_records", "gauge", "Records that wait on disk.", spool.records),
            ("spooled_bytes", "gauge", "Bytes on disk.", spool.bytes),
            (
                "lag_seconds",
                "gauge",
                "Age of the oldest event that waits on disk; 0: none.",
                round(self._line.lag_s(), 3),
            ),
            ("spool_lost_events_total", "counter", "Events lost on disk or never taken.", spool.lost),
            ("spool_full", "gauge", "Whether the spool takes no more.", int(bool(spool.trouble))),
            ("broker_up", "gauge", "Whether the last attempt was acknowledged.", int(not self._line.is_failing)),
        ):
            yield f"# HELP kvtrail_agent_{name} {text}\n# TYPE kvtrail_agent_{name} {kind}\n"
            yield f"kvtrail_agent_{name} {value}\n"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_READ_S):
                request = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].split()
                path = request[1] if len(request) == 3 and request[0] == b"GET" else b""
                status, kind, body = "404 Not Found", "text/plain", "try /metrics or /health\n"
                if path == b"/metrics":
                    status, kind, body = "200 OK", "text/plain; version=0.0.4; charset=utf-8", self.text()
                elif path == b"/health":
                    health = self.health()
                    status = "503 Service Unavailable" if health["status"] == "losing" else "200 OK"
                    kind, body = "application/json", json.dumps(health) + "\n"
                raw = body.encode()
                head = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(raw)}")
                writer.write("\r\n".join((*head, "Connection: close", "", "")).encode() + raw)
                await writer.drain()
        writer.close()
