"""Puts a canary's sentence into a chat request, where the engine will cache it."""

from collections.abc import Mapping
from typing import Any

from ..schemas.errors import InvalidField


def with_sentence(request: Mapping[str, Any], sentence: str) -> dict[str, Any]:
    """The body with the sentence first in its system prompt; a system prompt where there was none.

    Anthropic-style bodies say `system` beside `messages`; where it is blocks, the sentence becomes a block of its own
    in front, so that a cache breakpoint behind it covers it. Raises `InvalidField`.
    """
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise InvalidField("is no list of messages.", field="messages", remedy="Pass the body of a chat request.")
    system = request.get("system")
    if isinstance(system, str):
        return {**request, "system": f"{sentence}\n{system}"}
    if isinstance(system, list):
        return {**request, "system": [{"type": "text", "text": sentence}, *system]}
    first = messages[0] if messages and isinstance(messages[0], Mapping) else {}
    if first.get("role") not in ("system", "developer"):
        return {**request, "messages": [{"role": "system", "content": sentence}, *messages]}
    content = first.get("content")
    if isinstance(content, list):
        content = [{"type": "text", "text": sentence}, *content]
    else:
        content = f"{sentence}\n{content or ''}"
    return {**request, "messages": [{**first, "content": content}, *messages[1:]]}
