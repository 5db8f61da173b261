"""Whom incidents are told to: webhooks and Alertmanagers, over HTTP."""

import hashlib
import hmac
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import aiohttp
import msgspec
from msgspec import Struct

from .. import __version__
from ..schemas.dimensions import Severity
from ..schemas.notifications import PIPELINE_SILENT, Notification
from ..schemas.paging import AlertmanagerTarget, NotifyConfig, WebhookTarget

LONGEST_WAIT_S = 3600.0
"""What a `Retry-After` is listened to, at most."""
_REFUSED = frozenset({400, 413, 422})
"""The target will never take this notification; anything else may pass or be mended."""


class Answer(Struct, frozen=True):
    """How an attempt ended. `code` 0: there was no answer, `detail` says why. `wait_s`: what the target asks for."""

    code: int
    detail: str = ""
    wait_s: float = 0.0

    @property
    def delivered(self) -> bool:
        return 200 <= self.code < 300

    @property
    def hopeless(self) -> bool:
        """Trying the same again cannot help."""
        return self.code in _REFUSED


class Target(Protocol):
    """One of those who are told."""

    @property
    def name(self) -> str: ...

    @property
    def resend_s(self) -> float:
        """How often what stands is to be said again; 0 for never."""
        ...

    async def send(self, session: aiohttp.ClientSession, notification: Notification) -> Answer: ...

    async def resend(self, session: aiohttp.ClientSession, standing: list[Notification]) -> Answer: ...


def targets_of(config: NotifyConfig) -> list[Target]:
    """The configured targets; one without a URL is none."""
    found: list[Target] = [Webhook(name, hook) for name, hook in config.webhooks.items() if hook.url.get_secret_value()]
    found += [Alertmanager(name, one, config.console) for name, one in config.alertmanagers.items() if one.url]
    return found


def new_session() -> aiohttp.ClientSession:
    """A session that takes no redirect for an answer and no cookie along; proxies come from the environment."""
    return aiohttp.ClientSession(
        trust_env=True, cookie_jar=aiohttp.DummyCookieJar(), headers={"User-Agent": f"kvtrail/{__version__}"}
    )


class Webhook:
    """Posts each notification as JSON.

    `X-Kvtrail-Id` is the notification's id. With a secret, `X-Kvtrail-Signature` is `sha256=` and the HMAC-SHA256 of
    `X-Kvtrail-Timestamp` (seconds), a full stop, and the body.
    """

    resend_s = 0.0

    def __init__(self, name: str, settings: WebhookTarget) -> None:
        self.name = name
        self._settings = settings

    async def send(self, session: aiohttp.ClientSession, notification: Notification) -> Answer:
        body = msgspec.json.encode(notification)
        now = str(int(time.time()))
        headers = {"X-Kvtrail-Id": notification.id, "X-Kvtrail-Timestamp": now}
        secret = self._settings.secret.get_secret_value()
        if secret:
            headers["X-Kvtrail-Signature"] = sign(secret, now, body)
        return await _post(session, self._settings.url.get_secret_value(), body, headers, self._settings.timeout_s)

    async def resend(self, session: aiohttp.ClientSession, standing: list[Notification]) -> Answer:
        return Answer(200)


class Alertmanager:
    """Posts to `/api/v2/alerts`. What an alert is called by (its labels) changes only with its severity: then the
    quieter one ends as the louder begins."""

    def __init__(self, name: str, settings: AlertmanagerTarget, console: str = "") -> None:
        self.name = name
        self.resend_s = settings.resend_s
        self._settings = settings
        self._console = console.rstrip("/")

    async def send(self, session: aiohttp.ClientSession, notification: Notification) -> Answer:
        return await self._post(session, self._alerts(notification))

    async def resend(self, session: aiohttp.ClientSession, standing: list[Notification]) -> Answer:
        return await self._post(session, [self._alert(one, one.severity, ends=False) for one in standing])

    def _alerts(self, notification: Notification) -> Iterable[dict[str, Any]]:
        before = notification.previous_severity
        if before is not None and before is not notification.severity:
            yield self._alert(notification, before, ends=True)
        yield self._alert(notification, notification.severity, ends=not notification.is_open)

    def _alert(self, told: Notification, severity: Severity, *, ends: bool) -> dict[str, Any]:
        now_us = time.time_ns() // 1000
        end_us = now_us if ends else now_us + round(self._settings.hold_s * 1e6)
        labels = {
            "alertname": "KvtrailPipelineSilent" if told.cause == PIPELINE_SILENT else "KvtrailIncident",
            "severity": severity.value, "deployment": told.deployment, "cause": told.cause,
            "dimension": told.dimension, "store": told.store, "cause_id": told.cause_id,
        }  # fmt: skip
        annotations = {
            "summary": told.title, "description": told.reason, "findings": str(told.findings),
            "tenants": ", ".join(told.tenants), "tenant_count": str(told.tenant_count), "example": told.example,
            "notification": told.id,
        }  # fmt: skip
        alert: dict[str, Any] = {
            "labels": {name: value for name, value in labels.items() if value},
            "annotations": {name: value for name, value in annotations.items() if value},
            "startsAt": _rfc3339(min(told.since_us, end_us)),
            "endsAt": _rfc3339(end_us),
        }
        if self._console:
            page = "health" if told.cause == PIPELINE_SILENT else f"incidents/{told.cause_id}"
            alert["generatorURL"] = f"{self._console}/{page}"
        return alert

    async def _post(self, session: aiohttp.ClientSession, alerts: Iterable[dict[str, Any]]) -> Answer:
        body = msgspec.json.encode(list(alerts))
        token = self._settings.token.get_secret_value()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self._settings.url.rstrip('/')}/api/v2/alerts"
        return await _post(session, url, body, headers, self._settings.timeout_s)


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The value of `X-Kvtrail-Signature`."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


async def _post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str], timeout_s: float
) -> Answer:
    """One attempt, over within `timeout_s`. Raises nothing: an error's text may hold the URL, and a URL is a secret."""
    try:
        async with session.post(
            url, data=body, headers={"Content-Type": "application/json", **headers}, allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:  # fmt: skip
            return Answer(answer.status, "" if answer.ok else str(answer.reason or ""), _wait_s(answer.headers))
    except TimeoutError:
        return Answer(0, f"no answer within {timeout_s:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer(0, type(error).__name__)


def _wait_s(headers: Any) -> float:
    text = headers.get("Retry-After", "")
    try:
        wait_s = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError):
        return 0.0
    return min(max(wait_s, 0.0), LONGEST_WAIT_S)


def _rfc3339(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
