"""Chat completions as OpenAI, vLLM and SGLang speak them; each has another genuine bypass."""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from .answers import Answer, Step
from .forms import (
    Bypass,
    Document,
    calls,
    cold,
    count,
    ids,
    lengthened,
    limited,
    malformed,
    mapping,
    name,
    no_pools,
    text,
    without,
)

TOP = 5


class ChatForm:
    """`POST /v1/chat/completions`. `pools`: whether the engine has `cache_salt`."""

    path = "/v1/chat/completions"

    def __init__(
        self, name: str, *, bypasses: tuple[Bypass, ...], extras: Mapping[str, Any], hidden: str, declines: str = "",
        pools: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.bypasses = bypasses
        self.extras: Mapping[str, Any] = {"logprobs": True, "top_logprobs": TOP, **extras}
        self.hidden = hidden
        self.declines = declines
        self._pools = pools

    def headers(self, key: str) -> dict[str, str]:
        """A bearer token."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def plain(self, model: str, system: str, question: str) -> Document:
        """A system message, where there is one, and the question."""
        messages = [{"role": "system", "content": system}] if system else []
        return {"model": model, "messages": [*messages, {"role": "user", "content": question}]}

    def prepared(self, request: Document, tokens: int) -> Document:
        """Greedy, one answer, no stream."""
        document = cold(request)
        limited(document, ("max_tokens", "max_completion_tokens"), tokens)
        return document

    def varied(self, request: Document, number: int) -> Document:
        """The last user message, a few words longer."""
        return {**request, "messages": lengthened(request.get("messages"), number)}

    def salted(self, request: Document, salt: str) -> Document:
        """Under the engine's `cache_salt`, which leaves the token ids alone."""
        if not self._pools:
            raise no_pools(self.name)
        return {**request, "cache_salt": salt}

    def marked(self, request: Document) -> Document:
        """With `user`, which engines and proxies log."""
        return {**request, "user": "kvtrail-probe"}

    def read(self, document: Document) -> Answer:
        """The first choice, and what `usage` says of the prompt."""
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices:
            raise malformed("no choices")
        choice = mapping(choices[0])
        message = choice.get("message")
        if not isinstance(message, dict):
            raise malformed("a choice without a message")
        if message.get("content") is None and not message.get("tool_calls"):
            raise malformed("a message without content")
        usage = mapping(document.get("usage"))
        prompt_logprobs = document.get("prompt_logprobs")
        own = mapping(document.get("kvtrail")) if self.name == "node" else {}
        return Answer(
            text=text(message.get("content")) + calls(message.get("tool_calls")),
            token_ids=ids(choice.get("token_ids")),
            steps=_steps(choice.get("logprobs")),
            cached_tokens=count(mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
            computed_tokens=len(prompt_logprobs) if isinstance(prompt_logprobs, list) and prompt_logprobs else None,
            prompt_tokens=count(usage.get("prompt_tokens")),
            prompt_ids=ids(document.get("prompt_token_ids")),
            model=name(document.get("model")),
            fingerprint=name(document.get("system_fingerprint")),
            finished=name(choice.get("finish_reason")),
            request_id=name(document.get("id")),
            key=name(own.get("key")),
            store=name(own.get("store")),
            tier=name(own.get("tier")),
            owner=name(own.get("node")),
        )


def _steps(logprobs: Any) -> tuple[Step, ...] | None:
    content = mapping(logprobs).get("content")
    if not isinstance(content, list) or not content:
        return None
    steps: list[Step] = []
    for each in content:
        token = mapping(each)
        value = token.get("logprob")
        if not isinstance(token.get("token"), str) or not _finite(value):
            return None
        top = [mapping(one) for one in token.get("top_logprobs") or []]
        steps.append(
            Step(
                text(token["token"]),
                float(value),
                tuple((text(one.get("token")), value) for one in top if _finite(value := one.get("logprob"))),
            )
        )
    return tuple(steps)


def _finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _salt(request: Document, nonce: str) -> Document:
    return {**request, "cache_salt": nonce}


def _prompt_logprobs(request: Document, nonce: str) -> Document:
    return {**request, "prompt_logprobs": 0}


def _explicit(request: Document, nonce: str) -> Document:
    stripped: Document = without(request, "prompt_cache_breakpoint")
    return {**stripped, "prompt_cache_options": {"mode": "explicit"}}


def _flag(request: Document, nonce: str) -> Document:
    return {**request, "kvtrail_bypass": True}


SALT = Bypass(name="cache-salt", does="a cache_salt used once: a pool of its own, the same token ids", apply=_salt)
VLLM = ChatForm(
    "vllm",
    bypasses=(
        SALT,
        Bypass(
            name="prompt-logprobs",
            does="prompt_logprobs 0: the engine skips reading, and shows each prompt token it computed",
            apply=_prompt_logprobs,
        ),
    ),
    extras={"return_token_ids": True},
    hidden="Start vLLM with --enable-prompt-tokens-details.",
    pools=True,
)
SGLANG = ChatForm("sglang", bypasses=(SALT,), extras={}, hidden="Start SGLang with --enable-cache-report.", pools=True)
OPENAI = ChatForm(
    "openai",
    bypasses=(
        Bypass(
            name="explicit-mode",
            does="prompt_cache_options.mode explicit and no breakpoint: nothing is read, nothing written",
            apply=_explicit,
        ),
    ),
    extras={},
    hidden="The endpoint, or the proxy in front of it, must pass usage.prompt_tokens_details.cached_tokens on.",
)
PLAIN = ChatForm(
    "openai-plain",
    bypasses=(),
    extras={},
    hidden="The server must report usage.prompt_tokens_details.cached_tokens.",
    declines=(
        "this form has no bypass that leaves the prompt as it is. Changed first words would be another prompt: what "
        "differs then may be the prompt. Name the engine with --form where it is vLLM, SGLang or a newer OpenAI model."
    ),
)
NODE = ChatForm(
    "node",
    bypasses=(Bypass(name="flag", does="the node's own flag: nothing is read, nothing written", apply=_flag),),
    extras={},
    hidden="kvtrail's cache node always reports them.",
)
