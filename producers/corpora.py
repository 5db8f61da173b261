"""A collection's name to the digest of its documents: ids with revisions, in the order in which they enter a prompt."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schemas.digests import digest_corpus
from ..schemas.errors import InvalidField, NameInDigestPlace
from .file_digests import FileDigests

_MOVING = frozenset({"", "current", "head", "latest", "main", "master", "newest", "production", "stable"})
"""Revisions that say nothing of the content: they stay what they are while it changes."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A collection's name, its documents in order, and their digest; empty where it is known to have none."""

    corpus_id: str
    documents: tuple[tuple[str, str], ...]
    digest: str


def resolve_corpus(corpus_id: str, documents: Iterable[tuple[str, str]]) -> Corpus:
    """A collection from its (document id, revision) pairs, in prompt order.

    Raises `NameInDigestPlace` for a revision that is a name, as `latest`, and `InvalidField` for a document without
    an id or that stands there twice.
    """
    pairs = tuple((str(document), str(revision)) for document, revision in documents)
    seen: set[str] = set()
    for number, (document, revision) in enumerate(pairs):
        if not document or document in seen:
            raise InvalidField(
                "has no id." if not document else "stands there twice.", field=f"documents[{number}]",
                remedy="Give each document an id of its own.",
            )  # fmt: skip
        if revision.strip().casefold() in _MOVING:
            raise NameInDigestPlace(
                "has a revision that stays the same while its content changes.", field=f"documents[{number}]",
                remedy="Send a number, a time or a digest that changes with the content.",
            )  # fmt: skip
        seen.add(document)
    return Corpus(corpus_id, pairs, digest_corpus(pairs))


def documents_at(path: Path, digests: FileDigests | None = None) -> list[tuple[str, str]]:
    """Documents as they lie at `path`. A folder's files, by relative name, each with the digest of its content as its
    revision; a manifest's (`.json`, `.jsonl`) own, as `[id, revision]` or `{"id": ..., "revision": ...}`, in its order.

    Raises `InvalidField` for what cannot be read.
    """
    if path.is_dir():
        digests = digests or FileDigests()
        files = sorted((file.relative_to(path).as_posix(), file) for file in path.rglob("*") if file.is_file())
        return [(name, digests.digest(file, field="corpus")) for name, file in files]
    try:
        text = path.read_bytes().decode()
        lines = [json.loads(line) for line in text.splitlines() if line.strip()] if path.suffix == ".jsonl" else (
            json.loads(text)
        )  # fmt: skip
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InvalidField(f"cannot be read ({why}).", field="corpus", remedy="Check path and content.") from None
    if not isinstance(lines, list):
        raise InvalidField("is no list of documents.", field="corpus", remedy="Write [[id, revision], ...].")
    return [_pair(line, number) for number, line in enumerate(lines)]


def _pair(line: Any, number: int) -> tuple[str, str]:
    if isinstance(line, dict):
        line = [line.get("id"), line.get("revision")]
    if not isinstance(line, list) or len(line) != 2 or not all(isinstance(one, str | int) for one in line):
        raise InvalidField(
            "is no document with its revision.", field=f"documents[{number}]", remedy="Write [id, revision]."
        )
    return str(line[0]), str(line[1])
