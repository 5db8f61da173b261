"""Configuration: one typed model, from one TOML file and the environment.

`KVTRAIL_KAFKA__BOOTSTRAP=broker:9092` sets `kafka.bootstrap`; the environment wins over the file. Secrets are read
from the environment or from a file named by `<field>_file`, and never print.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from .errors import ConfigError
from .fleet_settings import FleetConfig
from .paging import HeartbeatConfig, NotifyConfig
from .paging import with_secrets as with_paging_secrets
from .reserved import PREFIX as RESERVED
from .reserved import is_reserved

PREFIX = "KVTRAIL_"


class Section(BaseModel):
    """A part of the configuration; unknown names are refused, since a typo would otherwise be a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class KafkaSecurity(Section):
    """How to reach a broker that does not trust everybody.

    `protocol` says whether TLS (SSL) and SASL are used. SASL needs `username` and `password`, or for OAUTHBEARER a
    `token`, which is read from `token_file` again for each connection, so that another process can renew it. TLS
    trusts `ca_file` (empty: the system's authorities) and shows the certificate in `cert_file`, with its key in
    `key_file` or beside it, where the broker asks for one.
    """

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    username: str = ""
    password: SecretStr = SecretStr("")
    password_file: Path | None = None
    token: SecretStr = SecretStr("")
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr = SecretStr("")
    key_password_file: Path | None = None
    check_hostname: bool = True

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        sasl, tls = self.protocol.startswith("SASL"), self.protocol.endswith("SSL")
        password = self.password.get_secret_value() or self.password_file
        token = self.token.get_secret_value() or self.token_file
        if sasl and self.mechanism == "OAUTHBEARER" and not token:
            raise ValueError("OAUTHBEARER needs token or token_file")
        if sasl and self.mechanism != "OAUTHBEARER" and not (self.username and password):
            raise ValueError("SASL needs username, and password or password_file")
        if not sasl and (self.username or password or token):
            raise ValueError("credentials are set, but protocol does not use SASL")
        if not tls and (self.ca_file or self.cert_file or self.key_file):
            raise ValueError("certificates are set, but protocol does not use SSL")
        if self.key_file and not self.cert_file:
            raise ValueError("key_file needs cert_file")
        return self


class KafkaConfig(Section):
    """The broker. `partitions` is fixed for the life of a deployment: homes are spread over it."""

    bootstrap: str = "127.0.0.1:9092"
    partitions: int = Field(4, ge=1, le=1024)
    replication: int = Field(1, ge=1, le=9)
    compression: Literal["none", "zstd", "gzip", "snappy"] = "none"
    security: KafkaSecurity = KafkaSecurity()


