"""`kvtrail config check`: every setting with its value, default and source, and what contradicts what."""

import ipaddress
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import click
from pydantic import BaseModel, SecretStr

from ..schemas.config import PREFIX, Config, load_config
from ..schemas.errors import ConfigError
from ..schemas.topics import LIFECYCLE, TOPICS
from .screen import say

BROKER_RECORD_BYTES = 1_048_588
"""Kafka's default `message.max.bytes`."""


@click.group()
def config() -> None:
    """Check and print the configuration."""


@config.command()
@click.option(
    "--config", "path", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file; the environment wins."
)
def check(path: Path | None) -> None:
    """Print every setting with its value, default and source, then what is wrong with them.

    Secrets are never printed. Exit status 2 when a setting is invalid, naming it; warnings leave it at 0.
    """
    found, problem = None, None
    try:
        found = load_config(path)
    except ConfigError as error:
        problem = error
    sources = read_sources(path, os.environ)
    rows = [("setting", "value", "default", "from"), *_rows(found, sources, problem)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        say(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:{widths[2]}}  {row[3]}".rstrip())
    if problem is not None:
        raise problem
    assert found is not None
    for warning in warnings(found, sources):
        say(f"warning: {warning}", style="yellow")


def read_sources(path: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Where each setting that is not a default comes from: field -> file or variable."""
    sources: dict[str, str] = {}
    path = path or (Path(environ["KVTRAIL_CONFIG"]) if environ.get("KVTRAIL_CONFIG") else None)
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except (OSError, ValueError):  # load_config has said what is wrong with it
            values = {}
        sources.update((field, str(path)) for field in _named(values))
    for name in environ:
        if name.startswith(PREFIX) and name != "KVTRAIL_CONFIG":
            sources[".".join(name.removeprefix(PREFIX).lower().split("__"))] = name
    return sources


def _named(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _named(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _rows(
    found: Config | None, sources: Mapping[str, str], problem: ConfigError | None
) -> Iterator[tuple[str, str, str, str]]:
    defaults = dict(_fields(Config()))
    values = dict(_fields(found)) if found is not None else {}
    for name, default in defaults.items():
        value = "(invalid)" if problem and problem.field == name else shown(values.get(name, ())) if values else "?"
        if name in values or not isinstance(default, dict):  # targets that there are have rows of their own
            yield name, value, shown(default), sources.get(name, "default")
    for name in [name for name in values if name not in defaults]:
        yield name, shown(values[name]), "-", sources.get(name, "default")
    for name in sources.keys() - defaults.keys() - values.keys():
        yield name, "(unknown)", "", sources[name]


def _fields(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and value:
            for key, one in value.items():
                yield from _fields(one, f"{prefix}{name}.{key}.")
        else:
            yield prefix + name, value


def shown(value: object) -> str:
    """A value as it may be printed: no secret, no credentials in an address."""
    if isinstance(value, SecretStr):
        return "(set)" if value.get_secret_value() else "-"
    if isinstance(value, tuple | dict):
        return ",".join(map(str, value)) or "-"
    text = "-" if value is None else str(value)
    if "://" in text and "@" in text:
        parts = urlsplit(text)
        return urlunsplit(parts._replace(netloc="(credentials)@" + parts.netloc.rpartition("@")[2]))
    return text


def warnings(config: Config, sources: Mapping[str, str]) -> Iterator[str]:
    """What starts, but is hardly meant: settings that contradict each other."""
    publisher, clickhouse, judging = config.publisher, config.clickhouse, config.judging
    if publisher.envelope_events > publisher.max_events:
        yield "publisher.envelope_events exceeds publisher.max_events: the buffer overflows before an envelope is full"
    if publisher.envelope_bytes > BROKER_RECORD_BYTES:
        yield (
            "publisher.envelope_bytes exceeds what a broker accepts by default: raise message.max.bytes there, "
            "or lower it"
        )
    log_s = next(spec.retention_ms for spec in TOPICS if spec.name == LIFECYCLE) / 1000
    if judging.horizon_s > log_s:
        yield f"judging.horizon_s is longer than {LIFECYCLE} is kept ({log_s:.0f} s): a replay cannot match so far back"
    if judging.horizon_s > config.retention.events_days * 86400:
        yield "judging.horizon_s is longer than retention.events_days: evidence goes before its verdict can"
    for secret in (
        "clickhouse.password", "serve.token", "kafka.security.password", "kafka.security.token",
        "kafka.security.key_password",
    ):  # fmt: skip
        file = f"{secret}_file"
        if secret in sources and file in sources:
            yield f"{secret} and {file} are both set: the file wins"
    address = urlsplit(clickhouse.url)
    if address.password is not None:
        yield "clickhouse.url holds credentials: use clickhouse.user and clickhouse.password_file, which never print"
    if address.scheme == "http" and clickhouse.password.get_secret_value() and not local(address.hostname or ""):
        yield "clickhouse.url is plain http to another machine: the password travels in the clear, use https"
    if config.kafka.security.protocol == "SASL_PLAINTEXT" and not all(
        local(each.rpartition(":")[0]) for each in config.kafka.bootstrap.split(",")
    ):
        yield "kafka.security.protocol is SASL_PLAINTEXT to another machine: what is sent can be read, use SASL_SSL"
    if config.kafka.replication == 1 and not all(
        local(each.rpartition(":")[0]) for each in config.kafka.bootstrap.split(",")
    ):
        yield "kafka.replication is 1 on a remote cluster: one lost broker loses events, use 3"
    if not local(config.serve.host) and not config.serve.token.get_secret_value():
        yield "serve.host is reachable from other machines, but serve.token is not set: the console will not start"


def local(host: str) -> bool:
    """Whether `host` is this machine itself."""
    if host.strip("[]") in ("localhost", ""):
        return host != ""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
