"""A server that answers like Grafana's HTTP API, remembers what it was sent, and fails on demand."""

import json
import threading
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Answer(NamedTuple):
    """One answer; `body` None sends no bytes at all."""

    status: int
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()


class StubGrafana:
    """`with StubGrafana() as grafana:`; objects are kept by their path, as Grafana would.

    `plan(method, path, *answers)` makes the next requests get these answers, whatever they ask.
    """

    def __init__(self, prefix: str = "") -> None:
        self.requests: list[Request] = []
        self.objects: dict[str, Any] = {"/health": {"version": "13.2.3", "database": "ok"}}
        self._planned: dict[tuple[str, str], deque[Answer]] = defaultdict(deque)
        self._prefix = f"{prefix}/api"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}{prefix}"

    def __enter__(self) -> "StubGrafana":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def plan(self, method: str, path: str, *answers: Answer) -> None:
        """The next answers to this method and path."""
        self._planned[method, path].extend(answers)

    def writes(self) -> list[tuple[str, str]]:
        """Every request that was not a read."""
        return [(request.method, request.path) for request in self.requests if request.method != "GET"]

    def answer(self, request: Request) -> Answer:
        """What Grafana would say."""
        self.requests.append(request)
        planned = self._planned[request.method, request.path]
        if planned:
            return planned.popleft()
        method, path, body = request.method, request.path, request.body
        if method == "GET":
            return Answer(200, self.objects[path]) if path in self.objects else Answer(404, {"message": "not found"})
        if path == "/folders":
            self.objects[f"/folders/{body['uid']}"] = {"id": 1, **body, "version": 1}
        elif path == "/datasources":
            self.objects[f"/datasources/uid/{body['uid']}"] = {"id": 1, "readOnly": False, **_public(body)}
        elif path == "/dashboards/db":
            stored = {**body["dashboard"], "id": 7, "version": 2}
            self.objects[f"/dashboards/uid/{stored['uid']}"] = {
                "dashboard": stored, "meta": {"folderUid": body["folderUid"]},
            }  # fmt: skip
        elif method == "PUT" and path.startswith("/datasources/uid/"):
            self.objects[path] = {"id": 1, "readOnly": False, **_public(body)}
        elif method == "PUT":
            rules = [
                {**rule, "id": at, "updated": "2026-01-01T00:00:00Z"} for at, rule in enumerate(body.get("rules", []))
            ]
            self.objects[path] = {**body, "rules": rules}
        else:
            return Answer(404, {"message": "no such endpoint"})
        return Answer(200, {"status": "success"})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub, prefix = self, self._prefix

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.removeprefix(prefix) if self.path.startswith(prefix) else f"outside {self.path}"
                body = json.loads(raw) if raw and raw != b"null" else None
                answer = stub.answer(Request(self.command, path, dict(self.headers), body))
                data = b"" if answer.body is None else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                if answer.status != 204:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815  # the names http.server looks for

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on the test's terminal."""

        return Handler


def _public(source: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name != "secureJsonData"}
