"""What reading an answer for its canary has in common: its texts, their fields, and what happens after an error.

Whatever goes wrong here, the bytes go on as they came, with what was held back before them.
"""

import json
from typing import Any

from .canary_bodies import Channel
from .canary_field import FieldPattern, FieldReader, Ours
from .telling import log

LIMIT = 1 << 20
KEPT = 8192


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


def dumped(value: Any) -> bytes:
    """JSON without spaces, in UTF-8."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write and UTF-8 cannot
        return json.dumps(value, separators=(",", ":")).encode()
