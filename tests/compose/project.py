"""The compose project, read as Docker Compose would read it."""

import re
from pathlib import Path
from typing import Any

import kvtrail
import yaml

ROOT = Path(kvtrail.__file__).parent
COMPOSE = ROOT / "compose"
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:-|:\?)((?:[^{}]|\$\{[^}]*\})*))?\}")


def text() -> str:
    """compose.yaml as written."""
    return (COMPOSE / "compose.yaml").read_text()


def raw() -> dict[str, Any]:
    """compose.yaml, its variables not filled in."""
    found: dict[str, Any] = yaml.safe_load(text())
    return found


def variables() -> dict[str, bool]:
    """Variable -> whether compose.yaml refuses to start without it."""
    found: dict[str, bool] = {}

    def scan(piece: str) -> None:
        for name, operator, rest in _VARIABLE.findall(piece):
            found[name] = found.get(name, False) or operator == ":?"
            scan(rest)

    scan(text())
    return found


def filled(values: dict[str, str]) -> dict[str, Any]:
    """compose.yaml with these variables, the others at their defaults."""

    def one(match: re.Match[str]) -> str:
        name, operator, rest = match[1], match[2], match[3]
        if values.get(name):
            return values[name]
        if operator == ":?":
            raise AssertionError(f"{name} is required")
        return _VARIABLE.sub(one, rest or "")

    found: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(one, text()))
    return found


def required() -> dict[str, str]:
    """A value for every variable that is required."""
    return {name: f"secret-of-{name.lower()}" for name, needed in variables().items() if needed}


def project() -> dict[str, Any]:
    """The project with everything required set."""
    return filled(required())


SERVICE_NAMES = frozenset(raw()["services"])
"""The services' names."""
