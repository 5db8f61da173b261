"""Who may read: a token, links that work once, and the cookie they are exchanged for.

The token is a secret of this installation. Programs send it as `Authorization: Bearer`. People follow a link that
holds a code derived from it: good for ten minutes and one sign-in, so that neither a browser's history nor a log
keeps anything of use. The code is exchanged for a cookie, signed with the token, that lasts twelve hours.
"""

import hashlib
import hmac
import os
import secrets
import stat
import threading
from pathlib import Path
from urllib.parse import quote

from ...schemas.errors import ConfigError

CODE_LIFE_S = 600
SESSION_LIFE_S = 12 * 3600
TOKEN_FILE = "console-token"
ADDRESS_FILE = "console-address"
SHORTEST_TOKEN = 16


def ensure_token(directory: Path) -> str:
    """The token kept in `directory`, made on first use; readable by its owner only.

    Raises `ConfigError` if the file is open to others, or the directory cannot be used.
    """
    path = directory / TOKEN_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        known = read_token(directory)
        if known:
            return known
        fresh = secrets.token_urlsafe(32)
        partial = path.with_name(f"{TOKEN_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(fresh + "\n")
        try:
            os.link(partial, path)  # never replaces: of two that start at once, one token wins
        except FileExistsError:
            fresh = read_token(directory) or fresh
        finally:
            partial.unlink()
        return fresh
    except OSError as error:
        raise ConfigError(
            f"cannot keep the console's token ({error.strerror}).",
            field=str(path),
            remedy="Check the directory's rights, or set serve.token_file.",
        ) from error


def read_token(directory: Path) -> str:
    """The token kept in `directory`, empty if there is none. Raises `ConfigError` if others can read it."""
    path = directory / TOKEN_FILE
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror}).", field=str(path), remedy="Remove it; a new token is made."
        ) from error
    with os.fdopen(handle) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(
                "can be read by others, or is not yours.", field=str(path), remedy="Remove it; a new token is made."
            )
        token = file.read().strip()
    return token if len(token) >= SHORTEST_TOKEN else ""


def sign_in_link(address: str, token: str, now_s: float, path: str = "/") -> str:
    """A link to the console at `address` that signs in once, within ten minutes, and leads on to `path`."""
    expiry = int(now_s) + CODE_LIFE_S
    nonce = secrets.token_urlsafe(12)
    code = f"{expiry}.{nonce}.{_mac(token, 'code', str(expiry), nonce)}"
    onward = "" if path == "/" else f"&next={quote(path, safe='')}"
    return f"{address.rstrip('/')}/enter?code={quote(code)}{onward}"


def local_path(text: str) -> str:
    """`text` if it is a path on this console, else `/`: a link of ours must not lead elsewhere."""
    plain = text.isascii() and text.isprintable() and "\\" not in text
    return text if plain and text.startswith("/") and not text.startswith("//") else "/"


class Access:
    """Checks what a request brings against the token. Threads may share it."""

    def __init__(self, token: str) -> None:
        if len(token) < SHORTEST_TOKEN:
            raise ConfigError(
                f"is shorter than {SHORTEST_TOKEN} characters.", field="serve.token", remedy="Use a long random one."
            )
        self._token = token
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    def bearer(self, header: str) -> bool:
        """Whether an `Authorization` header carries the token."""
        scheme, _, value = header.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(value.strip())

    def is_token(self, text: str) -> bool:
        """Whether `text` is the token, compared in constant time."""
        return hmac.compare_digest(text.encode(), self._token.encode())

    def redeem(self, code: str, now_s: float) -> bool:
        """Whether `code` signs in; true once for each code."""
        expiry, _, rest = code.partition(".")
        nonce, _, mac = rest.partition(".")
        if not expiry.isascii() or not expiry.isdigit() or len(expiry) > 12:
            return False
        if not hmac.compare_digest(mac.encode(), _mac(self._token, "code", expiry, nonce).encode()):
            return False
        if int(expiry) < now_s:
            return False
        with self._lock:
            self._used = {known: until for known, until in self._used.items() if until >= now_s}
            if nonce in self._used:
                return False
            self._used[nonce] = int(expiry)
        return True

    def new_session(self, now_s: float) -> str:
        """A cookie's value."""
        expiry, nonce = str(int(now_s) + SESSION_LIFE_S), secrets.token_urlsafe(12)
        return f"{expiry}.{nonce}.{_mac(self._token, 'session', expiry, nonce)}"

    def session(self, cookie: str, now_s: float) -> bool:
        """Whether a cookie was made by `new_session` and has not run out."""
        expiry, _, rest = cookie.partition(".")
        nonce, _, mac = rest.partition(".")
        if not expiry.isascii() or not expiry.isdigit() or len(expiry) > 12 or int(expiry) < now_s:
            return False
        return hmac.compare_digest(mac.encode(), _mac(self._token, "session", expiry, nonce).encode())


def _mac(token: str, *parts: str) -> str:
    return hmac.new(token.encode(), "\n".join(("kvtrail-console", *parts)).encode(), hashlib.sha256).hexdigest()
