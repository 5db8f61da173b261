"""One entry as one file: a sealed header, then the tensors, everything on 4 KiB boundaries.

    block 0..   magic "KVTRAIL\\0", u16 version, u16 hash id, u32 header bytes, u32 JSON bytes, u32 chunk bytes,
                u32 chunk count, u64 payload bytes, u64 generation   (all little-endian)
                canonical JSON: store key and origin, full identity, tensor table, tokens, times
                u64 digest of each payload chunk
                zeros, and in the last 8 bytes the digest of the header itself
    payload     tensors in layer order, each on a 4 KiB boundary, zeros between

The payload is hashed in chunks, so that a reader can check a part, and several readers can check in parallel. The
entry's payload digest is a digest over the chunks' digests.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import xxhash
from msgspec import Struct

from ..schemas.digests import canonical_json
from ..schemas.errors import BadInput
from ..schemas.events import KeyOrigin
from ..schemas.identity import Identity
from .errors import CorruptEntry

MAGIC = b"KVTRAIL\0"
FORMAT_VERSION = 1
XXH3_64 = 1
ALIGN = 4096
CHUNK_BYTES = 4 * 1024 * 1024
MAX_HEADER_BYTES = 16 * 1024 * 1024
_HEAD = struct.Struct("<8sHHIIIIQQ")
_SEAL = struct.Struct("<Q")
_PAYLOAD_DIGEST_SCHEME = "xxh3-chunks"

Buffer = bytes | bytearray | memoryview


class TensorSpec(Struct, frozen=True, kw_only=True):
    """One tensor's place in the payload: `offset` from its start and `bytes`, without padding."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


class EntryHeader(Struct, frozen=True, kw_only=True):
    """What a file says about itself. Times: microseconds since the epoch; `ttl_s` None: no limit."""

    key: str
    key_origin: KeyOrigin
    identity: dict[str, str]
    tensors: tuple[TensorSpec, ...]
    tokens: int
    created_us: int
    payload_bytes: int
    payload_digest: str
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to be stored: contiguous bytes in C order, and what they are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Buffer


@dataclass(frozen=True, slots=True)
class SealedHeader:
    """A decoded header with the parts of it that concern the file: chunk digests, generation, length."""

    header: EntryHeader
    chunk_bytes: int
    chunk_digests: tuple[int, ...]
    generation: int
    header_bytes: int

    @property
    def file_bytes(self) -> int:
        """Length of the whole file."""
        return self.header_bytes + self.header.payload_bytes


def aligned(size: int) -> int:
    """`size` rounded up to a multiple of 4 KiB."""
    return -(-size // ALIGN) * ALIGN


def lay_out(tensors: Sequence[Tensor]) -> tuple[tuple[TensorSpec, ...], int]:
    """Each tensor's place in the payload, and the payload's length."""
    specs: list[TensorSpec] = []
    offset = 0
    for tensor in tensors:
        size = memoryview(tensor.data).nbytes
        specs.append(TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, offset=offset, bytes=size))
        offset += aligned(size)
    return tuple(specs), offset


