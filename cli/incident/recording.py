"""A recording of the incident: what was asked and answered, the facts, and every record exactly as it was sent.

JSON Lines. The first line says what it is (`{"recording": ...}`), then, in the order in which things happened, a fact
(`{"fact": ...}`), a lifecycle record as it went to Kafka, or a request with its answer (`{"answer": ...}`).
"""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

from ...producers.transport import Transport
from ...schemas.envelope import Batch, EnvelopeDecoder
from ...schemas.errors import ConfigError, InvalidField, KvtrailError
from ...schemas.facts import Fact, encode_fact
from .steps import Played

VERSION = 1


class About(Struct, frozen=True, kw_only=True):
    """Where a recording comes from. `recorded_at`: UTC, ISO 8601; `versions`: of what computed the answers."""

    v: int
    recorded_at: str
    deployment: str
    model: str
    weights_digest: str
    versions: dict[str, str]


class Recording(Struct, frozen=True, kw_only=True):
    """A recording as read. `records` are facts and batches in the order of their append."""

    about: About
    played: tuple[Played, ...]
    records: tuple[Fact | Batch, ...]


class _Line(Struct, frozen=True):
    recording: About | None = None
    answer: Played | None = None
    fact: Fact | None = None


class Recorder:
    """Collects lines from whichever thread has one."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._lock = threading.Lock()

    def fact(self, fact: Fact) -> None:
        """A fact that was published."""
        self._add(b'{"fact":' + encode_fact(fact) + b"}")

    def record(self, record: bytes) -> None:
        """A record that was sent."""
        self._add(record)

    def answer(self, played: Played) -> None:
        """A request that was answered."""
        self._add(msgspec.json.encode({"answer": played}))

    def write(self, path: Path, *, deployment: str, model: str, weights_digest: str, versions: dict[str, str]) -> None:
        """The whole recording as a file, in one piece or not at all. Raises `ConfigError` where it cannot be."""
        about = About(
            v=VERSION,
            recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            deployment=deployment,
            model=model,
            weights_digest=weights_digest,
            versions=versions,
        )
        with self._lock:
            lines = [msgspec.json.encode({"recording": about}), *self._lines]
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(b"".join(line + b"\n" for line in lines))
            temporary.replace(path)
        except OSError as error:
            raise ConfigError(
                f"cannot be written ({error.strerror}).", field=str(path), remedy="Check path and room."
            ) from error

    def _add(self, line: bytes) -> None:
        with self._lock:
            self._lines.append(line)


class Tee:
    """A transport that also keeps each record, once, when it was taken at the other end."""

    def __init__(self, inner: Transport, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    async def start(self) -> None:
        """Opens the other end."""
        await self._inner.start()

    async def send(self, home: str, record: bytes, first: int, last: int) -> None:
        """Sends, then keeps."""
        await self._inner.send(home, record, first, last)
        self._recorder.record(record)

    async def stop(self) -> None:
        """Closes the other end."""
        await self._inner.stop()

    def fresh(self) -> Self:
        """For a forked child: another end, the same recorder."""
        return type(self)(self._inner.fresh(), self._recorder)


def read_recording(raw: bytes) -> Recording:
    """A recording from a file's content. Raises `KvtrailError`, which names the line."""
    about: About | None = None
    played: list[Played] = []
    records: list[Fact | Batch] = []
    decoder = EnvelopeDecoder()
    for number, text in enumerate(raw.splitlines(), 1):
        try:
            line = msgspec.json.decode(text, type=_Line)
            if line.recording is not None:
                about = line.recording
            elif line.answer is not None:
                played.append(line.answer)
            elif line.fact is not None:
                records.append(line.fact)
            else:
                batch = decoder.decode(text)
                for reject in batch.rejects:
                    raise reject.error
                records.append(batch)
        except msgspec.DecodeError as error:
            raise InvalidField(str(error), field=f"line {number}", remedy="Record it again.") from None
        except KvtrailError as error:
            raise error.at(f"line {number}") from None
    if about is None or about.v != VERSION:
        raise InvalidField("is no recording of this version.", field="recording", remedy="Record it again.")
    return Recording(about=about, played=tuple(played), records=tuple(records))


def versions(*modules: Any) -> dict[str, str]:
    """The versions of the modules that computed the answers."""
    return {str(module.__name__): str(module.__version__) for module in modules}