class ClickHouseConfig(Section):
    """The store: a ClickHouse server, or the HTTP facade of the embedded engine."""

    url: str = "http://127.0.0.1:8123"
    database: str = Field("kvtrail", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    user: str = "default"
    password: SecretStr = SecretStr("")
    password_file: Path | None = None


def _none(value: object) -> object:
    """The environment's empty text is no path: `Path("")` would be the working directory."""
    return None if value == "" else value


Place = Annotated[Path | None, BeforeValidator(_none)]


class PublisherConfig(Section):
    """Limits of the publisher inside an engine. `max_events` bounds the buffer, `linger_s` the time to a record.
    `spool_directory`: where records wait, up to `spool_bytes`, when the broker has not answered for `spool_after_s`;
    empty: in memory only."""

    max_events: int = Field(100_000, ge=1)
    envelope_events: int = Field(2048, ge=1, le=4096)
    envelope_bytes: int = Field(256 * 1024, ge=1024)
    linger_s: float = Field(0.2, ge=0, le=10)
    close_s: float = Field(5.0, ge=0)
    slots: int = Field(8, ge=1, le=256)
    spool_directory: Place = None
    spool_bytes: int = Field(1024**3, ge=64 * 1024)
    spool_after_s: float = Field(1.0, gt=0, le=60)


def _split(value: object) -> object:
    """The environment holds text: a JSON list, or names apart by commas."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return ()
    if not value.lstrip().startswith("["):
        return tuple(part.strip() for part in value.split(","))
    try:
        return tuple(json.loads(value))
    except ValueError:
        raise ValueError('is neither a JSON list, as ["a", "b"], nor names apart by commas') from None


def _filled(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(name.strip() for name in names):
        raise ValueError("holds an empty name")
    return names


def _no_own(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(is_reserved(name) for name in names):
        raise ValueError(f"holds a name that begins with {RESERVED!r}: such tenants are kvtrail's own")
    return names


Names = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_filled)]


class EpochConfig(Section):
    """The epoch at the front of every prompt, for prompt assemblers. `value`: the fleet's, empty: none. `scopes`: of
    parts of it, as `"tenant_id=contoso" = "2"`. `follow`: take bumps from the fact stream as they come; what is set
    here holds until the first one."""

    value: str = ""
    scopes: dict[str, str] = {}
    follow: bool = False


class CanaryConfig(Section):
    """Canaries. `keys`: `id:secret` words, the current one first, then those that cached prefixes may still carry;
    better in `keys_file`, one a line. `tenants`: those to recognise from the start."""

    keys: SecretStr = SecretStr("")
    keys_file: Path | None = None
    tenants: Annotated[Names, AfterValidator(_no_own)] = ()


class AgentConfig(Section):
    """The agent of a host. `socket`: where engines find it; empty: `agent.sock` in the state directory. Its own user,
    root and `users` may publish, and with `group` also whoever that group's rights let open the socket.
    `metrics`: `host:port` of Prometheus metrics and a health snapshot; empty: none."""

    socket: Place = None
    group: str = ""
    users: Names = ()
    metrics: str = Field("", pattern=r"^$|^[^:/\s]+:[0-9]{1,5}$")


class JudgingConfig(Section):
    """Constants of the verdicts. `horizon_s`: how long an ended entry can still be matched to a hit.
    `skew_s`: how far apart clocks may be before a comparison of times means something. `inconclusive_threshold`: active
    checks of one kind without a result, in a row, that are worth a finding."""

    horizon_s: float = Field(24 * 3600.0, gt=0)
    skew_s: float = Field(5.0, ge=0)
    drift_threshold: int = Field(8, ge=1)
    probing_threshold: int = Field(32, ge=1)
    inconclusive_threshold: int = Field(8, ge=1)


class DetectorConfig(Section):
    """The detector worker. `instance` is its static membership: one name, one process. `metrics_port`: where metrics,
    liveness and readiness are told; empty: nowhere, 0: a free port, which the log names. It stops where a partition
    has `refused_in_a_row` records refused one after the other (0: no limit), or more than `refused_share` of the last
    thousand (1: no limit): then the worker is the likely fault, not the records."""

    instance: str = Field("detector-0", pattern=r"^[A-Za-z0-9._-]+$")
    session_timeout_s: float = Field(6.0, ge=6.0)
    snapshot_s: float = Field(10.0, gt=0)
    batch_records: int = Field(64, ge=1)
    batch_wait_s: float = Field(0.05, gt=0)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    refused_in_a_row: int = Field(200, ge=0)
    refused_share: float = Field(0.5, ge=0, le=1)


class SinkConfig(Section):
    """The ClickHouse writer. A batch closes at `batch_rows` or after `batch_wait_s`; one of events after
    `events_wait_s`, five times as long unless it is set: findings should come at once, and many small inserts of events
    cost ClickHouse parts. Both become up to five times as long, 5 s at most, where the log holds more or the store has
    other batches in hand. `metrics_port`, `refused_in_a_row` and `refused_share`: as the detector's."""

    instance: str = Field("sink-0", pattern=r"^[A-Za-z0-9._-]+$")
    batch_rows: int = Field(10_000, ge=1, le=500_000)
    batch_wait_s: float = Field(0.2, gt=0)
    events_wait_s: float | None = Field(None, gt=0)
    retry_cap_s: float = Field(10.0, gt=0)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    refused_in_a_row: int = Field(200, ge=0)
    refused_share: float = Field(0.5, ge=0, le=1)


class ResolverConfig(Section):
    """The worker that completes events which know only a request id. `window_s`: how long a request is kept from its
    first record on, by the broker's clock; at most `limit` contexts and events wait in a partition. `metrics_port`,
    `refused_in_a_row` and `refused_share`: as the detector's."""

    instance: str = Field("resolver-0", pattern=r"^[A-Za-z0-9._-]+$")
    window_s: float = Field(900.0, gt=0)
    limit: int = Field(100_000, ge=1)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    refused_in_a_row: int = Field(200, ge=0)
    refused_share: float = Field(0.5, ge=0, le=1)


class RetentionConfig(Section):
    """How long things are kept. `longest_ttl_s` is the longest cache TTL in use; retention outlasts it by `factor`."""

    events_days: int = Field(400, ge=1)
    evidence_days: int = Field(2555, ge=1)
    longest_ttl_s: float = Field(30 * 86400.0, gt=0)
    factor: float = Field(3.0, ge=1)

    @model_validator(mode="after")
    def _outlasts(self) -> Self:
        for name in ("events_days", "evidence_days"):
            if getattr(self, name) * 86400 < self.longest_ttl_s * self.factor:
                raise ValueError(f"{name} is shorter than longest_ttl_s times factor")
        return self


class ServeConfig(Section):
    """The console and HTTP API. Nobody reads without `token`; empty: one is made and kept in the state directory,
    which is allowed on loopback only. `names`: host names it may be called by, beside addresses and loopback."""

    host: str = "127.0.0.1"
    port: int = Field(8780, ge=0, le=65535)
    token: SecretStr = SecretStr("")
    token_file: Path | None = None
    names: Names = ()


class LocalConfig(Section):
    """The local stack: where it keeps broker, store and logs. Empty: `$XDG_STATE_HOME/kvtrail`."""

    directory: Path | None = None

    def home(self, environ: Mapping[str, str] | None = None) -> Path:
        """`directory`, or where it is when left empty."""
        environ = os.environ if environ is None else environ
        if self.directory is not None:
            return self.directory
        state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return Path(state) / "kvtrail"


class Config(Section):
    """Everything that can be configured. `deployment` names the fleet and is part of every incident's id."""

    deployment: str = Field("default", min_length=1, max_length=128)
    kafka: KafkaConfig = KafkaConfig()
    clickhouse: ClickHouseConfig = ClickHouseConfig()
    publisher: PublisherConfig = PublisherConfig()
    agent: AgentConfig = AgentConfig()
    epoch: EpochConfig = EpochConfig()
    canary: CanaryConfig = CanaryConfig()
    judging: JudgingConfig = JudgingConfig()
    detector: DetectorConfig = DetectorConfig()
    sink: SinkConfig = SinkConfig()
    resolver: ResolverConfig = ResolverConfig()
    fleet: FleetConfig = FleetConfig()
    notify: NotifyConfig = NotifyConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    retention: RetentionConfig = RetentionConfig()
    serve: ServeConfig = ServeConfig()
    local: LocalConfig = LocalConfig()


def load_config(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration from `path` (or the file that `KVTRAIL_CONFIG` names) and the environment.

    Raises `ConfigError` naming the field, never its value.
    """
    environ = os.environ if environ is None else environ
    if path is None and environ.get("KVTRAIL_CONFIG"):
        path = Path(environ["KVTRAIL_CONFIG"])
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(
                f"cannot be read ({error.strerror}).", field=str(path), remedy="Check the path."
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"is not TOML ({error}).", field=str(path), remedy="Mend the file.") from error
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX) and name != "KVTRAIL_CONFIG":
            _set(values, name.removeprefix(PREFIX).lower().split("__"), text)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(
            f"{first['msg'].removeprefix('Value error, ')}.",
            field=".".join(str(part) for part in first["loc"]),
            remedy="`kvtrail config check` prints every field with its default.",
        ) from None
    return _with_secrets(config)


def _set(values: dict[str, Any], path: list[str], text: str) -> None:
    section = values
    for part in path[:-1]:
        inner = section.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError("is both a value and a section.", field=".".join(path), remedy="Remove one of them.")
        section = inner
    section[path[-1]] = text


def _with_secrets(config: Config) -> Config:
    store, serve, broker = config.clickhouse, config.serve, config.kafka.security
    read: dict[str, SecretStr] = {}
    for name in ("password", "key_password"):
        path = getattr(broker, f"{name}_file")
        if path is not None:
            read[name] = _secret(path, f"kafka.security.{name}_file")
    if broker.token_file is not None:
        _secret(broker.token_file, "kafka.security.token_file")  # must be there now; it is read again when it is used
    if read:
        security = broker.model_copy(update=read)
        config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"security": security})})
    if store.password_file is not None:
        secret = _secret(store.password_file, "clickhouse.password_file")
        config = config.model_copy(update={"clickhouse": store.model_copy(update={"password": secret})})
    if config.canary.keys_file is not None:
        secret = _secret(config.canary.keys_file, "canary.keys_file")
        config = config.model_copy(update={"canary": config.canary.model_copy(update={"keys": secret})})
    if serve.token_file is not None:
        secret = _secret(serve.token_file, "serve.token_file")
        config = config.model_copy(update={"serve": serve.model_copy(update={"token": secret})})
    return config.model_copy(update={"notify": with_paging_secrets(config.notify, _secret)})


def _secret(path: Path, field: str) -> SecretStr:
    try:
        return SecretStr(path.read_text().rstrip("\n"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror}).", field=field, remedy="Check path and rights."
        ) from error
