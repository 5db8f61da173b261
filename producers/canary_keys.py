"""The secrets behind canary markers, and the markers that they make."""

import hashlib
import hmac
import re
from dataclasses import dataclass

from ..schemas.config import CanaryConfig
from ..schemas.errors import ConfigError
from .canary_words import WORDS

ID_WORDS, CHECK_WORDS = 5, 2
LENGTH = ID_WORDS + CHECK_WORDS
SHORTEST = 16
Marker = tuple[str, ...]
_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


@dataclass(frozen=True, slots=True)
class CanaryKey:
    """One secret with its id, which results name; the secret prints nowhere.

    Raises `ConfigError` for an id that is none and for a secret of fewer than 16 bytes, which could be guessed.
    """

    key_id: str
    secret: bytes

    def __post_init__(self) -> None:
        if not _id.fullmatch(self.key_id):
            raise ConfigError(
                "an id is no id.", field="canary.keys", remedy="Use up to 32 letters, digits, dots and dashes."
            )
        if len(self.secret) < SHORTEST:
            raise ConfigError(
                f"a secret has fewer than {SHORTEST} bytes.", field="canary.keys",
                remedy="Make one with `openssl rand -hex 32`.",
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"CanaryKey(key_id={self.key_id!r})"


def keys_of(config: CanaryConfig) -> list[CanaryKey]:
    """The keys of the configuration: `id:secret` words, the current one first. Raises `ConfigError`."""
    words = config.keys.get_secret_value().replace(",", " ").split()
    if not words:
        raise ConfigError(
            "no key is set.", field="canary.keys",
            remedy="Set canary.keys or canary.keys_file to lines of `id:secret`, the current one first.",
        )  # fmt: skip
    return [CanaryKey(word.partition(":")[0], word.partition(":")[2].encode()) for word in words]


def marker_of(key: CanaryKey, tenant: str) -> Marker:
    """The tenant's marker under a key."""
    digest = _mac(key, b"tenant", tenant.encode())
    words = tuple(WORDS[byte] for byte in digest[:ID_WORDS])
    return words + _check(key, words)


def is_marker(key: CanaryKey, words: Marker) -> bool:
    """Whether these words are a marker that this key made, of whatever tenant."""
    return len(words) == LENGTH and hmac.compare_digest(
        " ".join(words[ID_WORDS:]).encode(), " ".join(_check(key, words[:ID_WORDS])).encode()
    )


def _check(key: CanaryKey, words: Marker) -> Marker:
    return tuple(WORDS[byte] for byte in _mac(key, b"check", " ".join(words).encode())[:CHECK_WORDS])


def _mac(key: CanaryKey, use: bytes, content: bytes) -> bytes:
    return hmac.new(key.secret, b"kvtrail-canary/1\0" + use + b"\0" + content, hashlib.sha256).digest()
