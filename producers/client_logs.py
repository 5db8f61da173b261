"""Keeps aiokafka from flooding the log of the process that embeds the publisher.

While a broker is away aiokafka logs hundreds of identical lines a second. A filter on its loggers lets each message
through once a minute, with the number left out. It judges only records from our own sender threads, so an engine that
uses aiokafka itself keeps its log as it is; nothing else of the host's logging is touched.

At level debug aiokafka writes down what it sends, and with SASL that is the password or the token. `hide_secrets` takes
it out, whoever logs.
"""

import logging
import threading
import time

EVERY_S = 60.0
_KEPT = 256


class RateLimit(logging.Filter):
    """Lets a message of one of `threads` through once in `every_s` seconds."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self._every_s = every_s
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record goes on to the host's handlers."""
        if record.thread not in self.threads:
            return True
        now = time.monotonic()
        key = (record.name, str(record.msg))
        last, left_out = self._seen.get(key, (-self._every_s, 0))
        if now - last < self._every_s:
            self._seen[key] = (last, left_out + 1)
            return False
        if len(self._seen) >= _KEPT:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if left_out:
            record.msg = f"{record.msg} (and {left_out} more of these in the last minute or longer)"
        return True


class _NoSecrets(logging.Filter):
    """Leaves of a request that authenticates only its name."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                name if "SaslAuthenticate" in (name := type(value).__name__) else value for value in record.args
            )
        return True


_limit = RateLimit()
_no_secrets = _NoSecrets()


def hide_secrets() -> None:
    """Keep passwords and tokens out of aiokafka's log. Harmless to repeat."""
    logger = logging.getLogger("aiokafka.conn")
    if _no_secrets not in logger.filters:
        logger.addFilter(_no_secrets)


def quieten() -> None:
    """Rate-limit what aiokafka logs from the calling thread. Harmless to repeat; loggers made later need it again."""
    _limit.threads.add(threading.get_ident())
    for name in list(logging.root.manager.loggerDict):
        if name == "aiokafka" or name.startswith("aiokafka."):
            logger = logging.getLogger(name)
            if _limit not in logger.filters:
                logger.addFilter(_limit)


def unquieten() -> None:
    """The calling thread is done with aiokafka; another thread may get its number."""
    _limit.threads.discard(threading.get_ident())
