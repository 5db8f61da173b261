"""The stack that runs on this machine, so that a command in another terminal finds it without being told."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ...schemas.config import Config, load_config
from ...schemas.errors import StackError

_FILE = "stack.json"
_LOCK = "stack.lock"


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold `directory` for one stack. Raises `StackError` when another process has it, or it cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / _LOCK).open("a+")
    except OSError as error:
        raise unwritable(directory, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StackError(
                f"a local stack (process {file.read().strip() or 'unknown'}) runs on {directory}.",
                field="local.directory",
                remedy="Stop it, or set KVTRAIL_LOCAL__DIRECTORY to another folder.",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def unwritable(directory: Path, error: OSError) -> StackError:
    """A folder of the local stack that refuses to be written, and what to do."""
    return StackError(
        f"{directory} cannot be written ({error.strerror}).",
        field="local.directory",
        remedy="Free space or mend its rights, or set KVTRAIL_LOCAL__DIRECTORY to a folder you can write.",
    )


def publish(directory: Path, config: Config) -> None:
    """Note the addresses of the stack that now runs on `directory`."""
    half = directory / f"{_FILE}.half"
    half.write_text(
        json.dumps(
            {
                "kafka": {"bootstrap": config.kafka.bootstrap},
                "clickhouse": {"url": config.clickhouse.url},
                "serve": {"host": config.serve.host, "port": config.serve.port},
            }
        )
    )
    half.replace(directory / _FILE)


def withdraw(directory: Path) -> None:
    """The stack on `directory` is over."""
    (directory / _FILE).unlink(missing_ok=True)


def current_config(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """`load_config`, with the addresses of the running local stack where the user named none.

    Raises `ConfigError` as `load_config` does.
    """
    environ = os.environ if environ is None else environ
    config = load_config(path, environ)
    directory = config.local.home(environ).absolute()
    if not _held(directory):
        return config
    try:
        found = json.loads((directory / _FILE).read_text())
    except (OSError, ValueError):
        return config
    changes = {}
    for name, values in found.items():
        section = getattr(config, name)
        changes[name] = section.model_copy(
            update={key: value for key, value in values.items() if key not in section.model_fields_set}
        )
    return config.model_copy(update=changes)


def _held(directory: Path) -> bool:
    """Whether a stack has `directory` now: its lock goes with its process, however that ended."""
    try:
        with (directory / _LOCK).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
