"""Anthropic's messages: the cache is asked for with breakpoints, so the bypass is to leave them out."""

import copy
from collections.abc import Mapping
from typing import Any

from .answers import Answer
from .forms import (
    Bypass,
    Document,
    calls,
    cold,
    count,
    lengthened,
    limited,
    malformed,
    mapping,
    name,
    no_pools,
    text,
    without,
)

VERSION = "2023-06-01"
BREAKPOINT = {"type": "ephemeral"}


def _stripped(request: Document, nonce: str) -> Document:
    document: Document = without(request, "cache_control")
    return document


class MessagesForm:
    """`POST /v1/messages`, also as vLLM and SGLang offer it (there the cache does not ask for breakpoints, and the
    report of cached tokens shows that leaving them out bypasses nothing)."""

    name = "anthropic"
    path = "/v1/messages"
    bypasses: tuple[Bypass, ...] = (
        Bypass(name="no-breakpoint", does="no cache_control: nothing is read, nothing written", apply=_stripped),
    )
    declines = ""
    extras: Mapping[str, Any] = {}
    hidden = "The endpoint must report usage.cache_read_input_tokens."

    def headers(self, key: str) -> dict[str, str]:
        """`x-api-key`, and the version of the interface."""
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def plain(self, model: str, system: str, question: str) -> Document:
        """The system prompt, cached up to its end, and the question."""
        document: Document = {"model": model, "messages": [{"role": "user", "content": question}]}
        if system:
            document["system"] = [{"type": "text", "text": system, "cache_control": dict(BREAKPOINT)}]
        return document

    def prepared(self, request: Document, tokens: int) -> Document:
        """Greedy, no stream, with a breakpoint where the request has none."""
        document = without(cold(request), "diagnostics")
        limited(document, ("max_tokens",), tokens)
        if not _has_breakpoint(document):
            _set_breakpoint(document)
        assert isinstance(document, dict)
        return document

    def varied(self, request: Document, number: int) -> Document:
        """A block of text of its own behind the last breakpoint."""
        return {**request, "messages": lengthened(request.get("messages"), number, as_block=True)}

    def salted(self, request: Document, salt: str) -> Document:
        """There are no pools to name."""
        raise no_pools(self.name)

    def marked(self, request: Document) -> Document:
        """With `metadata.user_id`."""
        return {**request, "metadata": {"user_id": "kvtrail-probe"}}

    def read(self, document: Document) -> Answer:
        """The text of all blocks; `input_tokens` excludes what was read or written, so the parts are summed."""
        content = document.get("content")
        if not isinstance(content, list) or not content:
            raise malformed("no content")
        blocks = [mapping(block) for block in content]
        said = "".join(text(block.get("text")) if block.get("type") == "text" else calls([block]) for block in blocks)
        usage = mapping(document.get("usage"))
        read = count(usage.get("cache_read_input_tokens"))
        parts = (count(usage.get("input_tokens")), read, count(usage.get("cache_creation_input_tokens")))
        return Answer(
            text=said,
            cached_tokens=read,
            prompt_tokens=sum(part or 0 for part in parts) if parts[0] is not None else None,
            model=name(document.get("model")),
            finished=name(document.get("stop_reason")),
            request_id=name(document.get("id")),
        )


def _has_breakpoint(value: Any) -> bool:
    if isinstance(value, dict):
        return "cache_control" in value or any(_has_breakpoint(inner) for inner in value.values())
    return isinstance(value, list) and any(_has_breakpoint(inner) for inner in value)


def _set_breakpoint(document: Document) -> None:
    """At the end of the system prompt, else of the last message: what most applications do."""
    system = document.get("system")
    if isinstance(system, str) and system:
        document["system"] = [{"type": "text", "text": system, "cache_control": dict(BREAKPOINT)}]
        return
    if isinstance(system, list) and system and isinstance(system[-1], dict):
        document["system"] = [*system[:-1], {**system[-1], "cache_control": dict(BREAKPOINT)}]
        return
    messages = copy.deepcopy(document.get("messages"))
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        content = messages[-1].get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if isinstance(content, list) and content and isinstance(content[-1], dict):
            messages[-1]["content"] = [*content[:-1], {**content[-1], "cache_control": dict(BREAKPOINT)}]
            document["messages"] = messages


ANTHROPIC = MessagesForm()
