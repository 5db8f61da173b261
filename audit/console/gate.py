"""The gate in front of every request: host name, then token or cookie; and the headers every answer carries."""

import ipaddress
import time
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Access

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/enter", "/static/console.css"})
"""What is served without a token: no data of any tenant."""
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or a name to bind to, is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Hosts:
    """Which `Host` headers are answered: a page of another name that resolves to us (DNS rebinding) gets nothing.

    Bound to loopback, only loopback's names and those configured; otherwise any literal address besides, which no
    attacker's page can have as its origin's name.
    """

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        self._any_address = not is_loopback(bound)
        self._names = LOOPBACK_NAMES | {name.lower() for name in names} | {bound.lower()}

    def allows(self, header: str) -> bool:
        """Whether a request with this `Host` header is answered."""
        host = header.strip().lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name in self._names:
            return True
        if not self._any_address:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def cookie_name(scope: Scope) -> str:
    """The session cookie's name. Cookies do not know ports, so that the name has to."""
    server = scope.get("server")
    return f"kvtrail_{server[1] if server else 0}"


class Gate:
    """Middleware: 421 for a foreign host, 401 without token or cookie (`refuse` writes it), headers on everything."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        hosts: Hosts,
        refuse: ASGIApp,
        misdirected: ASGIApp,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._access = access
        self._hosts = hosts
        self._refuse = refuse
        self._misdirected = misdirected
        self._now_s = now_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._choose(scope)(scope, receive, with_headers)

    def _choose(self, scope: Scope) -> ASGIApp:
        path = scope["path"]
        headers = Headers(scope=scope)
        if path not in ("/healthz", "/readyz") and not self._hosts.allows(headers.get("host", "")):
            return self._misdirected
        if path in OPEN_PATHS or self._access.bearer(headers.get("authorization", "")):
            return self._app
        cookie = HTTPConnection(scope).cookies.get(cookie_name(scope), "")
        return self._app if self._access.session(cookie, self._now_s()) else self._refuse
