"""ASGI middleware: every answer is read for its canary, and the result published.

Plain ASGI, for any framework. It never breaks an answer and never delays a stream: without `strip` bytes go on before
they are read; with it, an event goes on as soon as it is whole. What cannot be read (compressed, too large, not an
answer's format) goes on untouched and is inconclusive.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..schemas.events import KeyOrigin, Tier
from ..schemas.identity import Identity
from .asgi import HEADER, SCOPE_KEY, App, Fields, Message, Receive, Scope, Send
from .calls import LifecycleCalls
from .canary import Canary, CanaryResult
from .canary_documents import DocumentReading, TextReading
from .canary_field import FieldPattern
from .canary_reading import LIMIT, Reading
from .canary_stream import EventReading
from .telling import log

_DIGESTS = frozenset({b"content-md5", b"digest", b"content-digest", b"repr-digest"})
_START, _BODY = "http.response.start", "http.response.body"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an engine says which entry it served: `key_header` of its answer names the key, `owner_header` the node
    that owns it. `store` and `tier` are the entry's."""

    key_header: str
    store: str
    tier: Tier
    owner_header: str = ""
    key_origin: KeyOrigin = "derived"


@dataclass(slots=True)
class CanaryStats:
    """`results` by result; `failed`: errors of ours, none of which an answer noticed; `unread`: answers that were not
    read to their end, by reason."""

    results: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    unread: Counter[str] = field(default_factory=Counter)


class CanaryMiddleware:
    """Checks the answers to requests whose prompts carry a canary.

    `fields(scope)` says who asks, as for `RequestContextMiddleware`: `tenant_id`, and any other dimension; None or no
    tenant: the answer is not read. Put this middleware inside the one that authenticates and the one that makes
    request ids, and inside any compression. `strip` takes the field out of what the client sees. `entry` says where
    the engine tells which entry it served; without it the result carries the request id alone.
    """

    def __init__(
        self, app: App, canary: Canary, publisher: LifecycleCalls, fields: Fields, *, strip: bool = False,
        entry: Entry | None = None, limit: int = LIMIT,
    ) -> None:  # fmt: skip
        self.stats = CanaryStats()
        self.canary = canary
        self.pattern = FieldPattern(canary.field)
        self.strip, self.entry, self.limit = strip, entry, limit
        self._app, self._publisher, self._fields = app, publisher, fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        who = self._who(scope) if scope["type"] == "http" else None
        if who is None:
            await self._app(scope, receive, send)
            return
        answer = _Answer(self, who, _request_id(scope))

        async def pass_on(message: Message) -> None:
            for one in answer.take(message):
                await send(one)
            answer.after(message)

        try:
            await self._app(scope, receive, pass_on)
        finally:
            left = answer.leave()
        for one in left:
            await send(one)

    def publish(self, who: Identity, request_id: str, headers: Mapping[bytes, bytes], result: CanaryResult) -> None:
        """One result, as a `check` event."""
        entry = self.entry
        key = headers.get(entry.key_header.lower().encode(), b"").decode("latin-1") if entry else ""
        owner = headers.get(entry.owner_header.lower().encode(), b"").decode("latin-1") if entry else ""
        place: dict[str, Any] = {"store": "", "tier": "gpu"}
        if entry is not None and key:
            place = {"store": entry.store, "tier": entry.tier, "owner": owner, "key_origin": entry.key_origin}
        self._publisher.check(
            key, check="canary", result=result.result, expected=result.expected, observed=result.observed,
            detail=result.detail, identity=who, request_id=request_id, **place,
        )  # fmt: skip
        self.stats.results[result.result] += 1

    def fail(self, error: Exception) -> None:
        """Count an error of ours."""
        self.stats.failed += 1
        if self.stats.failed == 1:
            log.warning("an answer's canary could not be checked: %s (said once)", type(error).__name__)

    def _who(self, scope: Scope) -> Identity | None:
        try:
            fields = self._fields(scope)
            if not fields or not fields.get("tenant_id"):
                return None
            return Identity.from_wire(fields)
        except Exception as error:
            self.fail(error)
            return None


