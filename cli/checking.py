"""What `kvtrail bypass-diff` and `kvtrail probe` have in common: secrets, forms, recording, and their way out.

Exit statuses of both: 0 nothing wrong was found, 1 the cache is at fault, 3 inconclusive, 2 an error.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from ..audit.checks.anthropic_form import ANTHROPIC
from ..audit.checks.bypass_words import Told
from ..audit.checks.forms import Form
from ..audit.checks.openai_form import NODE, OPENAI, PLAIN, SGLANG, VLLM
from ..audit.checks.recording import sent
from ..audit.checks.sglang_form import GENERATE
from ..audit.wording import clean
from ..producers.publisher import LifecyclePublisher
from ..schemas.config import Config
from ..schemas.errors import ConfigError, KvtrailError

GUILTY, INCONCLUSIVE, INTERRUPTED = 1, 3, 130
FORMS: dict[str, Form] = {form.name: form for form in (VLLM, SGLANG, GENERATE, OPENAI, PLAIN, ANTHROPIC, NODE)}
KEY_VARIABLE = "ENDPOINT_API_KEY"
_FILE = click.Path(dir_okay=False, path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])


def endpoint_options(command: Command) -> Command:
    """Options that say how an endpoint is reached."""
    for option in reversed(
        (
            click.option(
                "--form", type=click.Choice(list(FORMS)), required=True, help="What the endpoint is: its wire form."
            ),
            click.option("--ca-file", type=_FILE, help="PEM file of the authority behind the endpoint's certificate."),
            click.option("--timeout", default=30.0, show_default=True, help="Seconds for one answer."),
            click.option("--json", "as_json", is_flag=True, help="One JSON document."),
            click.option(
                "--publish/--no-publish",
                default=None,
                help="Record the verdict as a check event. Default: where a broker is configured, or runs here.",
            ),
            click.option(
                "--store", default="", help="Name of the store in the trail. Default: the endpoint's HOST:PORT."
            ),
            click.option("--config", "path", type=_FILE, help="A TOML file; the environment wins over it."),
        )
    ):
        command = option(command)
    return command


def api_key(variable: str | None, file: Path | None) -> str:
    """The key, from the file or the environment. Raises `ConfigError` for one that was named and is not there."""
    if file is not None:
        return secret_in(file, "--api-key-file")
    found = os.environ.get(variable or KEY_VARIABLE, "")
    if variable and not found:
        raise ConfigError("names a variable that is not set.", field="--api-key-env", remedy="Export it first.")
    return sendable(found, "--api-key-env")


def secret_in(file: Path, field: str) -> str:
    """The first line of a file. Raises `ConfigError`."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot be read.", field=field, remedy="Check path and rights.") from error
    return sendable(lines[0].strip() if lines else "", field)


def sendable(value: str, field: str) -> str:
    """`value`, where an HTTP header can hold it. Raises `ConfigError`, without the value."""
    if value.isascii() and (value.isprintable() or not value):
        return value
    raise ConfigError("holds characters that no HTTP header can.", field=field, remedy="Check it for line ends.")


def value_of(source: str, field: str, *, secret: bool) -> str:
    """A value from `env:VARIABLE`, `file:PATH` or, where it is no secret, `text:VALUE`. Raises `ConfigError`."""
    kind, _, rest = source.partition(":")
    if kind == "env":
        return variable(rest, field)
    if kind == "file":
        return secret_in(Path(rest), field)
    if kind == "text" and not secret:
        return sendable(rest, field)
    raise ConfigError(
        "is not env:VARIABLE or file:PATH: a key on a command line can be read by others."
        if secret
        else "is not env:VARIABLE, file:PATH or text:VALUE.",
        field=field,
        remedy="Write NAME=env:VARIABLE.",
    )


def variable(name: str, field: str) -> str:
    """The value of an environment variable. Raises `ConfigError` for one that is not set."""
    value = os.environ.get(name, "")
    if not value:
        raise ConfigError("names a variable that is not set.", field=field, remedy="Export it first.")
    return sendable(value, field)


def publishes(config: Config, asked: bool | None) -> bool:
    """Whether verdicts are recorded: as asked, else where a broker is configured or the local stack runs."""
    return "bootstrap" in config.kafka.model_fields_set if asked is None else asked


@contextmanager
def publisher_of(config: Config, name: str) -> Iterator[LifecyclePublisher]:
    """A publisher to the broker under a name of the check's own."""
    settings = config.publisher.model_copy(update={"linger_s": 0.0, "spool_directory": None})
    publisher = LifecyclePublisher.to_kafka(f"{name}/{socket.gethostname()}", config.kafka, settings)
    try:
        yield publisher
    finally:
        publisher.close(1.0)


def record(config: Config, name: str, publish: Callable[[LifecyclePublisher], None]) -> str:
    """Publish and wait; what became of it, in a sentence. A verdict is shown whether or not it could be recorded."""
    try:
        with publisher_of(config, name) as publisher:
            publish(publisher)
            sent(publisher)
    except KvtrailError as error:
        return f"NOT recorded: {error}"
    return "Recorded as a check event."


def shown(told: Told, recorded: str) -> str:
    """A verdict for a terminal."""
    lines = [f"Verdict: {told.headline}", *(f"  {sentence}" for sentence in told.happened)]
    if told.steps:
        lines += ["", "What to do now", *(f"  {number}. {step}" for number, step in enumerate(told.steps, 1))]
    return "\n".join(clean(line) for line in (*lines, "", recorded))


def as_document(document: dict[str, Any]) -> str:
    """A document as JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
