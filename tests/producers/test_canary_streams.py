"""Answers on their way: the field is found and taken out wherever the bytes are cut, and nothing else is touched."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.producers import canary_stream
from kvtrail.producers.canary import Canary
from kvtrail.producers.canary_bodies import slots
from kvtrail.producers.canary_documents import DocumentReading, TextReading
from kvtrail.producers.canary_field import LONGEST, FieldPattern, FieldReader
from kvtrail.producers.canary_keys import CanaryKey
from kvtrail.producers.canary_reading import Reading
from kvtrail.producers.canary_stream import EventReading

CANARY = Canary([CanaryKey("k", b"s" * 32)], ["contoso", "northwind"])
MARKER = CANARY.marker("contoso")
PATTERN = FieldPattern("ref")
ANSWER = "Innerhalb von 14 Tagen — gern! 🌊"
PLAIN = f"[ref: {MARKER}] {ANSWER}"
JSON_ANSWER = f'{{"ref": "{MARKER}", "answer": "{ANSWER}"}}'


def reading(kind: type[Reading], *, strip: bool = True, limit: int = 1 << 20) -> Reading:
    return kind(PATTERN, CANARY.is_attempt, strip=strip, limit=limit)


def through(reader: Reading, chunks: Iterable[bytes]) -> bytes:
    return b"".join([*(reader.feed(chunk) for chunk in chunks), reader.end()])


# What a client makes of a body -----------------------------------------------------------------------------------


def events_of(stream: bytes) -> Iterator[str]:
    """The data of each event, as a browser would read them."""
    for block in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n\n"):
        data = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if data:
            yield "\n".join(data)


def text_of(stream: bytes, choice: int = 0) -> str:
    """What a client shows of one choice of a stream of any style."""
    shown = ""
    for data in events_of(stream):
        if data != "[DONE]":
            for slot in slots(json.loads(data)):
                if (
                    slot.holder is not None
                    and not slot.whole
                    and (slot.channel[0] != "choice" or slot.channel[1] == choice)
                ):
                    shown += slot.text
    return shown


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def openai(parts: list[str], *, eol: str = "\n", end: str = "\n") -> bytes:
    lines = [f": keep-alive{eol}{eol}"]
    first: dict[str, Any] = {"role": "assistant", "content": ""}
    for delta in [first, *({"content": part} for part in parts)]:
        document = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        lines.append(f"data: {json.dumps(document, ensure_ascii=False)}{eol}{eol}")
    done = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    lines.append(f"data: {json.dumps(done)}{eol}{eol}data: [DONE]{eol}{eol}")
    return "".join(lines).encode()


def completions(parts: list[str], *, eol: str = "\n") -> bytes:
    documents = [{"choices": [{"text": part, "index": 0, "finish_reason": None}]} for part in parts]
    documents[-1]["choices"][0]["finish_reason"] = "length"
    return "".join(f"data:{json.dumps(one)}{eol}{eol}" for one in documents).encode()


def anthropic(parts: list[str], *, eol: str = "\n") -> bytes:
    documents: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}} for part in parts),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    return "".join(
        f"event: {one['type']}{eol}data: {json.dumps(one, ensure_ascii=False)}{eol}{eol}" for one in documents
    ).encode()


def responses(parts: list[str], *, eol: str = "\n") -> bytes:
    where = {"output_index": 0, "content_index": 0}
    whole = "".join(parts)
    documents: list[dict[str, Any]] = [
        *({"type": "response.output_text.delta", **where, "delta": part} for part in parts),
        {"type": "response.output_text.done", **where, "text": whole},
        {
            "type": "response.completed",
            "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": whole}]}]},
        },
    ]
    return "".join(f"event: {one['type']}{eol}data: {json.dumps(one)}{eol}{eol}" for one in documents).encode()


STYLES: dict[str, Callable[..., bytes]] = {
    "openai": openai, "completions": completions, "anthropic": anthropic, "responses": responses,
}  # fmt: skip


# Streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_stream_cut_anywhere_reads_the_same(style: str, eol: str, size: int) -> None:
    stream = STYLES[style](pieces(PLAIN, size), eol=eol)
    whole = through(reading(EventReading), [stream])
    assert text_of(whole) == ANSWER
    assert MARKER.encode() not in whole
    for at in range(1, len(stream), 1 if (size, eol) == (7, "\r\n") else 53):
        reader = reading(EventReading)
        assert text_of(through(reader, [stream[:at], stream[at:]])) == ANSWER, at
        assert reader.fields[0].strip() == MARKER and reader.failed == 0


@pytest.mark.parametrize("style", STYLES)
def test_byte_by_byte_too(style: str) -> None:
    stream = STYLES[style](pieces(PLAIN, 5))
    reader = reading(EventReading)
    assert text_of(through(reader, [bytes([byte]) for byte in stream])) == ANSWER
    watching = reading(EventReading, strip=False)
    assert through(watching, [bytes([byte]) for byte in stream]) == stream
    assert watching.fields[0].strip() == MARKER


@given(st.lists(st.integers(0, 2000), max_size=12), st.sampled_from(sorted(STYLES)), st.integers(1, 40), st.data())
def test_any_cuts_of_any_answer(cuts: list[int], style: str, size: int, data: st.DataObject) -> None:
    """Whatever the model writes around it, the text is what it wrote, without the field."""
    alphabet = st.sampled_from([*'[]{}",: ref\n—é🌊ab', "[ref", '\\"'])
    front = "".join(data.draw(st.lists(alphabet, max_size=6)))
    behind = "".join(data.draw(st.lists(alphabet, max_size=20)))
    text = f"{front}[ref: {MARKER}]{behind}"
    stream = STYLES[style](pieces(text, size))
    at = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    reader = reading(EventReading)
    sent = through(reader, [stream[low:high] for low, high in pairwise(at)])
    found = reader.fields
    if found:
        shown = text_of(sent)
        assert shown in (front + behind, front + behind.lstrip(), front.rstrip(", \n") + behind, front + behind[1:])
    else:
        assert text_of(sent) == text


@given(st.text(max_size=120), st.integers(1, 9), st.sampled_from(sorted(STYLES)))
def test_an_answer_without_a_field_is_not_touched(text: str, size: int, style: str) -> None:
    stream = STYLES[style](pieces(text or "-", size))
    sent = through(reading(EventReading), [stream])
    assert text_of(sent) == text_of(stream)
    if not set('[",') & set(text):
        assert sent == stream


def one_event(part: str) -> bytes:
    document = {"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]}
    return f"data: {json.dumps(document)}\n\n".encode()


def test_every_event_goes_on_at_once_and_text_waits_for_a_field_only() -> None:
    reader = reading(EventReading)
    for part in ["Good", " morning", ": dear", " [1] friend"]:
        assert reader.feed(one_event(part)) == one_event(part)
    waiting = reader.feed(one_event("[re"))
    assert waiting.endswith(b"\n\n") and text_of(waiting) == ""
    assert text_of(reader.feed(one_event("ally] so"))) == "[really] so"


@pytest.mark.parametrize("style", ["openai", "anthropic", "responses"])
def test_what_is_held_back_at_the_end_is_sent_before_the_end(style: str) -> None:
    sent = list(events_of(through(reading(EventReading), [STYLES[style](["See [ref: tiger"])])))
    assert text_of("".join(f"data: {data}\n\n" for data in sent).encode()) == "See [ref: tiger"
    last_text = max(
        at for at, data in enumerate(sent) if " tiger" in data and ".done" not in data and "completed" not in data
    )
    over = ("stop", "content_block_stop", "output_text.done")
    assert last_text < min(at for at, data in enumerate(sent) if any(word in data for word in over))


def test_what_is_held_back_when_a_stream_is_cut_off_is_sent() -> None:
    stream = one_event("See [ref: tiger")
    assert text_of(through(reading(EventReading), [stream])) == "See [ref: tiger"
    sent = through(reading(EventReading), [stream, b'data: {"choices'])
    assert sent.endswith(b'data: {"choices') and text_of(sent[: -len(b'data: {"choices')]) == "See [ref: tiger"


def test_half_a_surrogate_pair_is_passed_on() -> None:
    sent = through(reading(EventReading), [one_event(f"[ref: {MARKER}] \ud83c"), one_event("\udf0a!")])
    assert text_of(sent) == "\ud83c\udf0a!"


def test_choices_are_told_apart() -> None:
    def event(index: int, text: str) -> bytes:
        document = {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}
        return f"data: {json.dumps(document)}\n\n".encode()

    half = len(MARKER) // 2
    stream = [
        event(0, f"[ref: {MARKER[:half]}"),
        event(1, "Hello [r"),
        event(0, f"{MARKER[half:]}] A"),
        event(1, "x] B"),
    ]
    reader = reading(EventReading)
    sent = through(reader, stream)
    assert (text_of(sent, 0), text_of(sent, 1)) == ("A", "Hello [rx] B")
    assert reader.texts == [f"[ref: {MARKER}] A", "Hello [rx] B"]


def test_lines_that_are_no_data_stay_as_they_are() -> None:
    document = {"choices": [{"index": 0, "delta": {"content": f"[ref: {MARKER}] Hi"}}]}
    event = f": note\r\nid: 7\r\nevent: x\r\ndata: {json.dumps(document)}\r\nretry: 5\r\n\r\n".encode()
    sent = through(reading(EventReading), [event])
    assert sent.startswith(b": note\r\nid: 7\r\nevent: x\r\ndata: {") and sent.endswith(b"}\r\nretry: 5\r\n\r\n")
    assert text_of(sent) == "Hi"
    lines = json.dumps(document, indent=1).split("\n")
    several = "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
    assert text_of(through(reading(EventReading), [several])) == "Hi"


@pytest.mark.parametrize(
    "odd",
    [b"data: not json\n\n", b"data: [1]\n\n", b'data: {"choices": [7, null]}\n\n', b"event: ping\n\n", b":\n\n",
     b"\n\n\n", b'data: {"choices":[{"delta":{"content":null,"tool_calls":[]}}]}\n\n',
     b'data: {"type": 7}\n\n', b"\xff\xfe\n\n",
     b'data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n', b'data: {"type":"content_block_delta"}\n\n'],
)  # fmt: skip
def test_what_is_no_answers_event_goes_on_as_it_is(odd: bytes) -> None:
    assert through(reading(EventReading), [odd]) == odd
    behind = openai(pieces(PLAIN, 4))
    reader = reading(EventReading)
    assert text_of_lenient(through(reader, [odd + behind])).lstrip() == ANSWER


def text_of_lenient(stream: bytes) -> str:
    at = stream.index(b": keep-alive")
    return text_of(stream[at:])


def test_an_event_that_is_too_large_ends_the_reading_and_not_the_stream() -> None:
    stream = openai(["Hi [re", "x" * 5000, "[ref: unread]"])
    reader = reading(EventReading, limit=1000)
    sent = through(reader, [stream[at : at + 100] for at in range(0, len(stream), 100)])
    assert text_of(sent) == "Hi [re" + "x" * 5000 + "[ref: unread]"
    assert reader.trouble == "one of its events is too large"


# Documents and text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"message": {"role": "assistant", "content": PLAIN}, "finish_reason": "stop"}], "usage": {"n": 1}},
        {"choices": [{"message": {"content": [{"type": "text", "text": PLAIN}]}}]},
        {"choices": [{"text": PLAIN}]},
        {"type": "message", "content": [{"type": "thinking", "thinking": "."}, {"type": "text", "text": PLAIN}]},
        {"output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": PLAIN}]}]},
        {"message": {"role": "assistant", "content": PLAIN}, "done": True},
    ],
)
def test_a_document_is_the_same_without_the_field(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    for at in range(0, len(body), 11):
        reader = reading(DocumentReading)
        sent = through(reader, [body[:at], body[at:]])
        assert json.dumps(json.loads(sent)) == json.dumps(document).replace(json.dumps(f"[ref: {MARKER}] ")[1:-1], "")
        assert reader.fields[0].strip() == MARKER
    watching = reading(DocumentReading, strip=False)
    assert through(watching, [body]) == body
    assert watching.fields[0].strip() == MARKER


@pytest.mark.parametrize(
    "body", [b"", b"not json", b'{"choices": "x"}', b"[]", b"null", b'{"choices":[{"message":{"content":"Hi"}}]}']
)
def test_a_document_without_a_field_goes_on_as_it_is(body: bytes) -> None:
    assert through(reading(DocumentReading), [body[:3], body[3:]]) == body


def test_a_document_that_is_too_large_goes_on_as_it_is() -> None:
    body = json.dumps({"choices": [{"message": {"content": PLAIN + "x" * 3000}}]}).encode()
    reader = reading(DocumentReading, limit=1000)
    assert through(reader, [body[at : at + 100] for at in range(0, len(body), 100)]) == body
    assert reader.trouble == "it is too large" and reader.fields == []


def test_plain_text_cut_at_every_byte() -> None:
    body = PLAIN.encode()
    for low in range(len(body) + 1):
        reader = reading(TextReading)
        assert through(reader, [body[:low], body[low:]]).decode() == ANSWER
        assert reader.fields == [f" {MARKER}"]
    assert through(reading(TextReading), [b"caf\xc3"]) == b"caf\xc3"
    broken = reading(TextReading)
    assert through(broken, [b"Hi [re\xff\xfe", b" there"]) == b"Hi [re\xff\xfe there" and broken.failed == 1


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (JSON_ANSWER, f'{{"answer": "{ANSWER}"}}'),
        (f'{{"answer": "{ANSWER}", "ref": "{MARKER}"}}', f'{{"answer": "{ANSWER}"}}'),
        (f'{{"a": 1,\n  "ref" : "{MARKER}",\n  "b": 2}}', '{"a": 1,\n  "b": 2}'),
        (f'{{"ref": "{MARKER}"}}', "{}"),
    ],
)
def test_a_member_of_a_json_answer_goes_with_its_comma(answer: str, left: str) -> None:
    for size in range(1, len(answer) + 1, 5):
        reader = FieldReader(PATTERN, CANARY.is_attempt, strip=True)
        shown = "".join([*(reader.feed(piece) for piece in pieces(answer, size)), reader.end()])
        assert shown == left and json.loads(shown) == json.loads(left)
        assert reader.found == [MARKER]


@pytest.mark.parametrize(
    "text",
    [
        "[ref: 12]",
        "[reference] list",
        "[ref]",
        "[ref: apple, melon]",
        'the "ref": "none" of it',
        "[[ref: a]]",
        "[ref: ",
    ],
)
def test_somebodys_citation_stays(text: str) -> None:
    reader = FieldReader(PATTERN, CANARY.is_attempt, strip=True)
    assert "".join([*(reader.feed(letter) for letter in text), reader.end()]) == text
    assert reader.found == []


@given(st.text(alphabet=st.sampled_from('[ref: "],{}\n ab'), max_size=400))
def test_never_much_is_held_back_and_nothing_is_lost(text: str) -> None:
    reader = FieldReader(PATTERN, CANARY.is_attempt, strip=True)
    shown = ""
    for letter in text:
        shown += reader.feed(letter)
        assert len(reader.held) <= LONGEST
    assert shown + reader.end() == text


def test_a_long_text_of_nothing_but_beginnings_is_read_in_one_go() -> None:
    """Reading it anew for each beginning would outlast the test's limit."""
    text = ',"[' * 300_000
    reader = FieldReader(PATTERN, CANARY.is_attempt, strip=True)
    assert reader.feed(text) + reader.end() == text


