"""A Grafana server, through grafana-api, with what that library lacks: uid endpoints, answers without a body, retries,
no redirects, and no token in any message."""

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import requests
from grafana_api.grafana_api import GrafanaClientError, GrafanaServerError
from grafana_api.grafana_face import GrafanaFace

from ..schemas.errors import ConfigError, KvtrailError

log = logging.getLogger("kvtrail.dashboards")

OLDEST = (11, 6)
"""The plugin's own minimum."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class GrafanaError(KvtrailError):
    """Grafana refused or failed."""

    code = "grafana"


class GrafanaUnavailable(GrafanaError):
    """Transient: the same push may succeed later."""

    code = "grafana_unavailable"


class GrafanaRefused(GrafanaError):
    """The token may not do this, or Grafana will not accept it as it is: a person has to act."""

    code = "grafana_refused"


class GrafanaMissing(GrafanaError):
    """There is no such object."""

    code = "grafana_missing"


class GrafanaConflict(GrafanaError):
    """The object exists already, or somebody else changed it meanwhile."""

    code = "grafana_conflict"


class _Call(Protocol):
    def __call__(self, url: str, json: Any = None, headers: dict[str, str] | None = None) -> Any: ...


class Grafana:
    """One server and one service account token.

    `attempts`: how often a request is sent before a 5xx, 429 or connection error becomes `GrafanaUnavailable`; every
    request here can be sent twice. Raises `ConfigError` for an address that is none, or a token sent in the clear.
    """

    def __init__(
        self, url: str, token: str, *, attempts: int = 4, timeout_s: float = 10.0, plain_http: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "is not an http or https address.", field="url", remedy="Write https://host[:port][/path]."
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "holds more than an address.", field="url", remedy="Leave credentials and parameters out of it."
            )
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not plain_http:
            raise ConfigError(
                "would send the token unencrypted.", field="url", remedy="Use https, or say --plain-http."
            )
        if not token.strip():
            raise ConfigError("is empty.", field="token", remedy="Give a service account token with the Admin role.")
        path = parts.path.strip("/")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._token = token.strip()
        self._attempts = attempts
        self._pause = pause
        self._face = GrafanaFace(
            auth=self._token, host=host, port=parts.port, url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme, timeout=timeout_s,
        )  # fmt: skip
        # A redirected POST becomes a GET and looks like a success.
        self._face.api.s.max_redirects = 0

    def __repr__(self) -> str:
        return "Grafana(...)"

    def version(self) -> tuple[int, ...]:
        """Grafana's version. Raises `GrafanaRefused` when it is older than the data source plugin needs."""
        health = self._send("health", lambda: self._call("GET", "/health"))
        text = str(health.get("version", "")) if isinstance(health, dict) else ""
        found = tuple(int(part) for part in text.split("-")[0].split("+")[0].split(".") if part.isdigit())
        if found and found < OLDEST:
            raise GrafanaRefused(
                f"is version {text}, too old for the ClickHouse data source plugin.",
                field="grafana",
                remedy=f"Use Grafana {'.'.join(map(str, OLDEST))} or newer.",
            )
        return found

    def get(self, what: str, path: str) -> Any | None:
        """What lies under `path`, or None when there is nothing."""
        try:
            return self._send(what, lambda: self._call("GET", path))
        except GrafanaMissing:
            return None

    def create_folder(self, uid: str, title: str) -> None:
        """Create the folder; one that appeared meanwhile is as good."""
        try:
            self._send("folder", lambda: self._face.folder.create_folder(title, uid))
        except GrafanaConflict:
            if self.get("folder", f"/folders/{quote(uid)}") is None:
                raise

    def rename_folder(self, uid: str, title: str) -> None:
        """Give the folder its title."""
        self._send("folder", lambda: self._face.folder.update_folder(uid, title, overwrite=True))

    def create_datasource(self, datasource: dict[str, Any]) -> None:
        """Create the data source under its uid."""
        self._send("data source", lambda: self._face.datasource.create_datasource(datasource))

    def update_datasource(self, uid: str, datasource: dict[str, Any]) -> None:
        """Replace the data source. By uid: the numeric-id endpoint that grafana-api calls is off since Grafana 13."""
        self._send("data source", lambda: self._call("PUT", f"/datasources/uid/{quote(uid)}", datasource))

    def put_dashboard(self, dashboard: dict[str, Any], folder_uid: str, message: str) -> None:
        """Create or replace the dashboard."""
        body = {"dashboard": dashboard, "folderUid": folder_uid, "overwrite": True, "message": message}
        self._send("dashboard", lambda: self._face.dashboard.update_dashboard(body))

    def put_rule_group(self, folder_uid: str, group: dict[str, Any]) -> None:
        """Create or replace the group and every rule in it; the rules stay editable in Grafana."""
        path = f"/v1/provisioning/folder/{quote(folder_uid)}/rule-groups/{quote(group['title'])}"
        self._send("rule group", lambda: self._call("PUT", path, group, {"X-Disable-Provenance": "true"}))

    def _call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        call: _Call = getattr(self._face.api, method)
        return call(path, json=body, headers=headers)

    def _send(self, what: str, request: Callable[[], Any]) -> Any:
        for attempt in range(1, self._attempts + 1):
            try:
                return self._once(what, request)
            except GrafanaUnavailable as error:
                if attempt == self._attempts:
                    raise
                log.warning("%s, attempt %d of %d", error.message, attempt, self._attempts)
                self._pause(min(0.25 * 2**attempt, 5.0))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, what: str, request: Callable[[], Any]) -> Any:
        # Each error is rebuilt, and its cause dropped, since grafana-api's carry the server's answer: a proxy may
        # echo the request, token included.
        try:
            return request()
        except requests.exceptions.JSONDecodeError:
            return None  # a success without a body (202, 204): grafana-api decodes whatever comes
        except GrafanaClientError as error:
            raise self._refusal(what, int(error.status_code)) from None
        except GrafanaServerError as error:
            raise GrafanaUnavailable(
                f"{what}: Grafana answered {error.status_code}.", field="grafana", remedy="Look at Grafana's log."
            ) from None
        except requests.exceptions.TooManyRedirects:
            raise GrafanaRefused(
                f"{what}: the address redirects.", field="url", remedy="Give the address it redirects to."
            ) from None
        except requests.exceptions.RequestException as error:
            raise GrafanaUnavailable(
                f"{what}: no answer ({type(error).__name__}).", field="url", remedy="Is Grafana reachable there?"
            ) from None

    @staticmethod
    def _refusal(what: str, status: int) -> GrafanaError:
        if status == 404:
            return GrafanaMissing(f"{what}: not found.", field="grafana", remedy="Is this a Grafana's address?")
        if status in (409, 412):
            return GrafanaConflict(
                f"{what}: exists already or was changed meanwhile ({status}).",
                field="grafana",
                remedy="Push again; if it stays, something else holds this name.",
            )
        if status in (401, 403):
            return GrafanaRefused(
                f"{what}: Grafana refuses the token ({status}).",
                field="token",
                remedy="Use a service account token with the Admin role.",
            )
        if status in (408, 429):
            return GrafanaUnavailable(f"{what}: Grafana answered {status}.", field="grafana", remedy="Try again later.")
        return GrafanaRefused(
            f"{what}: Grafana does not accept it ({status}).",
            field="grafana",
            remedy="Check its version; look at Grafana's log.",
        )
