"""Stand-ins for programs of the machine: small shell scripts in a folder that is the whole PATH."""

from pathlib import Path


def program(folder: Path, name: str, script: str) -> Path:
    """An executable `name` in `folder` that runs `script` under sh."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java(folder: Path, version: str = "17.0.15", then: str = "exit 1") -> Path:
    """A `java` of that version which does `then` when asked to run something."""
    return program(
        folder, "java", f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\n{then}'
    )
