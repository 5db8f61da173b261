"""Dead letters: refused input, kept with its exact bytes, where it came from and why."""

import base64

import msgspec
from msgspec import Struct

from .errors import BadInput, UndecodableRecord


class DeadLetter(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One refusal. `seq` and `index` name a single event of an envelope; both None mean the whole record.

    `raw_base64` is the record exactly as read, so that a repaired decoder can replay it.
    """

    topic: str
    partition: int
    offset: int
    stage: str
    code: str
    field: str
    message: str
    remedy: str
    at_us: int
    raw_base64: str
    node: str = ""
    incarnation: str = ""
    home: str = ""
    seq: int | None = None
    index: int | None = None

    @property
    def raw(self) -> bytes:
        """The record's exact bytes."""
        return base64.b64decode(self.raw_base64)


def dead_letter(
    error: BadInput, raw: bytes, *, topic: str, partition: int, offset: int, stage: str, at_us: int,
    lane: tuple[str, str, str] = ("", "", ""), seq: int | None = None, index: int | None = None,
) -> DeadLetter:  # fmt: skip
    """The dead letter for `error`, raised at `stage` (`decode`, `judge`, `insert`, `resolve`) over these bytes."""
    node, incarnation, home = lane
    return DeadLetter(
        topic=topic, partition=partition, offset=offset, stage=stage, code=error.code, field=error.field,
        message=error.message, remedy=error.remedy, at_us=at_us, raw_base64=base64.b64encode(raw).decode(),
        node=node, incarnation=incarnation, home=home, seq=seq, index=index,
    )  # fmt: skip


_decoder = msgspec.json.Decoder(DeadLetter)


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """The dead letter as JSON, as it stands on `kvtrail.dead-letter`."""
    return msgspec.json.encode(letter)


def decode_dead_letter(raw: bytes) -> DeadLetter:
    """A dead letter from its JSON. Raises `UndecodableRecord`: anybody may write to a topic."""
    try:
        letter = _decoder.decode(raw)
        base64.b64decode(letter.raw_base64, validate=True)
    except (msgspec.DecodeError, ValueError):
        raise UndecodableRecord(
            "is no dead letter.", field="dead_letter", remedy="Only workers write to this topic."
        ) from None
    return letter
