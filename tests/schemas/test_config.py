"""Configuration: file, environment over it, one error naming the field, and secrets that never print."""

from pathlib import Path

import pytest
from kvtrail.schemas.config import Config, RetentionConfig, load_config
from kvtrail.schemas.errors import ConfigError

TOML = """
deployment = "prod"
[kafka]
bootstrap = "one:9092"
partitions = 16
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kvtrail.toml"
    path.write_text(TOML)
    return path


def test_defaults_need_nothing() -> None:
    assert load_config(environ={}) == Config()


def test_the_environment_wins_over_the_file(file: Path) -> None:
    config = load_config(
        file, {"KVTRAIL_KAFKA__BOOTSTRAP": "two:9092", "KVTRAIL_DETECTOR__SNAPSHOT_S": "2.5", "PATH": "/"}
    )
    assert (config.deployment, config.kafka.bootstrap, config.kafka.partitions) == ("prod", "two:9092", 16)
    assert config.detector.snapshot_s == 2.5


def test_the_environment_names_the_file(file: Path) -> None:
    assert load_config(environ={"KVTRAIL_CONFIG": str(file)}).deployment == "prod"


@pytest.mark.parametrize(
    ("environ", "field"),
    [
        ({"KVTRAIL_KAFKA__PARTITIONS": "many"}, "kafka.partitions"),
        ({"KVTRAIL_KAFKA__PARTITIONS": "0"}, "kafka.partitions"),
        ({"KVTRAIL_KAFKA__BOOTSTRAPS": "x"}, "kafka.bootstraps"),
        ({"KVTRAIL_CLICKHOUSE__DATABASE": "a; DROP"}, "clickhouse.database"),
        ({"KVTRAIL_SINK__INSTANCE": "a b"}, "sink.instance"),
        ({"KVTRAIL_NONSENSE": "x"}, "nonsense"),
        ({"KVTRAIL_KAFKA": "x", "KVTRAIL_KAFKA__BOOTSTRAP": "y"}, "kafka.bootstrap"),
        ({"KVTRAIL_CLICKHOUSE__PASSWORD_FILE": "/nowhere/at/all"}, "clickhouse.password_file"),
    ],
)
def test_one_error_names_the_field(environ: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ=environ)
    assert caught.value.field == field
    assert caught.value.remedy


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, content in (("missing", None), ("broken", b"[kafka"), ("binary", b"\xff\xfe")):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_config(path, {})
        assert caught.value.field == str(path)


def test_retention_must_outlast_the_longest_ttl() -> None:
    with pytest.raises(ConfigError, match="events_days is shorter than longest_ttl_s times factor"):
        load_config(environ={"KVTRAIL_RETENTION__EVENTS_DAYS": "30"})
    with pytest.raises(ConfigError, match="evidence_days"):
        load_config(environ={"KVTRAIL_RETENTION__LONGEST_TTL_S": "1e8", "KVTRAIL_RETENTION__EVENTS_DAYS": "9999"})
    assert RetentionConfig(events_days=90).longest_ttl_s * 3 == 90 * 86400


def test_secrets_never_print(tmp_path: Path) -> None:
    secret = "s3cret-word"
    (tmp_path / "password").write_text(f"{secret}\n")
    sources = (
        {"KVTRAIL_CLICKHOUSE__PASSWORD": secret},
        {"KVTRAIL_CLICKHOUSE__PASSWORD_FILE": str(tmp_path / "password")},
    )
    for environ in sources:
        config = load_config(environ=environ)
        assert config.clickhouse.password.get_secret_value() == secret
        for shown in (repr(config), str(config), str(config.model_dump()), config.model_dump_json()):
            assert secret not in shown
    with pytest.raises(ConfigError) as caught:
        load_config(environ={"KVTRAIL_CLICKHOUSE__PASSWORD": secret, "KVTRAIL_CLICKHOUSE__USER__X": secret})
    assert secret not in str(caught.value)


def test_configuration_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        Config().kafka.bootstrap = "elsewhere"  # type: ignore[misc]  # what the test is about
