"""A server that is told things over HTTP: it remembers what it got, and answers late, wrongly or not at all on demand.

Also an Alertmanager, as far as its v2 API is used here: it checks the shape of alerts and keeps them by their labels.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Request(NamedTuple):
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    at: float

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Plan(NamedTuple):
    """How to answer one request: after `wait` (an event, or nothing), with `status`; `status` 0 hangs up."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    wait: threading.Event | None = None


class Receiver:
    """`with Receiver() as receiver:`; `plan(...)` makes the next requests get these answers, `otherwise` all others."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.otherwise = Plan()
        self._plans: deque[Plan] = deque()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def plan(self, *plans: Plan) -> None:
        self._plans.extend(plans)

    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Listen no more: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for plan in (*self._plans, self.otherwise):
            if plan.wait is not None:
                plan.wait.set()
        self.stop()

    def took(self, request: Request) -> int:
        """What a request that is to be answered well really deserves; 0 hangs up."""
        return 200

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                request = Request(self.path, dict(self.headers), raw, time.monotonic())
                plan = receiver._plans.popleft() if receiver._plans else receiver.otherwise
                receiver.requests.append(request)
                if plan.wait is not None:
                    plan.wait.wait(60)
                status = plan.status if plan.status != 200 else receiver.took(request)
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in plan.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class StubAlertmanager(Receiver):
    """Keeps alerts by their labels, as `POST /api/v2/alerts` says them."""

    def __init__(self) -> None:
        self.alerts: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        super().__init__()

    def took(self, request: Request) -> int:
        if request.path != "/api/v2/alerts" or request.headers["Content-Type"] != "application/json":
            return 404
        for alert in request.body:
            if not alert["labels"].get("alertname") or not all(map(str, alert["labels"].values())):
                return 400
            if _time(alert["endsAt"]) < _time(alert["startsAt"]):
                return 400
            self.alerts[tuple(sorted(alert["labels"].items()))] = alert
        return 200

    def firing(self, at: float) -> list[dict[str, str]]:
        """The labels of what fires at this time (seconds since the epoch), the loudest first."""
        return [dict(labels) for labels, alert in self.alerts.items() if _time(alert["endsAt"]) > at]


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
