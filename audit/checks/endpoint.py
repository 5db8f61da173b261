"""One endpoint over HTTP: a request in, a JSON document out, or the one reason why not.

httpx does the HTTP. No redirect is followed (the key would go with it), no certificate is taken on trust, no answer is
read beyond its bound, and a time limit is one over the whole exchange, however slowly bytes drip.
"""

import email.utils
import ipaddress
import json
import math
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from ... import __version__
from ...schemas.errors import ConfigError
from .answers import NoAnswer, Refused, Trouble

LARGEST = 8 << 20
"""Bytes of one answer."""
BUSY = frozenset({408, 425, 429, 503, 529})
_LONGEST_PAUSE_S = 60.0
_SHORTEST_PAUSE_S = 0.5
"""Also for one that asks for none: a busy endpoint is not asked without end at full speed."""
_KEPT_S = 2.0  # servers close idle connections after five seconds or so: a request must not meet that


class Clock:
    """Time and waiting, so that a test need do neither. `wait` returns early, and True, once a stop was asked for."""

    def now(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait; True where the wait was cut short because everything is to stop."""
        time.sleep(max(0.0, seconds))
        return False


class Endpoint:
    """`url` is the base, or the whole path. `timeout_s` bounds one exchange, `deadline_s` all of them together.

    Raises `ConfigError` for an address that is none, carries credentials, or a certificate file that cannot be read.
    """

    def __init__(
        self,
        url: str,
        path: str,
        *,
        headers: Mapping[str, str],
        purpose: str,
        timeout_s: float = 30.0,
        deadline_s: float = 300.0,
        ca_file: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = _address(url, path)
        self.clock = clock or Clock()
        self._timeout_s = timeout_s
        self._end = self.clock.now() + deadline_s
        # Without TLS nothing is trusted, and nothing need be read from disk.
        trust: ssl.SSLContext | bool = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if self.url[:5] == "http:" else True
        if ca_file is not None:
            try:
                trust = ssl.create_default_context(cafile=str(ca_file))
            except (OSError, ssl.SSLError) as error:
                raise ConfigError("cannot be read.", field="--ca-file", remedy="Name a PEM file.") from error
        self._client = httpx.Client(
            headers={
                "User-Agent": f"kvtrail/{__version__} ({purpose})",
                "Accept-Encoding": "identity",
                **headers,
            },
            verify=trust,
            limits=httpx.Limits(keepalive_expiry=_KEPT_S),
            follow_redirects=False,
            trust_env=not _is_local(self.url),
        )

    @property
    def authority(self) -> str:
        """`host:port`, for people and as a store's name."""
        return httpx.URL(self.url).netloc.decode("ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[dict[str, Any], float]:
        """The answer's document and the seconds it took. A busy endpoint is asked again when it says, within the
        deadline. Raises `NoAnswer`."""
        pause = 1.0
        while True:
            status, answered, raw, seconds = self._exchange(body, headers)
            if status not in BUSY:
                return _document(status, answered, raw), seconds
            wanted = _retry_after(answered.get("retry-after", ""), time.time())
            wait = min(pause, _LONGEST_PAUSE_S) if wanted is None else max(wanted, _SHORTEST_PAUSE_S)
            if self.clock.now() + wait >= self._end or self.clock.wait(wait):
                if status in (429, 529):
                    raise NoAnswer(
                        Trouble.RATE_LIMITED,
                        f"limits the rate and asked for {wait:.0f} s more than the deadline leaves.",
                        remedy="Ask later, or raise --deadline.",
                    )
                raise _server_failed(status)
            pause *= 2

    def _exchange(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, httpx.Headers, bytes, float]:
        began = self.clock.now()
        end = min(began + self._timeout_s, self._end)
        if end <= began:
            raise _timeout("the deadline")
        try:
            with self._client.stream(
                "POST", self.url, json=dict(body), headers=dict(headers), timeout=httpx.Timeout(end - began)
            ) as response:
                kind = response.headers.get("content-type", "")
                if response.status_code < 300 and "text/event-stream" in kind:
                    raise NoAnswer(
                        Trouble.STREAMED, "answered with a stream, and none was asked for.",
                        remedy="Take out what turns streaming on in between.",
                    )  # fmt: skip
                parts, size = [], 0
                for part in response.iter_bytes():
                    size += len(part)
                    if size > LARGEST:
                        raise NoAnswer(
                            Trouble.TOO_LARGE, f"answered with more than {LARGEST >> 20} MiB.", remedy="Check the URL."
                        )
                    if self.clock.now() > end:
                        raise _timeout("the time for one answer")
                    parts.append(part)
                return response.status_code, response.headers, b"".join(parts), self.clock.now() - began
        except httpx.TimeoutException as error:
            raise _timeout("the time for one answer") from error
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        except (httpx.InvalidURL, ValueError, RecursionError) as error:
            raise NoAnswer(
                Trouble.UNREACHABLE, "could not be sent the request.", remedy="Check URL and body."
            ) from error


def _document(status: int, headers: httpx.Headers, raw: bytes) -> dict[str, Any]:
    if 300 <= status < 400:
        raise NoAnswer(
            Trouble.REDIRECTED, f"redirects (HTTP {status}); it is not followed, since the key would go with it.",
            remedy="Name the final address.",
        )  # fmt: skip
    if status in (401, 403):
        raise NoAnswer(
            Trouble.UNAUTHORISED, f"turned the credentials down (HTTP {status}).",
            remedy="Give the key with --api-key-file, or in the variable that --api-key-env names.",
        )  # fmt: skip
    if status in (404, 405):
        raise NoAnswer(
            Trouble.NOT_FOUND, f"has nothing at this path, or not this model (HTTP {status}).",
            remedy="Check URL, --form and --model.",
        )  # fmt: skip
    if status >= 500:
        raise _server_failed(status)
    if status >= 400:
        raise Refused(
            f"turned the request down (HTTP {status}).", raw[:65536].decode("utf-8", "replace").lower(),
            remedy="Check the request's body against the endpoint's documentation.",
        )  # fmt: skip
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(
            Trouble.NOT_JSON, "answered with something that is not JSON.", remedy="Check the URL."
        ) from error
    if not isinstance(document, dict):
        raise NoAnswer(Trouble.MALFORMED, "answered with JSON that is no object.", remedy="Check URL and --form.")
    return document


def _server_failed(status: int) -> NoAnswer:
    return NoAnswer(Trouble.SERVER_FAILED, f"failed (HTTP {status}).", remedy="See the endpoint's own log.")


def _timeout(what: str) -> NoAnswer:
    return NoAnswer(
        Trouble.TIMEOUT, f"did not answer before {what} was over.", remedy="Raise --timeout or --deadline, or ask less."
    )


def _unreachable(error: httpx.HTTPError) -> NoAnswer:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return NoAnswer(
                Trouble.TLS, "has a certificate that is not trusted here.", remedy="Name its authority with --ca-file."
            )
        cause = cause.__cause__ or cause.__context__
    return NoAnswer(
        Trouble.UNREACHABLE,
        f"cannot be reached ({type(error).__name__}).",
        remedy="Check that it runs at this address.",
    )


def _retry_after(value: str, now_s: float) -> float | None:
    """Seconds to wait, from a number or an HTTP date; None for nothing that can be understood."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now_s
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _address(url: str, path: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("is no http or https address.", field="URL", remedy="Write http://HOST:PORT.")
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            "carries credentials or a query: others on this machine could read it.", field="URL",
            remedy="Give the key with --api-key-file or --api-key-env.",
        )  # fmt: skip
    base = url.split("#")[0].rstrip("/")
    if base.endswith(path):
        return base
    first, _, rest = path.lstrip("/").partition("/")
    return f"{base}/{rest}" if rest and base.endswith(f"/{first}") else base + path


def _is_local(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


Asking = Callable[[Mapping[str, Any], Mapping[str, str]], tuple[dict[str, Any], float]]
