"""The canary's middleware: every answer is checked, no answer is the worse for it."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from kvtrail.producers.asgi import RequestContextMiddleware, Scope
from kvtrail.producers.canary import Canary
from kvtrail.producers.canary_asgi import CanaryMiddleware, Entry
from kvtrail.producers.canary_field import FieldReader
from kvtrail.producers.canary_keys import CanaryKey
from kvtrail.producers.context import ContextPublisher
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Check, Event

from .test_canary_streams import openai, pieces, text_of

CANARY = Canary([CanaryKey("k", b"s" * 32)], ["contoso", "northwind"])
EVENTS, JSON, TEXT = b"text/event-stream; charset=utf-8", b"application/json", b"text/plain"


def marked(tenant: str) -> str:
    return f"[ref: {CANARY.marker(tenant)}] Within 14 days."


def body_of(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


class Gateway:
    """The middleware around an engine that answers what it is told to, and what came out on both sides."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.publisher = LifecyclePublisher("gateway-1", self.transport)
        self.chunks: list[bytes] = []
        self.status, self.headers = 200, [(b"content-type", JSON)]
        self.tenant: Callable[[Scope], Mapping[str, str | None] | None] = lambda scope: {"tenant_id": "contoso"}
        self.sent: list[Any] = []
        self.ends = True
        self.middleware = self.made()

    def made(self, **options: Any) -> CanaryMiddleware:
        return CanaryMiddleware(self.app, CANARY, self.publisher, lambda scope: self.tenant(scope), **options)

    async def app(self, scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for chunk in self.chunks[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self.ends:
            await send({"type": "http.response.body", "body": self.chunks[-1] if self.chunks else b""})

    def ask(self, *chunks: bytes, kind: bytes | None = None, scope: Mapping[str, Any] | None = None) -> bytes:
        """One request; the body of its answer as the client has it."""
        self.chunks = list(chunks)
        if kind is not None:
            self.headers = [(b"content-type", kind), *self.headers[1:]]
        self.sent = []

        async def send(message: Any) -> None:
            self.sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request"}

        given = {"type": "http", "headers": [(b"x-request-id", b"r1")], **(scope or {})}
        asyncio.run(self.middleware(given, receive, send))
        return b"".join(message.get("body", b"") for message in self.sent)

    def told(self) -> list[Event]:
        assert self.publisher.flush(30)
        decoder = EnvelopeDecoder()
        events = [event for _, record in self.transport.records for event in decoder.decode(record).events]
        return [event for event in events if isinstance(event.body, Check)]

    def results(self) -> list[tuple[str, str, str]]:
        return [(c.result, c.expected, c.observed) for event in self.told() if isinstance(c := event.body, Check)]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.publisher.close()


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("kind", [JSON, EVENTS, TEXT])
def test_another_tenants_marker_is_told_on_the_first_request(gateway: Gateway, kind: bytes, strip: bool) -> None:
    gateway.middleware = gateway.made(strip=strip)
    text = marked("northwind")
    body = {JSON: body_of(text), TEXT: text.encode(), EVENTS: openai(pieces(text, 5))}[kind]
    shown = gateway.ask(body, kind=kind)
    assert shown == body if not strip else b"[ref" not in shown
    assert kind != EVENTS or text_of(shown) == (text if not strip else "Within 14 days.")
    assert gateway.results() == [("fail", "contoso", "northwind")]
    (event,) = gateway.told()
    assert event.request_id == "r1" and event.identity is not None and event.identity.tenant_id == "contoso"
    assert (event.key, event.store, event.node) == ("", "", "gateway-1")


def test_ones_own_passes_and_none_proves_nothing(gateway: Gateway) -> None:
    gateway.ask(body_of(marked("contoso")))
    gateway.ask(body_of("Within 14 days."))
    gateway.ask(body_of(marked("contoso").replace("-", "", 2)))
    assert gateway.results() == [
        ("pass", "contoso", "contoso"), ("inconclusive", "contoso", ""), ("inconclusive", "contoso", ""),
    ]  # fmt: skip
    assert gateway.middleware.stats.results == {"pass": 1, "inconclusive": 2}


def test_the_entry_is_named_where_the_engine_names_it(gateway: Gateway) -> None:
    entry = Entry("X-Cache-Key", "kv", "nvme", owner_header="X-Cache-Node", key_origin="asserted")
    gateway.middleware = gateway.made(entry=entry)
    gateway.headers += [(b"x-cache-key", b"support_v7:m"), (b"X-Cache-Node", b"node-9")]
    gateway.ask(body_of(marked("northwind")))
    (event,) = gateway.told()
    assert (event.key, event.store, event.tier, event.home, event.key_origin) == (
        "support_v7:m", "kv", "nvme", "n:node-9", "asserted",
    )  # fmt: skip
    gateway.headers = gateway.headers[:1]
    gateway.ask(body_of(marked("northwind")))
    assert (gateway.told()[1].key, gateway.told()[1].home) == ("", "n:gateway-1")


def test_the_request_id_is_the_one_that_was_made(gateway: Gateway) -> None:
    contexts = ContextPublisher(MemoryTransport())
    outer = RequestContextMiddleware(gateway.middleware, contexts, lambda scope: None)

    async def send(message: Any) -> None:
        gateway.sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    gateway.chunks = [body_of(marked("contoso"))]
    asyncio.run(outer({"type": "http", "headers": []}, receive, send))
    contexts.close()
    (event,) = gateway.told()
    assert (b"x-request-id", event.request_id.encode()) in gateway.sent[0]["headers"]


def test_a_stripped_document_has_its_length(gateway: Gateway) -> None:
    gateway.middleware = gateway.made(strip=True)
    body = body_of(marked("contoso"))
    gateway.headers += [(b"content-length", str(len(body)).encode())]
    shown = gateway.ask(body[:20], body[20:])
    assert json.loads(shown) == json.loads(body_of("Within 14 days."))
    assert dict(gateway.sent[0]["headers"])[b"content-length"] == str(len(shown)).encode()
    assert [message["type"] for message in gateway.sent] == ["http.response.start", "http.response.body"]
    # Without the field nothing changes, not even the spaces.
    plain = b'{"choices": [ {"message": {"content":"Hi"}} ]}'
    gateway.headers[1] = (b"content-length", str(len(plain)).encode())
    assert gateway.ask(plain) == plain


def test_a_stripped_stream_goes_on_event_by_event(gateway: Gateway) -> None:
    gateway.middleware = gateway.made(strip=True)
    events = [one + b"\n\n" for one in openai(pieces(marked("contoso"), 6)).split(b"\n\n") if one]
    gateway.headers += [(b"content-length", b"12345")]
    shown = gateway.ask(*events, kind=EVENTS)
    assert text_of(shown) == "Within 14 days."
    assert b"content-length" not in dict(gateway.sent[0]["headers"])
    # Each event in, an event out: nothing waits for what follows.
    assert len(gateway.sent) == 1 + len(events) and all(message["body"] for message in gateway.sent[1:])
    assert gateway.results() == [("pass", "contoso", "contoso")]


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        ([(b"content-type", JSON), (b"content-encoding", b"gzip")], 200, "it is compressed"),
        ([(b"content-type", b"image/png")], 200, "it is no answer's format"),
        ([], 200, "it is no answer's format"),
        ([(b"content-type", JSON)], 500, ""),
    ],
)
@pytest.mark.parametrize("strip", [False, True])
def test_what_cannot_be_read_is_inconclusive_and_an_error_is_no_answer(
    gateway: Gateway, headers: list[tuple[bytes, bytes]], status: int, told: str, strip: bool
) -> None:
    gateway.middleware = gateway.made(strip=strip)
    gateway.headers, gateway.status = headers, status
    body = body_of(marked("northwind"))
    assert gateway.ask(body[:9], body[9:]) == body
    assert gateway.results() == ([("inconclusive", "contoso", "")] if told else [])
    assert dict(gateway.middleware.stats.unread) == ({told: 1} if told else {})


