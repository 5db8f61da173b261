"""Wire forms: how a kind of endpoint is asked, with reuse and with a genuine bypass, and how its answer is read.

A form is pure. What counts as a bypass is what keeps the token ids as they are: a flag, a separate pool, a breakpoint
left out. A salt inside the prompt is none: it is another prompt.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from .answers import Answer, NoAnswer, Trouble

Document = dict[str, Any]
LONGEST_NAME = 512
AGAIN = "(Asked once more, {number}.)"


class Bypass(Struct, frozen=True, kw_only=True):
    """One genuine bypass: what it does in words, and the request changed to use it (`nonce` is new each time)."""

    name: str
    does: str
    apply: Callable[[Document, str], Document]


class Form(Protocol):
    """A kind of endpoint. `bypasses`: best first, none where there is no genuine one; `declines` says why then.
    `extras`: fields asked for that not every server knows. `hidden`: what makes a server tell its cached tokens."""

    name: str
    path: str
    bypasses: tuple[Bypass, ...]
    declines: str
    extras: Mapping[str, Any]
    hidden: str

    def headers(self, key: str) -> dict[str, str]:
        """The headers that carry an API key."""

    def plain(self, model: str, system: str, question: str) -> Document:
        """A request in this form."""

    def prepared(self, request: Document, tokens: int) -> Document:
        """The request as it is sent: temperature 0, one answer, no stream, at most `tokens` tokens."""

    def varied(self, request: Document, number: int) -> Document:
        """The request with a few words added behind everything that can be cached; the request itself where nothing
        can be added."""

    def read(self, document: Document) -> Answer:
        """The answer in a response. Raises `NoAnswer` for one that holds none."""

    def salted(self, request: Document, salt: str) -> Document:
        """The request in a pool of its own. Raises `NoAnswer` where the form has no pools."""

    def marked(self, request: Document) -> Document:
        """The request with a mark by which operators know it."""


def malformed(what: str) -> NoAnswer:
    """A response that says less than an answer does."""
    return NoAnswer(
        Trouble.MALFORMED, f"answered with {what}.", remedy="Check that the form (--form) is the endpoint's."
    )


def no_pools(form: str) -> NoAnswer:
    """A form that cannot put a request into a pool of its own."""
    return NoAnswer(
        Trouble.REQUEST_REFUSED, f"has no field for a pool of its own ({form}).", remedy="Use --by api-key or header."
    )


def without(value: Any, name: str) -> Any:
    """A copy of a JSON value in which no object has a field of this name."""
    if isinstance(value, dict):
        return {key: without(inner, name) for key, inner in value.items() if key != name}
    if isinstance(value, list):
        return [without(inner, name) for inner in value]
    return value


def cold(request: Document) -> Document:
    """A copy of the request with greedy decoding, one answer and no stream."""
    document = copy.deepcopy(request)
    for name in ("stream_options", "top_p", "top_k", "min_p", "n", "best_of"):
        document.pop(name, None)
    document["temperature"] = 0
    document["stream"] = False
    return document


def limited(document: Document, names: tuple[str, ...], tokens: int) -> None:
    """Set the limit of generated tokens, under the name that the request uses; the first name by default."""
    name = next((one for one in names if one in document), names[0])
    given = document.get(name)
    own = given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else tokens
    document[name] = min(own, tokens)


def lengthened(messages: Any, number: int, *, as_block: bool = False) -> Any:
    """Messages whose last user turn has a few words more, as text of its own behind any breakpoint."""
    added = AGAIN.format(number=number)
    found = copy.deepcopy(messages)
    for message in reversed(found if isinstance(found, list) else []):
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        content = message.get("content")
        block = {"type": "text", "text": added}
        if isinstance(content, list):
            message["content"] = [*content, block]
        elif as_block:
            message["content"] = [{"type": "text", "text": str(content)}, block]
        else:
            message["content"] = f"{content}\n{added}"
        break
    return found


def count(value: Any) -> int | None:
    """A count of tokens as JSON has it; None for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def ids(value: Any) -> tuple[int, ...] | None:
    """Token ids as JSON has them; None for what are none."""
    if isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        return tuple(value)
    return None


def calls(value: Any) -> str:
    """Tool calls as comparable text: their ids are random, and no part of the answer."""
    return json.dumps(without(value, "id"), sort_keys=True) if value else ""


def mapping(value: Any) -> Document:
    """A JSON object, empty for anything else."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """A JSON string as text that can be sent on, empty for anything else: half a surrogate pair becomes `?`."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def name(value: Any) -> str:
    """What an endpoint calls something: text, of a length that an event has room for."""
    return text(value)[:LONGEST_NAME]
