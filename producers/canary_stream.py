"""An answer's bytes on their way: events of a stream, one JSON document, or plain text, read and, where asked, with
the canary's field taken out.

Whatever goes wrong here, the bytes go on as they came, with what was held back before them.
"""

import codecs
import json
import re
from typing import Any

from .canary_bodies import Channel, Slot, slots
from .canary_field import FieldPattern, FieldReader, Ours
from .telling import log

LIMIT = 1 << 20
KEPT = 8192
_HERE = "\x00kvtrail\x00"
_EVENT = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"(?>\r\n|\n|\r)")


class Reading:
    """What is read of one answer. `texts`: the first characters of each of its texts; `failed`: errors of ours, after
    the first of which nothing is changed any more; `trouble`: why there may be more than was read."""

    def __init__(self, pattern: FieldPattern, ours: Ours, *, strip: bool, limit: int = LIMIT) -> None:
        self.failed = 0
        self.trouble = ""
        self._pattern, self._ours, self._strip, self._limit = pattern, ours, strip, limit
        self._readers: dict[Channel, FieldReader] = {}
        self._kept: dict[Channel, str] = {}
        self._sure: dict[Channel, str] = {}

    @property
    def fields(self) -> list[str]:
        """What the fields held."""
        return [found for reader in self._readers.values() for found in reader.found]

    @property
    def texts(self) -> list[str]:
        """The beginning of each text."""
        return list(self._kept.values())

    def feed(self, data: bytes) -> bytes:
        """The bytes to send for these."""
        if self.trouble:
            return data
        try:
            return self._feed(data)
        except Exception as error:
            return self.stop(error) + self.unsent()

    def end(self) -> bytes:
        """The bytes to send at the end."""
        if self.trouble:
            return b""
        try:
            return self._end()
        except Exception as error:
            return self.stop(error) + self.unsent()

    def stop(self, error: Exception) -> bytes:
        """Change nothing from now on: what was held back of the texts, to be sent before anything else."""
        self.failed += 1
        self.trouble = "it could not be read"
        log.debug("an answer could not be read for its canary: %s", type(error).__name__)
        # Of what failed, nothing was sent: what its texts added is sent with it, as it came.
        for channel, reader in self._readers.items():
            reader.held = self._sure.get(channel, "")
        return self._rest()

    def _settle(self) -> None:
        """All that was read has been sent, but for what readers hold now."""
        self._sure = {channel: reader.held for channel, reader in self._readers.items() if reader.held}

    def _feed(self, data: bytes) -> bytes:
        raise NotImplementedError

    def _end(self) -> bytes:
        raise NotImplementedError

    def unsent(self) -> bytes:
        """Bytes that came and were not sent, as they came."""
        raise NotImplementedError

    def _rest(self) -> bytes:
        """What readers hold, as bytes of this kind of body."""
        return b""

    def _give_up(self, why: str) -> bytes:
        self.trouble = why
        return self._rest() + self.unsent()

    def _read(self, channel: Channel, text: str, *, whole: bool = False, end: bool = False) -> str:
        """What may be shown of a text, or of the next piece of it."""
        kept = self._kept.get(channel, "")
        if len(kept) < KEPT and not (whole and kept):
            self._kept[channel] = (kept + text)[:KEPT]
        if whole:
            reader = FieldReader(self._pattern, self._ours, strip=self._strip)
            shown = reader.feed(text) + reader.end()
            self._readers.setdefault(channel, reader)
            return shown
        reader = self._readers.get(channel) or self._readers.setdefault(
            channel, FieldReader(self._pattern, self._ours, strip=self._strip)
        )
        shown = reader.feed(text)
        return shown + reader.end() if end else shown


