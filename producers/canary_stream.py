"""An answer as server-sent events on their way, read and, where asked, with the canary's field taken out."""

import json
import re
from typing import Any

from .canary_bodies import Channel, Slot, slots
from .canary_field import FieldPattern, Ours
from .canary_reading import LIMIT, Reading, dumped

_HERE = "\x00kvtrail\x00"
_EVENT = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"(?>\r\n|\n|\r)")


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
        head, _, tail = _with_data(event, document).partition(dumped(_HERE)[1:-1])
        self._around[slot.channel] = (head, tail)
        for other, text in texts:
            other.put(text)

    def _rest(self, only: Channel | None = None) -> bytes:
        """Events that carry what is held back."""
        events = b""
        for channel, reader in self._readers.items():
            if (only is None or channel == only) and (held := reader.end()):
                head, tail = self._around[channel]
                events += head + dumped(held)[1:-1] + tail
        return events


def _with_data(event: bytes, document: Any) -> bytes:
    """The event with another document in its data lines."""
    data = b"data: " + dumped(document)
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
