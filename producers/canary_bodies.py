"""Where an answer's text stands in the bodies that engines send: OpenAI chat, completions and responses, Anthropic
messages, Ollama; whole, or one event of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Channel = tuple[str, int, int]
"""Which of an answer's texts: its kind and places in it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One text in a document: `holder[name]`. `whole`: all of its channel, rather than the next piece of it. `end`:
    nothing of the channel follows; `holder` may be None then, where the document only says so."""

    channel: Channel
    holder: dict[str, Any] | None
    name: str = ""
    whole: bool = False
    end: bool = False

    @property
    def text(self) -> str:
        """The text, empty where there is none."""
        return str(self.holder[self.name]) if self.holder is not None else ""

    def put(self, text: str) -> None:
        """Another text in its place."""
        assert self.holder is not None
        self.holder[self.name] = text


def slots(document: Any) -> Iterator[Slot]:
    """Every text of an answer in `document`, in order. What is no body of an answer has none."""
    if not isinstance(document, dict):
        return
    kind = document.get("type")
    if isinstance(document.get("choices"), list):
        for choice in filter(_is_dict, document["choices"]):
            yield from _choice(choice)
    elif isinstance(kind, str) and (kind.startswith("content_block") or kind == "message_stop"):
        yield from _anthropic_event(document, kind)
    elif isinstance(kind, str) and kind.startswith("response."):
        yield from _responses_event(document, kind)
    elif isinstance(document.get("output"), list):
        for place, item in enumerate(filter(_is_dict, document["output"])):
            yield from _parts(item.get("content"), "output", place)
    elif isinstance(document.get("content"), list):
        yield from _parts(document["content"], "block", -1)
    elif _is_dict(document.get("message")) and isinstance(document["message"].get("content"), str):
        streaming = "done" in document
        yield Slot(
            ("message", 0, 0), document["message"], "content", whole=not streaming, end=bool(document.get("done", True))
        )


def _choice(choice: dict[str, Any]) -> Iterator[Slot]:
    index = choice["index"] if isinstance(choice.get("index"), int) else 0
    channel = ("choice", index, 0)
    over = choice.get("finish_reason") is not None
    message, delta = choice.get("message"), choice.get("delta")
    if isinstance(message, dict):
        if isinstance(message.get("content"), str):
            yield Slot(channel, message, "content", whole=True, end=True)
        else:
            yield from _parts(message.get("content"), "choice", index)
    elif isinstance(delta, dict):
        if isinstance(delta.get("content"), str):
            yield Slot(channel, delta, "content", end=over)
        elif over:
            yield Slot(channel, None, end=True)
    elif isinstance(choice.get("text"), str):
        yield Slot(channel, choice, "text", end=over)


def _parts(content: Any, kind: str, place: int) -> Iterator[Slot]:
    if isinstance(content, list):
        for number, part in enumerate(content):
            if _is_dict(part) and part.get("type") in ("text", "output_text") and isinstance(part.get("text"), str):
                yield Slot((kind, place, number), part, "text", whole=True, end=True)


def _anthropic_event(document: dict[str, Any], kind: str) -> Iterator[Slot]:
    index = document["index"] if isinstance(document.get("index"), int) else 0
    channel = ("block", -1, index)
    if kind == "content_block_delta":
        delta = document.get("delta")
        if isinstance(delta, dict) and isinstance(delta.get("text"), str):
            yield Slot(channel, delta, "text")
    elif kind == "content_block_start":
        block = document.get("content_block")
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            yield Slot(channel, block, "text")
    elif kind == "content_block_stop":
        yield Slot(channel, None, end=True)


def _responses_event(document: dict[str, Any], kind: str) -> Iterator[Slot]:
    place, number = (document[name] if isinstance(document.get(name), int) else 0
                     for name in ("output_index", "content_index"))  # fmt: skip
    channel = ("output", place, number)
    if kind == "response.output_text.delta" and isinstance(document.get("delta"), str):
        yield Slot(channel, document, "delta")
    elif kind == "response.output_text.done":
        yield Slot(channel, None, end=True)
        if isinstance(document.get("text"), str):
            yield Slot(channel, document, "text", whole=True)
    elif _is_dict(document.get("part")):
        yield from _parts([document["part"]], "output", place)
    elif _is_dict(document.get("item")):
        yield from _parts(document["item"].get("content"), "output", place)
    elif _is_dict(document.get("response")):
        yield from slots({"output": document["response"].get("output")})


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)