class _Answer:
    """One answer on its way through. `take` says what to send for a message; nothing it does raises."""

    def __init__(self, middleware: CanaryMiddleware, who: Identity, request_id: str) -> None:
        self._begun = False
        self._all = middleware
        self._who, self._request_id = who, request_id
        self._headers: dict[bytes, bytes] = {}
        self._reading: Reading | None = None
        self._start: Message | None = None
        self._rewrites = False
        self._over = False
        self._unread = ""

    def take(self, message: Message) -> list[Message]:
        """The messages to send for this one, in order."""
        try:
            if message["type"] == _START:
                return self._begin(message)
            if message["type"] == _BODY and self._reading is not None and self._rewrites:
                return self._rewritten(self._reading, message)
        except Exception as error:
            self._all.fail(error)
            self._rewrites = False
            return [*self._late_start(), message]
        if message["type"] != _BODY and self._reading is not None and self._start is not None:
            # A body that does not come as bytes (a file's path): it cannot be read, so nothing waits for it.
            self._unread, self._rewrites = "it does not come as bytes", False
            return [*self._late_start(), message]
        return [message]

    def after(self, message: Message) -> None:
        """The message has been sent: reading costs its sender nothing that the client waits for."""
        try:
            if message["type"] != _BODY:
                return
            if self._reading is not None and not self._rewrites:
                self._reading.feed(bytes(message.get("body", b"")))
                if not message.get("more_body", False):
                    self._reading.end()
            if not message.get("more_body", False):
                self._close()
        except Exception as error:
            self._all.fail(error)

    def leave(self) -> list[Message]:
        """The application has returned or failed: what was held back, where it left its answer open. What was seen
        until then is judged: a client that went away has been shown the front of the answer."""
        left: list[Message] = []
        try:
            if self._start is not None and self._reading is not None:
                rest = self._reading.unsent()
                left = [*self._late_start(), *([{"type": _BODY, "body": rest, "more_body": True}] if rest else [])]
            if self._begun and not self._over:
                self._unread = self._unread or "it was broken off"
                self._close()
        except Exception as error:
            self._all.fail(error)
        return left

    def _begin(self, message: Message) -> list[Message]:
        self._begun = True
        pairs = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers") or ()]
        self._headers = dict(pairs)
        if not 200 <= message["status"] < 300:
            self._over = True  # an error is no answer
            return [message]
        if self._headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            self._unread = "it is compressed"
            return [message]
        kind = self._headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self._rewrites = self._all.strip and not self._headers.keys() & _DIGESTS
        make = {b"text/event-stream": EventReading, b"application/json": DocumentReading, b"text/plain": TextReading}
        if kind not in make:
            self._unread, self._rewrites = "it is no answer's format", False
            return [message]
        self._reading = make[kind](
            self._all.pattern, self._all.canary.is_attempt, strip=self._rewrites, limit=self._all.limit
        )
        if not self._rewrites:
            return [message]
        if isinstance(self._reading, DocumentReading):
            self._start = message
            return []
        headers = [(name, value) for name, value in message.get("headers") or () if name.lower() != b"content-length"]
        return [{**message, "headers": headers}]

    def _rewritten(self, reading: Reading, message: Message) -> list[Message]:
        more = bool(message.get("more_body", False))
        body = reading.feed(bytes(message.get("body", b"")))
        if not more:
            body += reading.end()
        if self._start is not None and more and not reading.trouble:
            return []
        return [*self._late_start(len(body) if not more else None), {**message, "body": body}]

    def _late_start(self, length: int | None = None) -> list[Message]:
        start, self._start = self._start, None
        if start is None:
            return []
        if length is not None and b"content-length" in self._headers:
            others = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            start = {**start, "headers": [*others, (b"content-length", str(length).encode())]}
        return [start]

    def _close(self) -> None:
        if self._over:
            return
        self._over = True
        reading, tenant = self._reading, self._who.tenant_id
        self._all.stats.failed += reading.failed if reading is not None else 0
        unread = self._unread or (reading.trouble if reading is not None else "nothing was read")
        result = self._all.canary.check(tenant, [*reading.fields, *reading.texts] if reading is not None else ())
        if unread:
            self._all.stats.unread[unread] += 1
            if result.result == "inconclusive":
                result = CanaryResult("inconclusive", tenant, detail=unread)
        self._all.publish(self._who, self._request_id, self._headers, result)


def _request_id(scope: Scope) -> str:
    told = scope.get(SCOPE_KEY)
    if isinstance(told, str):
        return told
    pairs = scope.get("headers") or ()
    return next((bytes(value).decode("latin-1") for name, value in pairs if name.lower() == HEADER), "")
