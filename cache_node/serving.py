"""The node over HTTP, in the form of chat completions, for whatever asks endpoints: a gateway, a check, a person.

Who asks stands in headers (`X-Tenant`, `X-Template`, `X-Epoch`, `X-Request-Id`), as a gateway would set them, in
UTF-8; there is no authentication here. What no event could hold is refused before anything is looked up. The answer
says what was reused, under which key and from which store.
"""

import json
import secrets
import threading
import time
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..schemas.epochs import LONGEST as LONGEST_EPOCH
from ..schemas.errors import InvalidField, KvtrailError
from ..schemas.events import LONGEST_TEXT
from ..schemas.identity import LONGEST_NAME, LONGEST_TENANT
from ..schemas.reserved import check_tenant
from .entry_events import TIER
from .node import ANSWER_TOKENS, Answer
from .prefix import Prefix

LARGEST = 1 << 20
"""Bytes of a request."""
LONGEST = 512
"""Tokens of an answer."""
REPORT_S = 10.0


class Answering(Protocol):
    """A `CacheNode`, as far as this needs one."""

    def answer(
        self, prefix: Prefix, question: str, request_id: str, *, bypass: bool = False, limit: int = ANSWER_TOKENS
    ) -> Answer:
        """One answer."""

    def report_lookups(self) -> None:
        """Publish counts of lookups."""


class NodeService:
    """One node behind HTTP; requests are answered one after the other, as the model computes."""

    def __init__(self, node: Answering, *, name: str, store: str, model: str) -> None:
        self._node = node
        self._name = name
        self._store = store
        self._model = model
        self._lock = threading.Lock()
        self._reported = time.monotonic()

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/healthz", self._health, methods=["GET"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "node": self._name, "model": self._model})

    async def _chat(self, request: Request) -> Response:
        try:
            body = await _body(request)
            prefix, question = _asked(body, request)
            request_id = _header(request, "X-Request-Id", LONGEST_TEXT) or f"node-{secrets.token_hex(8)}"
            answer = await run_in_threadpool(
                self._answer, prefix, question, request_id, _limit(body), body.get("kvtrail_bypass") is True
            )
        except KvtrailError as error:
            return JSONResponse({"error": {"message": str(error), "code": error.code}}, status_code=400)
        return JSONResponse(self._document(answer, body.get("logprobs") is True))

    def _answer(self, prefix: Prefix, question: str, request_id: str, limit: int, bypass: bool) -> Answer:
        with self._lock:
            answer = self._node.answer(prefix, question, request_id, bypass=bypass, limit=limit)
            if time.monotonic() - self._reported >= REPORT_S:
                self._reported = time.monotonic()
                self._node.report_lookups()
            return answer

    def _document(self, answer: Answer, logprobs: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": answer.text},
            "finish_reason": "stop",
            "token_ids": [one.token for one in answer.chosen],
        }
        if logprobs:
            choice["logprobs"] = {
                "content": [
                    {
                        "token": str(one.token),
                        "logprob": one.logprob,
                        "top_logprobs": [{"token": str(token), "logprob": value} for token, value in one.top],
                    }
                    for one in answer.chosen
                ]
            }
        prompt = answer.reused_tokens + answer.computed_tokens
        return {
            "id": answer.request_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": len(answer.chosen),
                "total_tokens": prompt + len(answer.chosen),
                "prompt_tokens_details": {"cached_tokens": answer.reused_tokens},
            },
            "kvtrail": {
                "key": answer.key.text,
                "key_origin": answer.key.origin,
                "store": self._store,
                "tier": TIER,
                "node": self._name,
            },
        }


async def _body(request: Request) -> dict[str, Any]:
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > LARGEST:
            raise InvalidField(f"is larger than {LARGEST} bytes.", field="body", remedy="Ask less.")
    try:
        body = json.loads(bytes(raw))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidField("is no JSON object.", field="body", remedy="Send a chat completion request.")
    return body


def _asked(body: dict[str, Any], request: Request) -> tuple[Prefix, str]:
    """One system message and one question: this node does not hold conversations."""
    if body.get("stream"):
        raise InvalidField("is not offered.", field="stream", remedy="Leave it out.")
    if body.get("temperature"):
        raise InvalidField("is always 0 here: the node decodes greedily.", field="temperature", remedy="Send 0.")
    tenant = _header(request, "X-Tenant", LONGEST_TENANT)
    if not tenant.strip():
        raise InvalidField("is missing.", field="X-Tenant", remedy="Say in this header who asks.")
    check_tenant("", tenant, "X-Tenant")
    messages = body.get("messages")
    said = [(one.get("role"), one.get("content")) for one in messages if isinstance(one, dict)] if isinstance(
        messages, list
    ) else []  # fmt: skip
    match said:
        case [("user", str(question))]:
            rendered = ""
        case [("system", str(rendered)), ("user", str(question))]:
            pass
        case _:
            raise InvalidField(
                "are not one system message and one user message of text.", field="messages", remedy="Send those."
            )
    template = _header(request, "X-Template", LONGEST_NAME, "chat")
    return Prefix(tenant, template, rendered, _header(request, "X-Epoch", LONGEST_EPOCH)), question


def _header(request: Request, name: str, longest: int, default: str = "") -> str:
    """A header as UTF-8. What no event can hold is refused here: what is answered must be told."""
    raw = request.headers.get(name)
    if raw is None:
        return default
    try:
        value = raw.encode("latin-1").decode()  # latin-1 is how Starlette reads every header
    except UnicodeDecodeError:
        raise InvalidField("is no UTF-8.", field=name, remedy="Send text in UTF-8.") from None
    if len(value) > longest:
        raise InvalidField(
            f"is longer than {longest} characters, which no event can hold.", field=name, remedy="Send a shorter one."
        )
    return value


def _limit(body: dict[str, Any]) -> int:
    given = body.get("max_tokens", body.get("max_completion_tokens", ANSWER_TOKENS))
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= LONGEST:
        raise InvalidField(f"is not between 1 and {LONGEST}.", field="max_tokens", remedy="Choose one in between.")
    return given
