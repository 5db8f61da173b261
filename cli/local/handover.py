"""A configuration handed to child processes: everything through their environment, nothing inherited by accident."""

import os
from collections.abc import Mapping

from pydantic import BaseModel, SecretStr

from ...schemas.config import PREFIX, Config


def to_environ(config: Config) -> dict[str, str]:
    """The variables that make `load_config` return exactly `config`."""
    variables: dict[str, str] = {}
    for name in Config.model_fields:
        _put(variables, name, getattr(config, name))
    return variables


def child_environ(config: Config, base: Mapping[str, str]) -> dict[str, str]:
    """`base` without its own kvtrail variables, plus those of `config`."""
    kept = {name: text for name, text in base.items() if not name.startswith(PREFIX)}
    return {**kept, **to_environ(config), "PYTHONUNBUFFERED": "1"}


def _put(variables: dict[str, str], name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, BaseModel):
        for inner in type(value).model_fields:
            _put(variables, f"{name}__{inner}", getattr(value, inner))
        return
    if isinstance(value, dict):
        for inner, one in value.items():
            _put(variables, f"{name}__{inner}", one)
        return
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, tuple):
        value = ",".join(value)
    assert isinstance(value, str | int | float | os.PathLike), f"{name} cannot be written as text"
    variables[PREFIX + name.upper()] = str(value)
