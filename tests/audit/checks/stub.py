"""An endpoint that answers in each wire form, healthy or faulty in a chosen way, on a real socket.

Its model is a hash: the answer follows from the words of the prompt that it believes it has. Its cache is a prefix
cache over blocks of words, in pools; the *believed* prefix of a hit is what the entry was made of.
"""

import asyncio
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

BLOCK = 16
TOKENS = 24
MODEL = "stub-7b"


@dataclass
class Behaviour:
    """What this stub does wrong; nothing by default."""

    shares_across_tenants: bool = False
    ignores_bypass: bool = False
    reports: str = "true"  # true, zero, always, hidden, null, none (no usage at all), garbage
    noise: str = ""  # "", random, tie (reuse turns a near tie), moved (a near tie, and numbers move), drift
    wrong_entry: bool = False  # keyed by the first four words only: whoever has them is served what was stored first
    logprobs: bool = True
    status: int = 0
    first_statuses: tuple[int, ...] = ()  # answered in turn before anything else
    after: int = 10**9  # requests that are answered before `status` is
    retry_after: str = ""
    body: bytes | None = None
    content_type: str = "application/json"
    hangs: bool = False
    drips: bool = False
    redirects: str = ""
    streams: bool = False
    no_choices: bool = False
    other_model: str = ""  # "", always, alternating
    refuses: tuple[str, ...] = ()  # fields that are refused with HTTP 400
    renames: dict[str, str] = field(default_factory=dict)  # fields that chat knows under another name only
    unicode: bool = False
    surrogates: bool = False
    padding: int = 0
    template_words: int = 0  # words that the engine puts in front of every prompt
    length: int = TOKENS
    cold_s: float = 0.0  # seconds per word that is not cached


@dataclass
class Entry:
    """What was stored for a run of blocks: the words it was computed from."""

    words: tuple[str, ...]


