"""A template's name to the digest of its text as rendered, which is what the model reads."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..schemas.digests import digest_template
from ..schemas.errors import ConfigError, InvalidField

_JINJA = frozenset({".jinja", ".jinja2", ".j2"})
_CLOCK = re.compile(r"\b(strftime_now|now|utcnow|today)\s*\(")


class Template(Protocol):
    """A compiled template."""

    def render(self, *args: Any, **kwargs: Any) -> str: ...


class Environment(Protocol):
    """What renders templates: `jinja2.sandbox.ImmutableSandboxedEnvironment(undefined=StrictUndefined)`, say."""

    def from_string(self, source: str) -> Template: ...


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    """A template's name, its text as rendered with some settings, and the digest of that text."""

    template_id: str
    text: str
    digest: str

    def __repr__(self) -> str:
        return f"RenderedTemplate(template_id={self.template_id!r}, digest={self.digest[:16]!r})"


def resolve_template(
    template_id: str,
    path: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    environment: Environment | None = None,
    secret: bytes | None = None,
    secret_id: str = "",
) -> RenderedTemplate:
    """A template rendered as it is for a prompt, before the user's turn.

    A Jinja file, or a model's folder with its chat template (`chat_template.jinja`, `tokenizer_config.json`), is
    rendered by `environment` with the settings (`messages`, `tools`, ...). Of any other text file each `{name}` of a
    setting is replaced and nothing else is touched. Raises `InvalidField` for a template that cannot be read or
    rendered, that renders the time, or that does not use a setting, and `ConfigError` for Jinja without environment.
    """
    settings = dict(settings or {})
    source, jinja = _source(path)
    text = _rendered(source, settings, environment) if jinja else _filled(source, settings)
    if not text:
        raise InvalidField("renders to nothing.", field="template", remedy="Check the file and its settings.")
    return RenderedTemplate(template_id, text, digest_template(text, secret, secret_id))


def _source(path: Path) -> tuple[str, bool]:
    try:
        if path.is_dir():
            file = path / "chat_template.jinja"
            path = file if file.is_file() else path / "tokenizer_config.json"
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidField(f"cannot be read ({why}).", field="template", remedy="Check path and rights.") from None
    if path.name == "tokenizer_config.json":
        return _of_tokenizer(text), True
    return text, path.suffix in _JINJA


def _of_tokenizer(text: str) -> str:
    try:
        found = json.loads(text).get("chat_template")
    except (ValueError, AttributeError):
        found = None
    if isinstance(found, list):  # several, by name
        found = next(
            (one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), None
        )
    if not isinstance(found, str):
        raise InvalidField(
            "the tokenizer has no chat template.", field="template", remedy="Name the template's own file."
        )
    return found


def _rendered(source: str, settings: Mapping[str, Any], environment: Environment | None) -> str:
    if environment is None:
        raise ConfigError(
            "a Jinja template needs an environment to render it.", field="template",
            remedy="Pass the one that your server renders with, or jinja2.sandbox.ImmutableSandboxedEnvironment().",
        )  # fmt: skip
    if _CLOCK.search(source):
        raise InvalidField(
            "renders the time, so no two prompts are the same and nothing can be reused.", field="template",
            remedy="Pass the date as a setting, or leave it out of the cached part.",
        )  # fmt: skip
    try:
        return str(environment.from_string(source).render(**settings))
    except Exception as error:  # whatever an environment raises, its message may hold the prompt
        raise InvalidField(
            f"cannot be rendered ({type(error).__name__}).", field="template", remedy="Check its settings."
        ) from None


def _filled(source: str, settings: Mapping[str, Any]) -> str:
    unused = [name for name in settings if "{" + name + "}" not in source]
    if unused:
        raise InvalidField(
            "is not used by the template.", field=f"settings.{unused[0]}",
            remedy="Leave it out, or put {" + unused[0] + "} into the text.",
        )  # fmt: skip
    if not settings:
        return source
    # In one pass: what a value holds is not filled in again.
    names = "|".join(re.escape(name) for name in settings)
    return re.sub("{(" + names + ")}", lambda found: str(settings[found.group(1)]), source)
