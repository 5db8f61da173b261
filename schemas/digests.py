"""Digests of content, computed by us: what a key must be made of.

A digest is lower-case hexadecimal of at least 64 bits, optionally prefixed by what made it: an algorithm
(`xxh3:`) or the id of the secret behind a keyed digest (`hmac-2026a:`). Digests with different prefixes cannot be
compared, and compare as *unknown*, never as different. Without a prefix it is SHA-256.
"""

import hashlib
import hmac
import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import InvalidField, NameInDigestPlace

DIGEST_PATTERN = r"^(?:[a-z0-9][a-z0-9._-]{0,31}:)?[0-9a-f]{16,128}$"
_DIGEST = re.compile(DIGEST_PATTERN)

NONE = ""
"""The value of a dimension that is *known to be none* (no tools, no adapter); absent (None) means unknown."""


def is_digest(value: str) -> bool:
    """Whether `value` has the form of a digest."""
    return _DIGEST.match(value) is not None


def require_digest(value: str, field: str) -> str:
    """`value` itself, if it is a digest or the empty string (known to be none).

    Raises `NameInDigestPlace` otherwise.
    """
    if value == NONE or is_digest(value):
        return value
    raise NameInDigestPlace(
        "holds a name or a label, not a digest of content.",
        field=field,
        remedy="Send lower-case hex of at least 64 bits; kvtrail.schemas.digests computes it from the content.",
    )


def digest_prefix(digest: str) -> str:
    """What made the digest: its algorithm or key id, `sha256` when it does not say."""
    head, colon, _ = digest.rpartition(":")
    return head if colon else "sha256"


def canonical_json(value: Any) -> bytes:
    """`value` as JSON with sorted keys, no spaces and raw UTF-8: equal values give equal bytes.

    Raises `InvalidField` for what JSON cannot say (NaN, infinities, foreign objects).
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidField(
            "cannot be written as canonical JSON.", remedy="Use strings, finite numbers, lists and mappings."
        ) from error


def digest_bytes(content: bytes, secret: bytes | None = None, key_id: str = "") -> str:
    """SHA-256 of `content`, or its HMAC under `secret`, which then needs a `key_id`.

    Short or guessable content (a system prompt, a tenant's template) must be keyed: a plain digest of it can be
    confirmed by trying candidates.
    """
    if secret is None:
        return hashlib.sha256(content).hexdigest()
    if not key_id:
        raise InvalidField("a keyed digest needs the id of its key.", field="key_id", remedy="Name the secret.")
    return f"{key_id}:{hmac.new(secret, content, hashlib.sha256).hexdigest()}"


def digest_template(rendered: str, secret: bytes | None = None, key_id: str = "") -> str:
    """Digest of a template *as rendered* for this tenant, before the user's turn is inserted."""
    return digest_bytes(rendered.encode(), secret, key_id)


def digest_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Digest of a tool list in canonical form: tools sorted by name, object keys sorted.

    The order of the tools does not change what they mean; order inside a schema (an enum) does and is kept.
    An empty list gives the empty string: known to have no tools.
    """
    if not tools:
        return NONE

    def name(tool: Mapping[str, Any]) -> str:
        function = tool.get("function")
        inner = function if isinstance(function, Mapping) else tool
        return str(inner.get("name", ""))

    ordered = sorted(tools, key=lambda tool: (name(tool), canonical_json(tool)))
    return digest_bytes(canonical_json(ordered))


def digest_token_ids(token_ids: Iterable[int]) -> str:
    """Digest of token ids as little-endian unsigned 32-bit integers, in order.

    Raises `InvalidField` for an id that does not fit.
    """
    try:
        packed = array("I", token_ids)
    except (OverflowError, TypeError) as error:
        raise InvalidField(
            "holds something that is not a token id (0 to 2**32-1).", field="token_ids", remedy="Pass integers."
        ) from error
    if array("I").itemsize != 4:  # pragma: no cover - no supported platform has another size
        raise InvalidField("this platform's unsigned int is not 32 bits wide.", field="token_ids")
    return hashlib.sha256(packed.tobytes()).hexdigest()


def digest_corpus(documents: Iterable[tuple[str, str]]) -> str:
    """Digest of an ordered corpus: (document id, revision) pairs, in the order they enter the prompt."""
    rows = [[document, revision] for document, revision in documents]
    return digest_bytes(canonical_json(rows)) if rows else NONE


def digest_weights(files: Iterable[Path]) -> str:
    """Digest of model weights *by content*: file names are left out, their bytes' digests are sorted.

    The same weights under another file name, or sharded files listed in another order, give the same digest.
    Raises `InvalidField` when a file cannot be read or none is given.
    """
    parts: list[str] = []
    for path in files:
        try:
            with path.open("rb") as stream:
                parts.append(hashlib.file_digest(stream, "sha256").hexdigest())
        except OSError as error:
            raise InvalidField(
                f"cannot read a weights file ({error.strerror}).", field="weights", remedy="Check path and rights."
            ) from error
    if not parts:
        raise InvalidField("no weights file was given.", field="weights", remedy="List every file of the model.")
    return digest_bytes("\n".join(sorted(parts)).encode())
