"""What every Kafka client of ours is made with: the address and the credentials, in one place."""

import ssl
from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from ..schemas.config import KafkaConfig, KafkaSecurity
from ..schemas.errors import ConfigError
from .client_logs import hide_secrets


def connection(kafka: KafkaConfig) -> dict[str, Any]:
    """Arguments of any aiokafka client for this broker. Certificates and tokens are read from their files now.

    Raises `ConfigError` naming the file that cannot be used.
    """
    security = kafka.security
    found: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "security_protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        found["ssl_context"] = _context(security)
    if security.protocol.startswith("SASL"):
        hide_secrets()
        found["sasl_mechanism"] = security.mechanism
        if security.mechanism == "OAUTHBEARER":
            found["sasl_oauth_token_provider"] = _Tokens(security)
        else:
            found["sasl_plain_username"] = security.username
            found["sasl_plain_password"] = security.password.get_secret_value()
    return found


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """The token as it is in its file when a connection needs it."""

    def __init__(self, security: KafkaSecurity) -> None:
        self._security = security

    def __repr__(self) -> str:
        return "the token of kafka.security"

    async def token(self) -> str:
        """The token. Raises `ConfigError` where its file cannot be read."""
        if self._security.token_file is None:
            return self._security.token.get_secret_value()
        try:
            return self._security.token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"cannot be read ({error.strerror}).",
                field="kafka.security.token_file",
                remedy="Check path and rights.",
            ) from None


def _context(security: KafkaSecurity) -> ssl.SSLContext:
    field = "kafka.security.ca_file"
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        context.check_hostname = security.check_hostname
        if security.cert_file is not None:
            field = "kafka.security.cert_file"
            _readable(security.cert_file)
            if security.key_file is not None:
                field = "kafka.security.key_file"
                _readable(security.key_file)
            # Never asks on the terminal for a password that is missing.
            context.load_cert_chain(security.cert_file, security.key_file, security.key_password.get_secret_value)
    except OSError as error:  # ssl.SSLError too
        raise ConfigError(
            f"cannot be used ({error.strerror or type(error).__name__}).",
            field=field,
            remedy="Name PEM files that this process may read; set key_password where the key has one.",
        ) from None
    return context


def _readable(path: Path) -> None:
    with path.open("rb"):
        pass
