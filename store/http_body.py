"""Request bodies as clients send them: plain or chunked, compressed or not, and never larger than agreed."""

import email.parser
import email.policy
import sys
import zlib
from collections.abc import Callable, Mapping
from email.message import Message
from io import BufferedIOBase

from .embedded import EngineError

MAX_BYTES = 1 << 30
MAX_REFUSED_BYTES = 1 << 20


class BrokenRequest(EngineError):
    """The request cannot be read to its end: the connection is of no further use."""


def read_body(headers: Message, stream: BufferedIOBase, limit: int = MAX_BYTES) -> bytes:
    """The body as sent. Raises `BrokenRequest` where it breaks off or is larger than `limit`."""
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        return _chunks(stream, limit)
    try:
        length = int(headers.get("Content-Length") or 0)
    except ValueError:
        length = -1
    if not 0 <= length <= limit:
        raise _too_large()
    body = stream.read(length)
    if len(body) != length:
        raise _broken_off()
    return body


def _chunks(stream: BufferedIOBase, limit: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        try:
            size = int(stream.readline(66).partition(b";")[0], 16)
        except ValueError:
            raise _broken_off() from None
        total += size
        if size < 0 or total > limit:
            raise _too_large()
        if size == 0:
            while stream.readline(4096).strip():
                pass
            return b"".join(parts)
        data = stream.read(size)
        if len(data) != size or stream.read(2) != b"\r\n":
            raise _broken_off()
        parts.append(data)


def _broken_off() -> BrokenRequest:
    return BrokenRequest(33, "Code: 33. DB::Exception: The body broke off. (CANNOT_READ_ALL_DATA)")


def _too_large() -> BrokenRequest:
    return BrokenRequest(36, "Code: 36. DB::Exception: The body is too large. (BAD_ARGUMENTS)")


def decoded(body: bytes, encoding: str) -> bytes:
    """The body without its Content-Encoding. Raises `EngineError`."""
    encoding = encoding.lower()
    if not encoding or encoding == "identity" or not body:
        return body
    if encoding not in _DECODERS:
        raise EngineError(48, "Code: 48. DB::Exception: Unknown Content-Encoding. (NOT_IMPLEMENTED)")
    try:
        return _DECODERS[encoding](body)
    except Exception as error:  # each of four libraries has its own
        raise EngineError(
            354, "Code: 354. DB::Exception: The body does not decompress. (ZLIB_INFLATE_FAILED)"
        ) from error


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a multipart form. Raises `EngineError` for files: those are external tables."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    fields: dict[str, str] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        if part.get_filename() is not None:
            raise EngineError(48, "Code: 48. DB::Exception: External tables are not supported here. (NOT_IMPLEMENTED)")
        payload = part.get_payload(decode=True)
        fields[str(name)] = payload.decode() if isinstance(payload, bytes) else ""
    return fields


def _lz4(data: bytes) -> bytes:
    import lz4.frame  # type: ignore[import-untyped]  # ships no types

    return bytes(lz4.frame.decompress(data))


def _zstd(data: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return bytes(zstd.decompress(data))


_DECODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: zlib.decompress(data, 31),
    "deflate": zlib.decompress,
    "lz4": _lz4,
    "zstd": _zstd,
}
