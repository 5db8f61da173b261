"""An answer as one JSON document, or as plain text, read and, where asked, with the canary's field taken out."""

import codecs
import json

from .canary_bodies import Channel, slots
from .canary_field import FieldPattern, Ours
from .canary_reading import LIMIT, Reading, dumped


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
        return dumped(document) if changed else self.unsent()

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