@dataclass
class Stub:
    """The endpoint: `url` while it runs, `seen` bodies and headers of every request since it last `became` another."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    pools: dict[tuple[str, ...], Entry] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    release: threading.Event = field(default_factory=threading.Event)

    def become(self, behaviour: Behaviour) -> "Stub":
        """Behave like this from now on, with nothing cached and nothing seen."""
        self.behaviour, self.numbers = replace(behaviour), itertools.count()  # a copy ends what still answers

        for each in (self.seen, self.headers, self.pools):
            each.clear()
        return self

    async def chat(self, request: Request) -> Response:
        """OpenAI, vLLM, SGLang and kvtrail's node."""
        return await self._answer(request, self._chat)

    async def messages(self, request: Request) -> Response:
        """Anthropic."""
        return await self._answer(request, self._messages)

    async def generate(self, request: Request) -> Response:
        """SGLang's own."""
        return await self._answer(request, self._generate)

    async def _answer(self, request: Request, form: Any) -> Response:
        wrong, number = self.behaviour, next(self.numbers)
        if wrong.hangs:
            while self.behaviour is wrong and not self.release.is_set():
                await asyncio.sleep(0.01)
        if wrong.redirects:
            return RedirectResponse(wrong.redirects, status_code=307)
        body = await request.json()
        self.seen.append(body)
        self.headers.append(dict(request.headers))
        statuses = wrong.first_statuses
        status = statuses[number] if number < len(statuses) else (wrong.status if number >= wrong.after else 0)
        if status:
            headers = {"Retry-After": wrong.retry_after} if wrong.retry_after else {}
            return JSONResponse({"error": {"message": "no"}}, status_code=status, headers=headers)
        for name in wrong.refuses:
            if name in body or name in body.get("sampling_params", {}):
                return JSONResponse({"error": {"message": f"Unsupported parameter: '{name}'"}}, status_code=400)
        for name, other in wrong.renames.items() if form == self._chat else ():
            if name in body:
                said = f"Unsupported parameter: '{name}' is not supported with this model. Use '{other}' instead."
                return JSONResponse({"error": {"message": said}}, status_code=400)
        if wrong.body is not None:
            return Response(wrong.body, media_type=wrong.content_type)
        if wrong.streams:
            return StreamingResponse(iter([b"data: {}\n\n", b"data: [DONE]\n\n"]), media_type="text/event-stream")
        if wrong.drips:
            return StreamingResponse(self._drip(), media_type="application/json")
        document = form(body, request)
        if wrong.surrogates:
            raw = json.dumps(document).replace(" w", " \\ud800w").replace(MODEL, "\\udfff")
            return Response(raw, media_type="application/json")
        if wrong.padding:
            document["padding"] = "x" * wrong.padding
        return JSONResponse(document)

    async def _drip(self) -> Any:
        wrong = self.behaviour
        while self.behaviour is wrong and not self.release.is_set():
            yield b" "
            await asyncio.sleep(0.02)

    def _chat(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        words = _words(body["messages"])
        options = body.get("prompt_cache_options") or {}
        skips = "prompt_logprobs" in body or options.get("mode") == "explicit" or body.get("kvtrail_bypass")
        told = self._run(words, self._pool(request, body.get("cache_salt", "")), reads=not skips, writes=not options)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": _text(told.tokens, self.behaviour.unicode)},
            "finish_reason": "stop",
        }
        if body.get("logprobs") and self.behaviour.logprobs:
            choice["logprobs"] = {"content": told.steps}
        document: dict[str, Any] = {
            "id": f"chatcmpl-{len(self.seen)}",
            "model": self._model(),
            "choices": [] if self.behaviour.no_choices else [choice],
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = told.tokens
            document["prompt_token_ids"] = [_id(word) for word in words]
        if "prompt_logprobs" in body:
            document["prompt_logprobs"] = [None, *({} for _ in range(told.prompt - 1))]
        if body.get("kvtrail_bypass") is not None or request.headers.get("x-node"):
            document["kvtrail"] = {"key": "support_v7:m1", "store": "nvme-cache", "tier": "nvme", "node": "n1"}
        return document | self._usage(
            told,
            lambda cached: {
                "prompt_tokens": told.prompt,
                "completion_tokens": len(told.tokens),
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        )

    def _messages(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        words = _words([{"content": body.get("system", "")}, *body["messages"]])
        asked = "cache_control" in repr(body)
        told = self._run(words, self._pool(request, ""), reads=asked, writes=asked)
        return {
            "id": f"msg_{len(self.seen)}",
            "type": "message",
            "model": self._model(),
            "content": [] if self.behaviour.no_choices else [{"type": "text", "text": _text(told.tokens, False)}],
            "stop_reason": "end_turn",
        } | self._usage(
            told,
            lambda cached: {
                "input_tokens": told.prompt - (cached or 0),
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0,
            },
        )

    def _generate(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        words = str(body["text"]).split()
        skips = body.get("logprob_start_len") == 0
        told = self._run(words, self._pool(request, body.get("cache_salt", "")), reads=not skips, writes=True)
        meta: dict[str, Any] = {
            "id": str(len(self.seen)),
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [
                [step["logprob"], token, None] for step, token in zip(told.steps, told.tokens, strict=True)
            ],
            "output_top_logprobs": [
                [[one["logprob"], _id(one["token"]), None] for one in step["top_logprobs"]] for step in told.steps
            ],
        }
        usage = self._usage(told, lambda cached: {"prompt_tokens": told.prompt, "cached_tokens": cached})
        if not self.behaviour.logprobs:
            del meta["output_token_logprobs"], meta["output_top_logprobs"]
        if self.behaviour.no_choices:
            return {}
        found = usage.get("usage")
        return {
            "text": _text(told.tokens, False),
            "output_ids": told.tokens,
            "meta_info": meta | (found if isinstance(found, dict) else {}),
        }

    def _usage(self, told: "Told", form: Any) -> dict[str, Any]:
        reports = self.behaviour.reports
        if reports == "none":
            return {}
        if reports == "garbage":
            return {"usage": ["many"]}
        cached = {"zero": 0, "always": told.prompt - 1, "hidden": None, "null": None}.get(reports, told.cached)
        usage = form(cached)
        if reports == "hidden":
            for name in ("prompt_tokens_details", "cached_tokens", "cache_read_input_tokens"):
                usage.pop(name, None)
        if reports == "null":
            usage = dict.fromkeys(usage)
        return {"usage": usage}

    def _model(self) -> str:
        if self.behaviour.other_model == "alternating":
            return f"{MODEL}-{len(self.seen) % 2}"
        return self.behaviour.other_model or MODEL

    def _pool(self, request: Request, salt: str) -> str:
        wrong = self.behaviour
        tenant = request.headers.get("x-tenant", "") + request.headers.get("authorization", "")
        tenant += request.headers.get("x-api-key", "")
        return ("" if wrong.ignores_bypass or (wrong.shares_across_tenants and salt.startswith("tenant")) else salt) + (
            "" if wrong.shares_across_tenants else tenant
        )

    def _run(self, asked: list[str], pool: str, *, reads: bool, writes: bool) -> "Told":
        wrong = self.behaviour
        words = [*(f"<template-{n}>" for n in range(wrong.template_words)), *asked]
        whole = (len(words) - 1) // BLOCK * BLOCK
        believed, cached = list(words), 0
        for length in range(whole, 0, -BLOCK) if reads or wrong.ignores_bypass else ():
            entry = self.pools.get(self._key(pool, words[:length]))
            if entry is not None:
                believed, cached = [*entry.words, *words[length:]], len(entry.words)
                break
        if writes:
            for length in range(BLOCK, whole + 1, BLOCK):
                self.pools.setdefault(self._key(pool, words[:length]), Entry(tuple(believed[:length])))
        if wrong.cold_s:
            time.sleep(wrong.cold_s * (len(words) - cached))
        told = Told(_generated(believed, wrong.length), cached, len(words))
        if wrong.noise == "random":
            told.tokens[wrong.length // 2] = 7000 + len(self.seen)
        elif wrong.noise in ("tie", "moved") and "more," not in asked:  # another wording has its ties elsewhere
            told.ties = wrong.length - 4
            if cached:
                told.flipped = True
                told.shift = 0.1 if wrong.noise == "moved" else 0.0
                told.tokens[told.ties :] = [token + 1 for token in told.tokens[told.ties :]]
        elif wrong.noise == "drift" and cached:
            told.shift = 1.5
        return told

    def _key(self, pool: str, words: list[str]) -> tuple[str, ...]:
        return (pool, str(len(words)), *(words[:4] if self.behaviour.wrong_entry else words))


@dataclass
class Told:
    """One generated answer. `ties`: index of the token that was a near tie, -1 for none, and whether it `flipped`;
    `shift`: how far its log-probabilities lie from what they would be."""

    tokens: list[int]
    cached: int
    prompt: int
    ties: int = -1
    flipped: bool = False
    shift: float = 0.0

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Sure of every token but the tie."""
        steps = []
        for index, token in enumerate(self.tokens):
            tie = index == self.ties
            logprob, behind = (-0.70, 0.05) if tie else (-0.05 - self.shift, 5.0)
            other = token + (-1 if self.flipped else 1) if tie else token + 9000
            steps.append(
                {
                    "token": _word(token),
                    "logprob": logprob,
                    "top_logprobs": [
                        {"token": _word(token), "logprob": logprob},
                        {"token": _word(other), "logprob": logprob - behind},
                    ],
                }
            )
        return steps


def _generated(words: list[str], length: int) -> list[int]:
    seed = hashlib.sha256(" ".join(words).encode()).digest()
    chain, tokens = seed, []
    for _ in range(length):
        chain = hashlib.sha256(chain).digest()
        tokens.append(1000 + int.from_bytes(chain[:2], "big") % 5000)
    return tokens


def _text(tokens: list[int], unicode: bool) -> str:
    return " ".join(_word(token) for token in tokens) + (" \u202e\U0001f9ca é" if unicode else "")


def _word(token: int) -> str:
    return f"w{token}"


def _id(word: str) -> int:
    return (
        int(word[1:])
        if word[:1] == "w" and word[1:].isdigit()
        else int(hashlib.sha256(word.encode()).hexdigest()[:6], 16)
    )


def _words(messages: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        texts = [content] if isinstance(content, str) else [block["text"] for block in content or ()]
        for text in texts:
            found += str(text).split()
    return found


@contextmanager
def serving(**tls: Any) -> Iterator[Stub]:
    """The stub on a free port of loopback, while the block runs; `tls`: uvicorn's options for a certificate."""
    stub = Stub()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", stub.chat, methods=["POST"]),
            Route("/v1/messages", stub.messages, methods=["POST"]),
            Route("/generate", stub.generate, methods=["POST"]),
            Route("/elsewhere", lambda request: PlainTextResponse("not JSON"), methods=["POST", "GET"]),
        ]
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", **tls)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.started
    port = server.servers[0].sockets[0].getsockname()[1]
    stub.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield stub
    finally:
        stub.release.set()
        server.should_exit = True
        thread.join(10)
