"""The canary behind a real server and a real client: lengths are right, streams flow, compression works."""

import threading
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import uvicorn
from kvtrail.producers.canary_asgi import CanaryMiddleware
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from .test_canary_asgi import CANARY, marked
from .test_canary_streams import one_event, pieces, text_of

FIRST, SECOND = "Within 14 days. " * 40, " That is all."


class Server:
    """An engine that answers in three ways, and streams its second half only when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.publisher = LifecyclePublisher("gateway-1", MemoryTransport())
        text = marked("northwind").replace("Within 14 days.", FIRST)

        async def document(request: Request) -> Response:
            return JSONResponse({"choices": [{"message": {"content": text}}]})

        async def plain(request: Request) -> Response:
            return PlainTextResponse(text)

        async def stream(request: Request) -> Response:
            async def events() -> AsyncIterator[bytes]:
                for piece in pieces(text, 11):
                    yield one_event(piece)
                await run_in_threadpool(self.go_on.wait, 30)
                yield one_event(SECOND)
                yield b"data: [DONE]\n\n"

            return StreamingResponse(events(), media_type="text/event-stream")

        engine = Starlette(routes=[Route("/json", document), Route("/text", plain), Route("/stream", stream)])
        self.canary = CanaryMiddleware(
            engine, CANARY, self.publisher, lambda scope: {"tenant_id": "contoso"}, strip=True
        )  # fmt: skip
        self.server = uvicorn.Server(
            uvicorn.Config(GZipMiddleware(self.canary, minimum_size=100), port=0, log_level="critical", lifespan="off")
        )
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        end = time.monotonic() + 30
        while not self.server.started and time.monotonic() < end:
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)

    def results(self, count: int) -> dict[str, int]:
        """What was found, once that many answers were judged: they are after the client has them."""
        end = time.monotonic() + 30
        while sum(self.canary.stats.results.values()) < count and time.monotonic() < end:
            time.sleep(0.01)
        return dict(self.canary.stats.results)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.go_on.set()
    server.client.close()
    server.server.should_exit = True
    server.thread.join(30)
    server.publisher.close()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_whole_answers_arrive_whole(server: Server, encoding: str) -> None:
    answer = server.client.get("/json", headers={"accept-encoding": encoding})
    assert answer.json() == {"choices": [{"message": {"content": FIRST}}]}
    assert ("content-encoding" in answer.headers) == (encoding == "gzip")
    assert server.client.get("/text", headers={"accept-encoding": encoding}).text == FIRST
    assert server.results(2) == {"fail": 2} and server.canary.stats.failed == 0


def test_a_stream_flows_while_its_end_is_not_written_yet(server: Server) -> None:
    with server.client.stream("GET", "/stream", headers={"accept-encoding": "identity"}) as answer:
        received = b""
        for chunk in answer.iter_raw():
            received += chunk
            if text_of(received) == FIRST:
                # All of the first half is here, and the engine has not begun the second.
                assert not server.go_on.is_set()
                server.go_on.set()
    assert text_of(received) == FIRST + SECOND and received.endswith(b"data: [DONE]\n\n")
    assert server.results(1) == {"fail": 1}