def payload_pieces(tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    """The payload as it goes to disk: the tensors' own memory and the zeros between, nothing copied."""
    zeros = memoryview(bytes(ALIGN))
    for tensor in tensors:
        view = memoryview(tensor.data).cast("B")
        yield view
        if padding := aligned(view.nbytes) - view.nbytes:
            yield zeros[:padding]


def chunk_digests(pieces: Iterable[memoryview], chunk_bytes: int = CHUNK_BYTES) -> tuple[int, ...]:
    """The digest of each chunk of the payload, however the payload is cut into pieces."""
    digests: list[int] = []
    hasher, room = xxhash.xxh3_64(), chunk_bytes
    for piece in pieces:
        start = 0
        while start < piece.nbytes:
            part = piece[start : start + room]
            hasher.update(part)
            start += part.nbytes
            room -= part.nbytes
            if room == 0:
                digests.append(hasher.intdigest())
                hasher, room = xxhash.xxh3_64(), chunk_bytes
    if room < chunk_bytes:
        digests.append(hasher.intdigest())
    return tuple(digests)


def payload_digest(digests: Sequence[int]) -> str:
    """The entry's payload digest, from the digests of its chunks."""
    packed = struct.pack(f"<{len(digests)}Q", *digests)
    return f"{_PAYLOAD_DIGEST_SCHEME}:{xxhash.xxh3_128(packed).hexdigest()}"


def seal(
    header: EntryHeader, digests: tuple[int, ...], generation: int, chunk_bytes: int = CHUNK_BYTES
) -> tuple[SealedHeader, bytes]:
    """The header as a reader will see it, and as it stands in the file: a multiple of 4 KiB, its own digest last."""
    text = canonical_json(msgspec.to_builtins(header))
    table = struct.pack(f"<{len(digests)}Q", *digests)
    size = aligned(_HEAD.size + len(text) + len(table) + _SEAL.size)
    head = _HEAD.pack(
        MAGIC, FORMAT_VERSION, XXH3_64, size, len(text), chunk_bytes, len(digests), header.payload_bytes, generation
    )
    body = (head + text + table).ljust(size - _SEAL.size, b"\0")
    raw = body + _SEAL.pack(xxhash.xxh3_64_intdigest(body))
    return SealedHeader(header, chunk_bytes, digests, generation, size), raw


def header_length(start: bytes) -> int:
    """How long the header is, from the file's first 4 KiB. Raises `CorruptEntry` when it is no entry of ours."""
    if len(start) < _HEAD.size:
        raise _corrupt("is shorter than a header.", "magic")
    magic, version, hash_id, size, text_bytes, chunk_bytes, chunks, *_ = _HEAD.unpack_from(start)
    if magic != MAGIC:
        raise _corrupt("is not an entry of this store.", "magic")
    if version != FORMAT_VERSION or hash_id != XXH3_64:
        raise _corrupt("has a format version or hash that is not known here.", "version")
    needed = _HEAD.size + text_bytes + 8 * chunks + _SEAL.size
    if size != aligned(needed) or size > MAX_HEADER_BYTES or chunk_bytes <= 0:
        raise _corrupt("has a header whose lengths contradict each other.", "header_bytes")
    return int(size)


def unseal(raw: bytes) -> SealedHeader:
    """The header, checked against its own digest. Raises `CorruptEntry`, which names what is wrong."""
    size = header_length(raw)
    if len(raw) < size:
        raise _corrupt("ends inside its header.", "header_bytes")
    body, (sealed,) = raw[: size - _SEAL.size], _SEAL.unpack_from(raw, size - _SEAL.size)
    if xxhash.xxh3_64_intdigest(body) != sealed:
        raise _corrupt("has a header that does not match its seal.", "seal")
    _, _, _, _, text_bytes, chunk_bytes, chunks, payload_bytes, generation = _HEAD.unpack_from(raw)
    text_end = _HEAD.size + text_bytes
    try:
        header = msgspec.json.decode(raw[_HEAD.size : text_end], type=EntryHeader)
        Identity.from_wire(header.identity)
    except (msgspec.DecodeError, BadInput) as error:
        raise _corrupt("has a header that cannot be read.", "json") from error
    digests = struct.unpack_from(f"<{chunks}Q", raw, text_end)
    if header.payload_bytes != payload_bytes or len(digests) != -(-payload_bytes // chunk_bytes):
        raise _corrupt("has a header whose sizes contradict each other.", "payload_bytes")
    if any(spec.offset < 0 or spec.bytes < 0 or spec.offset + spec.bytes > payload_bytes for spec in header.tensors):
        raise _corrupt("has a tensor outside its payload.", "tensors")
    return SealedHeader(header, chunk_bytes, digests, generation, size)


def check_payload(sealed: SealedHeader, payload: memoryview) -> None:
    """Raises `CorruptEntry` where the payload is not what the header's digests say."""
    found = chunk_digests([payload], sealed.chunk_bytes)
    if found != sealed.chunk_digests:
        bad = next(
            (i for i, pair in enumerate(zip(found, sealed.chunk_digests, strict=False)) if pair[0] != pair[1]), -1
        )
        raise _corrupt("has a payload that does not match its digest.", f"chunk.{bad}")


def _corrupt(message: str, field: str) -> CorruptEntry:
    return CorruptEntry(message, field=field, remedy="It is set aside, never served; the prefix is computed again.")
