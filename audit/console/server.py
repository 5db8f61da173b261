"""The console as a process: which token, which port, and when it is ready."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from ...schemas.config import Config
from ...schemas.errors import ConfigError, StackError
from ..archive import Archive
from .access import ADDRESS_FILE, Access, ensure_token, sign_in_link
from .app import console
from .gate import Hosts, is_loopback

log = logging.getLogger("kvtrail.audit")

STOP_S = 5


def token_for(config: Config) -> str:
    """The console's token: the configured one, else one of this installation's own, made on first use.

    Raises `ConfigError` for a console that others can reach and that has no configured token.
    """
    configured = config.serve.token.get_secret_value()
    if configured:
        return configured
    if not is_loopback(config.serve.host):
        raise ConfigError(
            "a console that other machines can reach needs a token of its own.",
            field="serve.host",
            remedy="Set serve.token_file (or KVTRAIL_SERVE__TOKEN), or serve on 127.0.0.1.",
        )
    return ensure_token(config.local.home())


def console_link(config: Config, path: str = "/", now_s: float | None = None) -> str:
    """A link that signs in once, within ten minutes, to the console of this configuration, and leads to `path`."""
    token = config.serve.token.get_secret_value() or ensure_token(config.local.home())
    return sign_in_link(address_of(config), token, time.time() if now_s is None else now_s, path)


def address_of(config: Config) -> str:
    """Where the console is: as the last one that was started here noted it, where the port was left to chance."""
    if config.serve.port:
        return url(config.serve.host, config.serve.port)
    noted = config.local.home() / ADDRESS_FILE
    try:
        return noted.read_text().strip()
    except OSError:
        raise StackError(
            "no console has been started here.", field=str(noted), remedy="Start one: kvtrail serve."
        ) from None


def serve(config: Config, archive: Archive, tell: Callable[[str], None]) -> None:
    """Serve until told to stop (SIGTERM, Ctrl-C). `tell` is given the first link, once requests are answered.

    Raises `StackError` for a port that is taken, `ConfigError` where nobody could be kept out.
    """
    token = token_for(config)
    host = config.serve.host
    listener = bind(host, config.serve.port)
    port = int(listener.getsockname()[1])
    app = console(archive, Access(token), Hosts(host, config.serve.names))
    _note(config.local.home(), url(host, port))

    def ready() -> None:
        log.info("ready: console %s", url(host, port))
        tell(sign_in_link(url(host, port), token, time.time()))

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again when it has stopped in order
            signal.signal(number, lambda *_: sys.exit(0))
    _Server(app, ready).run(sockets=[listener])


def url(host: str, port: int) -> str:
    """`http://127.0.0.1:8780`; an address that means *every* interface is reached on loopback from here."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def listens(address: str) -> bool:
    """Whether anything takes connections at this address of ours."""
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2):
            return True
    except OSError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `StackError` naming what to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        field, remedy = "serve.port", "Set KVTRAIL_SERVE__PORT to a free port, or to 0 for any."
        if isinstance(error, socket.gaierror):
            field, remedy = "serve.host", "Set KVTRAIL_SERVE__HOST to an address of this machine."
        raise StackError(
            f"the console cannot listen on {host} port {port} ({error.strerror}).", field=field, remedy=remedy
        ) from error
    return listener


def _note(directory: Path, address: str) -> None:
    """Leave the address where `kvtrail serve --link` finds it; a console that cannot is as good without."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        half = directory / f"{ADDRESS_FILE}.{os.getpid()}"
        half.write_text(address + "\n")
        half.replace(directory / ADDRESS_FILE)
    except OSError as error:
        log.warning("the console's address was not noted (%s)", error.strerror)


class _Server(uvicorn.Server):
    """Uvicorn, without its own logging (it would log links), that says when it is ready."""

    def __init__(self, app: ASGIApp, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=STOP_S,
                limit_concurrency=256,
                proxy_headers=False,
            )
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
