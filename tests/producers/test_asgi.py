"""The middleware: an id for every request, its context told, and the request never the worse for it."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kvtrail.producers.asgi import RequestContextMiddleware, Scope
from kvtrail.producers.context import ContextPublisher
from kvtrail.producers.memory import MemoryTransport
from kvtrail.schemas.context import RequestContext, decode_context

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class App:
    """Answers, and keeps what it was given."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.scopes: list[Scope] = []
        self._headers = list(headers)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "lifespan":
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"ok"})


class Gateway:
    """The middleware around an app, and what came out on both sides."""

    def __init__(self) -> None:
        self.memory = MemoryTransport()
        self.publisher = ContextPublisher(self.memory)
        self.app = App()
        self.said: Mapping[str, str | None] | Exception | None = {"tenant_id": "contoso", "principal": "agent-3"}
        self.middleware = RequestContextMiddleware(self.app, self.publisher, self.fields)

    def fields(self, scope: Scope) -> Mapping[str, str | None] | None:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def ask(self, *headers: tuple[bytes, bytes], kind: str = "http") -> dict[bytes, bytes]:
        """One request; the headers of its answer."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request"}

        asyncio.run(self.middleware({"type": kind, "path": "/v1", "headers": [*headers]}, receive, send))
        return dict(sent[0].get("headers") or ()) if sent else {}

    def told(self) -> list[RequestContext]:
        assert self.publisher.flush(30)
        return [decode_context(record) for _, record in self.memory.records]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.publisher.close()


def test_a_given_id_is_kept_on_every_side(gateway: Gateway) -> None:
    traceparent = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
    answered = gateway.ask((b"x-request-id", b"req-2044"), (b"traceparent", traceparent), (b"accept", b"*/*"))
    assert answered == {b"x-request-id": b"req-2044"}
    (scope,) = gateway.app.scopes
    assert scope["kvtrail.request_id"] == "req-2044" and dict(scope["headers"])[b"accept"] == b"*/*"
    (context,) = gateway.told()
    assert (context.request_id, context.tenant_id, context.principal, context.trace_id) == (
        "req-2044", "contoso", "agent-3", TRACE,
    )  # fmt: skip


@pytest.mark.parametrize("given", [b"", b"two words", b"\xff", b"x" * 129, b"a\r\nset-cookie: b"])
def test_a_missing_or_unusable_id_is_made_anew(gateway: Gateway, given: bytes) -> None:
    answered = gateway.ask(*[(b"x-request-id", given)] if given else [])
    made = answered[b"x-request-id"].decode()
    assert len(made) == 32 and made.encode() != given
    # The application sees it where it would have seen the client's, once.
    assert [value for name, value in gateway.app.scopes[0]["headers"] if name == b"x-request-id"] == [made.encode()]
    assert [context.request_id for context in gateway.told()] == [made]


def test_no_two_requests_are_given_one_id(gateway: Gateway) -> None:
    assert len({gateway.ask()[b"x-request-id"] for _ in range(50)}) == 50


def test_clients_ids_can_be_ignored(gateway: Gateway) -> None:
    gateway.middleware = RequestContextMiddleware(gateway.app, gateway.publisher, gateway.fields, trusted=False)
    assert gateway.ask((b"x-request-id", b"somebody-elses"))[b"x-request-id"] != b"somebody-elses"


def test_an_answer_that_has_an_id_keeps_it(gateway: Gateway) -> None:
    gateway.middleware = RequestContextMiddleware(
        App((b"X-Request-Id", b"mine")), gateway.publisher, gateway.fields
    )  # fmt: skip
    assert gateway.ask() == {b"X-Request-Id": b"mine"}


@pytest.mark.parametrize("said", [None, {}, {"tenant_id": ""}, {"tenant_id": None}, {"principal": "p"}])
def test_who_is_unknown_is_not_told(gateway: Gateway, said: Mapping[str, str | None] | None) -> None:
    gateway.said = said
    assert b"x-request-id" in gateway.ask() and gateway.told() == []


@pytest.mark.parametrize("said", [RuntimeError("no session"), {"tenant_id": "contoso", "colour": "red"}])
def test_a_failing_function_costs_the_context_and_not_the_request(
    gateway: Gateway, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.said = said
    for _ in range(3):
        assert b"x-request-id" in gateway.ask()
    assert (gateway.told(), gateway.middleware.failed) == ([], 3)
    assert len([line for line in caplog.messages if "could not be told" in line]) == 1
    assert "no session" not in caplog.text


def test_websockets_too_and_the_lifespan_passes_through(gateway: Gateway) -> None:
    assert gateway.ask((b"x-request-id", b"ws-1"), kind="websocket") == {b"x-request-id": b"ws-1"}
    assert gateway.ask(kind="lifespan") == {}
    assert "kvtrail.request_id" not in gateway.app.scopes[1]
    assert [context.request_id for context in gateway.told()] == ["ws-1"]


def test_an_error_of_the_application_is_its_own(gateway: Gateway) -> None:
    async def broken(scope: Scope, receive: Any, send: Any) -> None:
        raise LookupError("theirs")

    gateway.middleware = RequestContextMiddleware(broken, gateway.publisher, gateway.fields)
    with pytest.raises(LookupError):
        gateway.ask()


def test_a_broker_that_is_away_changes_nothing_for_the_request(gateway: Gateway) -> None:
    gateway.memory.down = True
    assert gateway.ask((b"x-request-id", b"r1")) == {b"x-request-id": b"r1"}
