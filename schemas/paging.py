"""Configuration of who is told of incidents, and of the heartbeat. Part of `config.Config`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from .dimensions import Severity
from .errors import ConfigError


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", value):
        raise ValueError("a target's name is made of lower-case letters, digits and single underscores")
    return value


Name = Annotated[str, AfterValidator(_name)]


class Part(BaseModel):
    """As every section: what it does not know is refused, and errors never show values."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class WebhookTarget(Part):
    """A URL that gets notifications as JSON (`docs/reference/notification.schema.json`). The URL is a secret, since
    many carry one. With `secret`, each request is signed: `X-Kvtrail-Signature`."""

    url: SecretStr = SecretStr("")
    url_file: Path | None = None
    secret: SecretStr = SecretStr("")
    secret_file: Path | None = None
    timeout_s: float = Field(10.0, gt=0, le=300)

    @model_validator(mode="after")
    def _is_an_address(self) -> Self:
        _check(self.url.get_secret_value())
        return self


class AlertmanagerTarget(Part):
    """An Alertmanager, by the base of its URL (what stands before `/api/v2`). What is open is sent again every
    `resend_s`, each time to end by itself after `hold_s`."""

    url: str = ""
    token: SecretStr = SecretStr("")
    token_file: Path | None = None
    timeout_s: float = Field(10.0, gt=0, le=300)
    resend_s: float = Field(60.0, gt=0)
    hold_s: float = Field(600.0, gt=0)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        _check(self.url)
        if "@" in self.url:
            raise ValueError("the url holds credentials; use token or token_file, which never print")
        if self.hold_s < 2 * self.resend_s:
            raise ValueError("hold_s is shorter than two times resend_s: alerts would flap")
        return self


class NotifyConfig(Part):
    """The notifier. Findings below `min_severity` page nobody. An incident is told `group_wait_s` after its first
    finding; its growth at most every `growth_interval_s`, a raised severity at once; one without a new finding for
    `quiet_s` is over (0: never). Events older than `max_age_s` when they are judged are history (backfills) and page
    nobody. Failed deliveries are tried again after pauses that grow up to `retry_cap_s`. `console`: address of the
    console, for links. `metrics_port`: as the detector's."""

    instance: str = Field("notifier-0", pattern=r"^[A-Za-z0-9._-]+$")
    min_severity: Severity = Severity.HIGH
    group_wait_s: float = Field(2.0, ge=0)
    growth_interval_s: float = Field(600.0, ge=0)
    quiet_s: float = Field(86400.0, ge=0)
    max_age_s: float = Field(86400.0, gt=0)
    retry_cap_s: float = Field(60.0, gt=0)
    snapshot_s: float = Field(10.0, gt=0)
    console: str = ""
    webhooks: dict[Name, WebhookTarget] = {}
    alertmanagers: dict[Name, AlertmanagerTarget] = {}
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if self.webhooks.keys() & self.alertmanagers.keys():
            raise ValueError("a webhook and an Alertmanager have the same name")
        return self

    @property
    def has_targets(self) -> bool:
        """Whether anybody is told. A target without a URL is none."""
        hooks = any(each.url.get_secret_value() for each in self.webhooks.values())
        return hooks or any(each.url for each in self.alertmanagers.values())


class HeartbeatConfig(Part):
    """A known-bad pair of events every `every_s` in each partition; its finding must be seen within `deadline_s`, or
    the notifier says that the pipeline is silent. `enabled` false: neither is sent nor awaited."""

    enabled: bool = True
    every_s: float = Field(30.0, gt=0)
    deadline_s: float = Field(120.0, gt=0)
    instance: str = Field("heartbeat-0", pattern=r"^[A-Za-z0-9._-]+$")
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)

    @model_validator(mode="after")
    def _leaves_time(self) -> Self:
        if self.deadline_s < 2 * self.every_s:
            raise ValueError("deadline_s is shorter than two times every_s: one late beat would page")
        return self


def with_secrets(notify: NotifyConfig, read: Callable[[Path, str], SecretStr]) -> NotifyConfig:
    """The section with the contents of its secret files. `read(path, field)` raises `ConfigError`, and so
    does a file that holds no URL where one belongs."""
    webhooks, alertmanagers = dict(notify.webhooks), dict(notify.alertmanagers)
    for name, hook in webhooks.items():
        for field in ("url", "secret"):
            path = getattr(hook, f"{field}_file")
            if path is not None:
                place = f"notify.webhooks.{name}.{field}_file"
                values = {**webhooks[name].__dict__, field: read(path, place)}
                try:
                    webhooks[name] = WebhookTarget.model_validate(values)
                except ValidationError:
                    raise ConfigError(
                        "holds no http:// or https:// URL with a host.",
                        field=place,
                        remedy="Write the URL into the file.",
                    ) from None
    for name, one in alertmanagers.items():
        if one.token_file is not None:
            token = read(one.token_file, f"notify.alertmanagers.{name}.token_file")
            alertmanagers[name] = one.model_copy(update={"token": token})
    return notify.model_copy(update={"webhooks": webhooks, "alertmanagers": alertmanagers})


def _check(url: str) -> None:
    if url and not re.match(r"https?://[^/?#\s]", url):
        raise ValueError("the url is not http:// or https:// with a host")
