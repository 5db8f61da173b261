"""ASGI middleware: every request has an id, and kvtrail knows who asked under it.

Plain ASGI, for any framework. The request id is the engines' own header, `X-Request-Id`: taken from the request, made
where there is none, handed to the application in the request's headers and to the client in the response's. It never
delays a request and never fails one.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from ..schemas.context import trace_of
from .context import ContextPublisher
from .telling import log

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Fields = Callable[[Scope], Mapping[str, str | None] | None]

HEADER = b"x-request-id"
SCOPE_KEY = "kvtrail.request_id"
"""Where the application finds the request id in its scope."""
_USABLE = re.compile(rb"[\x21-\x7e]{1,128}")
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


class RequestContextMiddleware:
    """Publishes the context of each HTTP request and websocket.

    `fields(scope)` says who asks: `tenant_id`, and what else `ContextPublisher.publish` takes; None or no tenant: the
    request is not published. It is called once a request, before the application, so put this middleware inside the
    one that authenticates; what it raises is counted in `failed` and said once. `trusted=False` ignores the request
    ids that clients send: under another's id, a client could have its request taken for somebody else's.
    """

    def __init__(self, app: App, publisher: ContextPublisher, fields: Fields, *, trusted: bool = True) -> None:
        self.failed = 0
        self._app, self._publisher, self._fields, self._trusted = app, publisher, fields, trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = list(scope.get("headers") or ())
        given = _first(headers, HEADER) if self._trusted else b""
        request_id = given if _USABLE.fullmatch(given) else secrets.token_hex(16).encode()
        if request_id != given:
            headers = [(name, value) for name, value in headers if name.lower() != HEADER]
            headers.append((HEADER, request_id))
        told = request_id.decode("ascii")
        scope = {**scope, "headers": headers, SCOPE_KEY: told}
        self._tell(scope, told, headers)

        async def answer(message: Message) -> None:
            if message["type"] in _STARTS:
                sent = list(message.get("headers") or ())
                if not _first(sent, HEADER):
                    message = {**message, "headers": [*sent, (HEADER, request_id)]}
            await send(message)

        await self._app(scope, receive, answer)

    def _tell(self, scope: Scope, request_id: str, headers: list[tuple[bytes, bytes]]) -> None:
        try:
            fields = self._fields(scope)
            if fields and fields.get("tenant_id"):
                given: dict[str, Any] = {
                    "trace_id": trace_of(_first(headers, b"traceparent").decode("latin-1")),
                    **fields,
                }
                self._publisher.publish(request_id, **given)
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                log.warning("a request's context could not be told: %s (said once)", type(error).__name__)


def _first(headers: list[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    return next((bytes(value) for name, value in headers if name.lower() == wanted), b"")