# Errors of ours --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["slots", "_with_data", "json.loads", "FieldReader.feed"])
@pytest.mark.parametrize("after", [1, 3, 6])
@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_an_error_of_ours_costs_the_check_and_not_a_letter(
    monkeypatch: pytest.MonkeyPatch, where: str, after: int, style: str
) -> None:
    """Before the field, while it is held back, and behind it: the client sees all there was, maybe with the field."""
    name = where.rpartition(".")[2]
    target = {"slots": canary_stream, "_with_data": canary_stream, "json.loads": json, "FieldReader.feed": FieldReader}[
        where
    ]
    real = getattr(target, name)
    calls = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise RuntimeError
        return real(*args, **kwargs)

    text = f"See [ref] [ref: {MARKER}] {ANSWER}"
    stream = STYLES[style](pieces(text, 9))
    reader = reading(EventReading)
    with monkeypatch.context() as patch:
        patch.setattr(target, name, failing)
        sent = through(reader, [stream[at : at + 23] for at in range(0, len(stream), 23)])
    assert reader.failed == 1 or calls <= after
    assert text_of(sent) in (text, text.replace(f"[ref: {MARKER}]", ""))


def test_an_error_in_a_document_or_text_leaves_it_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(FieldReader, "feed", failing)
    body = json.dumps({"choices": [{"message": {"content": PLAIN}}]}).encode()
    for kind, sent in ((DocumentReading, body), (TextReading, PLAIN.encode())):
        reader = reading(kind)
        assert through(reader, [sent[:20], sent[20:]]) == sent and reader.failed == 1
