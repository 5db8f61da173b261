"""Functions that make digests: how many bits they give, and whether somebody can make two inputs meet."""

import math

BITS: dict[str, int] = {
    "md5": 128, "sha1": 160, "sha224": 224, "sha256": 256, "sha384": 384, "sha512": 512, "blake2b": 512, "blake2s": 256,
    "sha3_224": 224, "sha3_256": 256, "sha3_384": 384, "sha3_512": 512, "blake3": 256, "xxh32": 32, "xxh64": 64,
    "xxh3_64": 64, "xxh3_128": 128, "xxh128": 128, "crc32": 32, "adler32": 32, "xxh32_hexdigest": 32,
    "xxh64_hexdigest": 64, "xxh3_64_hexdigest": 64, "xxh3_128_hexdigest": 128, "xxh128_hexdigest": 128, "murmur3": 32,
    "cityhash64": 64, "digest_bytes": 256, "digest_template": 256, "digest_tools": 256, "digest_token_ids": 256,
    "digest_corpus": 256, "digest_weights": 256,
}  # fmt: skip
"""Function -> the bits it gives."""
WEAK = frozenset(
    name for name in BITS if name in ("md5", "sha1") or name.startswith(("xxh", "crc", "adler", "murmur", "city"))
)
"""Functions for which somebody who chooses the input can make two inputs meet."""
ENOUGH_BITS = 64
"""Below this a digest is refused as one: chance alone makes keys meet."""
SAFE_BITS = 128
"""Below this somebody who looks for two inputs with one digest finds them."""


def meet_at(bits: int) -> float:
    """How many entries make it as likely as not that two of them share a digest of so many bits."""
    return 1.1774 * math.pow(2.0, min(bits, 1024) / 2)


def odds(bits: int) -> str:
    """The chance of a collision, for people."""
    count = meet_at(bits)
    said = f"{count:,.0f}".replace(",", " ") if count < 1e7 else f"{count:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{bits} bits: as likely as not, two of {said} entries share a key"