def test_a_sealed_body_is_read_and_not_changed(gateway: Gateway) -> None:
    gateway.middleware = gateway.made(strip=True)
    gateway.headers += [(b"repr-digest", b"sha-256=:abc:")]
    body = body_of(marked("northwind"))
    assert gateway.ask(body) == body and gateway.results() == [("fail", "contoso", "northwind")]


def test_a_document_that_is_too_large_is_not_waited_for(gateway: Gateway) -> None:
    gateway.middleware = gateway.made(strip=True, limit=100)
    body = body_of(marked("northwind") + "x" * 500)
    assert gateway.ask(*[body[at : at + 60] for at in range(0, len(body), 60)]) == body
    assert len(gateway.sent) > 5 and gateway.results() == [("inconclusive", "contoso", "")]


def test_a_body_that_is_a_file_goes_on(gateway: Gateway) -> None:
    async def app(scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", JSON)]})
        await send({"type": "http.response.pathsend", "path": "/answer.json"})

    gateway.middleware = CanaryMiddleware(app, CANARY, gateway.publisher, gateway.tenant, strip=True)
    gateway.ask()
    assert [message["type"] for message in gateway.sent] == ["http.response.start", "http.response.pathsend"]
    assert gateway.results() == [("inconclusive", "contoso", "")]


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("kind", [JSON, EVENTS])
def test_an_answer_that_is_broken_off_is_judged_as_far_as_it_went(gateway: Gateway, kind: bytes, strip: bool) -> None:
    gateway.middleware = gateway.made(strip=strip)
    gateway.ends = False
    body = body_of(marked("northwind")) if kind == JSON else openai(pieces(marked("northwind"), 5))
    shown = gateway.ask(body, b"", kind=kind)
    assert kind == EVENTS or shown == body
    assert gateway.sent[0]["type"] == "http.response.start"
    expected = ("fail", "contoso", "northwind") if kind == EVENTS else ("inconclusive", "contoso", "")
    assert gateway.results() == [expected]


def test_an_error_of_the_application_is_its_own(gateway: Gateway) -> None:
    async def broken(scope: Scope, receive: Any, send: Any) -> None:
        raise LookupError("theirs")

    gateway.middleware = CanaryMiddleware(broken, CANARY, gateway.publisher, gateway.tenant)
    with pytest.raises(LookupError, match="theirs"):
        gateway.ask()
    assert gateway.told() == [] and gateway.middleware.stats.failed == 0


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("ours")


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("kind", [JSON, EVENTS, TEXT])
@pytest.mark.parametrize("where", ["fields", "read", "check", "publish"])
def test_no_error_of_ours_reaches_an_answer(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, where: str, kind: bytes, strip: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    gateway.middleware = gateway.made(strip=strip)
    text = "Within 14 days."
    body = {JSON: body_of(text), TEXT: text.encode(), EVENTS: openai(pieces(text, 4))}[kind]
    targets: dict[str, tuple[Any, str]] = {
        "fields": (gateway, "tenant"), "read": (FieldReader, "feed"),
        "check": (Canary, "check"), "publish": (LifecyclePublisher, "check"),
    }  # fmt: skip
    monkeypatch.setattr(*targets[where], _raise)
    for _ in range(2):
        assert gateway.ask(body[:7], body[7:30], body[30:], kind=kind) == body
        assert gateway.sent[0]["status"] == 200
    assert gateway.middleware.stats.failed == 2
    assert "ours" not in caplog.text and len([line for line in caplog.messages if "could not be checked" in line]) <= 1


def test_a_tenant_that_is_not_known_is_not_checked(gateway: Gateway) -> None:
    gateway.tenant = lambda scope: None
    body = body_of(marked("northwind"))
    assert gateway.ask(body) == body and gateway.told() == []
    gateway.tenant = lambda scope: {"tenant_id": "contoso", "template_digest": "a name"}
    assert gateway.ask(body) == body and gateway.middleware.stats.failed == 1


def test_what_is_no_http_request_passes_through(gateway: Gateway) -> None:
    gateway.ask(b"", scope={"type": "websocket"})
    assert gateway.told() == []
