"""Which files are a model's weights, and their digest: a file, a folder, or a Hugging Face cache, by content."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from ..schemas.digests import digest_bytes
from ..schemas.errors import InvalidField
from .file_digests import FileDigests

_FORMATS = ("*.safetensors", "*.gguf", "*.bin")
"""In the order in which engines prefer them."""
_INDEXES = ("*.safetensors.index.json", "*.bin.index.json")
_SHARD = re.compile(r"^(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.\w+$")
_TRAINING = re.compile(r"^(optimizer|scheduler|training_args|rng_state.*)\.bin$")


def weights_digest(path: Path, digests: FileDigests | None = None, *, revision: str = "main") -> str:
    """Digest of the weights at `path`, as `schemas.digests.digest_weights` gives it for the same files.

    Raises `InvalidField` as `weights_files` does, and for what cannot be read.
    """
    digests = digests or FileDigests()
    parts = sorted(digests.digest(file) for file in weights_files(path, revision=revision))
    return digest_bytes("\n".join(parts).encode())


def weights_files(path: Path, *, revision: str = "main") -> list[Path]:
    """Every file of the weights at `path`: the file itself; what a folder's index lists; else its files of the first
    format that it has. In a Hugging Face cache (`models--*`), of the snapshot that `revision` now names.

    Raises `InvalidField` where there are none, where shards are missing, and where several models lie side by side.
    """
    if path.is_file():
        return _indexed(path) if path.name.endswith(".index.json") else [path]
    if (path / "snapshots").is_dir():
        path = _snapshot(path, revision)
    if not path.is_dir():
        raise InvalidField("no such file or folder.", field="weights", remedy="Name the weights that are served.")
    for index in (file for pattern in _INDEXES for file in sorted(path.glob(pattern))):
        return _indexed(index)
    for pattern in _FORMATS:
        files = [file for file in sorted(path.glob(pattern)) if not _TRAINING.match(file.name)]
        if files:
            return _one_model(files)
    raise InvalidField(
        "no weights lie there.", field="weights", remedy="Name a safetensors, GGUF or PyTorch file, or its folder."
    )


def _snapshot(path: Path, revision: str) -> Path:
    commit = revision
    reference = path / "refs" / revision
    try:
        if ".." not in Path(revision).parts and reference.is_file():
            commit = reference.read_text().strip()
    except OSError as error:
        raise InvalidField(
            f"the cache's reference cannot be read ({error.strerror}).", field="weights", remedy="Check its rights."
        ) from error
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit) or not (path / "snapshots" / commit).is_dir():
        raise InvalidField(
            "the cache has no snapshot of this revision.", field="weights", remedy="Name one under its snapshots/."
        )
    return path / "snapshots" / commit


def _indexed(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except OSError as error:
        raise InvalidField(
            f"the index cannot be read ({error.strerror}).", field="weights", remedy="Check its rights."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        names = set()
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise InvalidField(
            "the index names no files beside it.", field="weights", remedy="Check the model's *.index.json."
        )
    return _present([index.parent / name for name in sorted(names)])


def _one_model(files: list[Path]) -> list[Path]:
    suffix = files[0].suffix
    models = set()
    for file in files:
        shard = _SHARD.match(file.name)
        models.add((shard["name"], int(shard["count"])) if shard is not None else (file.stem, 0))
    if len(models) > 1:
        raise InvalidField(
            "several models lie there.", field="weights", remedy="Name the file, or the index, that is served."
        )
    ((name, count),) = models
    if not count:
        return files
    return _present([files[0].parent / f"{name}-{number:05d}-of-{count:05d}{suffix}" for number in range(1, count + 1)])


def _present(files: Iterable[Path]) -> list[Path]:
    found = list(files)
    missing = [file.name for file in found if not file.is_file()]
    if missing:
        raise InvalidField(
            f"{len(missing)} of {len(found)} files are missing.", field="weights",
            remedy="Finish the download: a part of the weights is not the model.",
        )  # fmt: skip
    return found