class EventReading(Reading):
    """Server-sent events. Each goes on as soon as it is whole; one that is changed keeps its other lines."""

    def __init__(self, pattern: FieldPattern, ours: Ours, *, strip: bool, limit: int = LIMIT) -> None:
        super().__init__(pattern, ours, strip=strip, limit=limit)
        self._buffer = bytearray()
        self._from = 0
        self._around: dict[Channel, tuple[bytes, bytes]] = {}

    def _feed(self, data: bytes) -> bytes:
        self._buffer += data
        sent: list[bytes] = []
        while (edge := _EVENT.search(self._buffer, max(0, self._from - 4))) is not None:
            event = bytes(self._buffer[: edge.end()])
            try:
                changed = self._event(event)
            except Exception as error:
                return b"".join(sent) + self.stop(error) + self.unsent()
            del self._buffer[: edge.end()]
            self._from = 0
            self._settle()
            sent.append(changed)
        self._from = len(self._buffer)
        if len(self._buffer) > self._limit:
            sent.append(self._give_up("one of its events is too large"))
        return b"".join(sent)

    def _end(self) -> bytes:
        # What was cut off is no event: it is read as far as it goes, and nothing is put behind it.
        if not self._strip and self._buffer.strip():
            self._event(bytes(self._buffer))
        return self._rest() + self.unsent()

    def unsent(self) -> bytes:
        unsent = bytes(self._buffer)
        self._buffer.clear()
        return unsent

    def _event(self, event: bytes) -> bytes:
        lines = _LINE.split(event)
        told = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        if not told:
            return event
        data = b"\n".join(told)
        if data.strip() == b"[DONE]":
            return self._rest() + event
        try:
            document = json.loads(data)
        except ValueError:
            self._read(("lines", 0, 0), data.decode("utf-8", "replace"), whole=True)
            return event
        before, changed = self._changed(document, event)
        return before + (_with_data(event, document) if changed else event)

    def _changed(self, document: Any, event: bytes) -> tuple[bytes, bool]:
        before, changed = b"", False
        found = list(slots(document))
        for slot in found:
            if slot.holder is None:
                before += self._rest(slot.channel)
                continue
            shown = self._read(slot.channel, slot.text, whole=slot.whole, end=slot.end)
            if not slot.whole and self._strip and self._readers[slot.channel].held:
                self._prepare(slot, found, document, event)
            if shown != slot.text:
                slot.put(shown)
                changed = True
        return before, changed

    def _prepare(self, slot: Slot, found: list[Slot], document: Any, event: bytes) -> None:
        """Make ready what would bring the text that a channel now holds: this event, around another text."""
        texts = [(other, other.text) for other in found if other.holder is not None]
        for other, _ in texts:
            other.put(_HERE if other is slot else "")
        head, _, tail = _with_data(event, document).partition(_dumped(_HERE)[1:-1])
        self._around[slot.channel] = (head, tail)
        for other, text in texts:
            other.put(text)

    def _rest(self, only: Channel | None = None) -> bytes:
        """Events that carry what is held back."""
        events = b""
        for channel, reader in self._readers.items():
            if (only is None or channel == only) and (held := reader.end()):
                head, tail = self._around[channel]
                events += head + _dumped(held)[1:-1] + tail
        return events


class DocumentReading(Reading):
    """One JSON document, which has to be whole before it can be changed."""

    def __init__(self, pattern: FieldPattern, ours: Ours, *, strip: bool, limit: int = LIMIT) -> None:
        super().__init__(pattern, ours, strip=strip, limit=limit)
        self._buffer = bytearray()

    def _feed(self, data: bytes) -> bytes:
        self._buffer += data
        return self._give_up("it is too large") if len(self._buffer) > self._limit else b""

    def _end(self) -> bytes:
        document = json.loads(bytes(self._buffer))
        changed = False
        for slot in slots(document):
            if slot.holder is not None:
                shown = self._read(slot.channel, slot.text, whole=True)
                if shown != slot.text:
                    slot.put(shown)
                    changed = True
        return _dumped(document) if changed else self.unsent()

    def unsent(self) -> bytes:
        unsent = bytes(self._buffer)
        self._buffer.clear()
        return unsent


class TextReading(Reading):
    """Plain text in UTF-8."""

    _CHANNEL: Channel = ("text", 0, 0)

    def __init__(self, pattern: FieldPattern, ours: Ours, *, strip: bool, limit: int = LIMIT) -> None:
        super().__init__(pattern, ours, strip=strip, limit=limit)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._data = b""

    def _feed(self, data: bytes) -> bytes:
        self._data = self._decoder.getstate()[0] + data
        shown = self._read(self._CHANNEL, self._decoder.decode(data)).encode()
        self._data = b""
        self._settle()
        return shown

    def _end(self) -> bytes:
        self._data = self._decoder.getstate()[0]
        text = self._decoder.decode(b"", final=True)
        self._data = b""
        return self._read(self._CHANNEL, text, end=True).encode()

    def unsent(self) -> bytes:
        unsent, self._data = self._data, b""
        return unsent

    def _rest(self) -> bytes:
        reader = self._readers.get(self._CHANNEL)
        return reader.end().encode() if reader is not None else b""


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write and UTF-8 cannot
        return json.dumps(value, separators=(",", ":")).encode()


def _with_data(event: bytes, document: Any) -> bytes:
    """The event with another document in its data lines."""
    data = b"data: " + _dumped(document)
    out = bytearray()
    at, told = 0, False
    while at < len(event):
        edge = _LINE.search(event, at)
        stop, after = (edge.start(), edge.end()) if edge else (len(event), len(event))
        line = event[at:stop]
        if not line.startswith(b"data:"):
            out += event[at:after]
        elif not told:
            out += data + event[stop:after]
            told = True
        at = after
    return bytes(out)
