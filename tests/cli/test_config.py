"""`kvtrail config check` as a person uses it."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.main import kvtrail
from kvtrail.schemas.config import Config, load_config
from kvtrail.schemas.errors import ConfigError


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KVTRAIL_")]:
        monkeypatch.delenv(name)


def check(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(kvtrail, ["config", "check", *arguments], env=environ)


def line(result: Result, field: str) -> list[str]:
    return next(row.split() for row in result.output.splitlines() if row.split()[0] == field)


def test_every_field_is_shown_with_value_default_and_source(tmp_path: Path) -> None:
    file = tmp_path / "kvtrail.toml"
    file.write_text('deployment = "fleet"\n[kafka]\npartitions = 8\ncompression = "zstd"\n')
    result = check("--config", str(file), KVTRAIL_KAFKA__PARTITIONS="16")
    assert result.exit_code == 0, result.output
    assert line(result, "deployment") == ["deployment", "fleet", "default", str(file)]
    assert line(result, "kafka.partitions") == ["kafka.partitions", "16", "4", "KVTRAIL_KAFKA__PARTITIONS"]
    assert line(result, "kafka.compression") == ["kafka.compression", "zstd", "none", str(file)]
    assert line(result, "kafka.replication") == ["kafka.replication", "1", "1", "default"]
    for name, section in Config():
        for inner in type(section).model_fields if name != "deployment" else []:
            # A section in a section is shown by its own fields.
            assert f"\n{name}.{inner} " in result.output or f"\n{name}.{inner}." in result.output


def test_secrets_are_not_printed() -> None:
    result = check(
        KVTRAIL_CLICKHOUSE__PASSWORD="hush",
        KVTRAIL_CLICKHOUSE__URL="http://me:hush@127.0.0.1:1",
        KVTRAIL_SERVE__TOKEN="hush",
    )
    assert result.exit_code == 0
    assert "hush" not in result.output
    assert line(result, "clickhouse.password")[1] == "(set)"
    assert line(result, "clickhouse.url")[1] == "http://(credentials)@127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "field"), [("KVTRAIL_KAFKA__PARTITIONS", "kafka.partitions"), ("KVTRAIL_KAFKA__NOSUCH", "kafka.nosuch")]
)
def test_an_invalid_setting_is_marked_named_and_never_shown(name: str, field: str) -> None:
    result = check(**{name: "sesame"})
    assert isinstance(result.exception, ConfigError)  # `main` makes it one line and exit status 2
    assert result.exception.field == field
    assert line(result, field)[1] in ("(invalid)", "(unknown)")
    assert "sesame" not in result.output + str(result.exception)


def test_a_file_that_is_not_toml_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[kafka\n")
    result = check("--config", str(tmp_path / "bad.toml"))
    assert isinstance(result.exception, ConfigError)


@pytest.mark.parametrize(
    ("environ", "warning"),
    [
        ({"PUBLISHER__MAX_EVENTS": "10"}, "publisher.envelope_events exceeds"),
        ({"PUBLISHER__ENVELOPE_BYTES": "9000000"}, "message.max.bytes"),
        ({"JUDGING__HORIZON_S": "864000"}, "judging.horizon_s is longer than kvtrail.lifecycle"),
        ({"JUDGING__HORIZON_S": "86400000"}, "judging.horizon_s is longer than retention.events_days"),
        ({"CLICKHOUSE__URL": "http://db.example:8123", "CLICKHOUSE__PASSWORD": "x"}, "in the clear"),
        ({"CLICKHOUSE__URL": "http://me:x@127.0.0.1:1"}, "holds credentials"),
        ({"KAFKA__BOOTSTRAP": "127.0.0.1:1,broker.example:9092"}, "kafka.replication is 1"),
        ({"SERVE__HOST": "0.0.0.0"}, "serve.token is not set"),
    ],
)
def test_contradictions_are_warned_about(environ: dict[str, str], warning: str) -> None:
    result = check(**{f"KVTRAIL_{name}": value for name, value in environ.items()})
    assert result.exit_code == 0, result.output
    assert warning in result.output


def test_a_secret_given_twice_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    result = check(KVTRAIL_CLICKHOUSE__PASSWORD="y", KVTRAIL_CLICKHOUSE__PASSWORD_FILE=str(tmp_path / "secret"))
    assert "warning: clickhouse.password and clickhouse.password_file are both set: the file wins" in result.output


def test_defaults_and_local_addresses_warn_of_nothing() -> None:
    for address in ("localhost:9092", "127.0.0.1:9092", "[::1]:9092"):
        result = check(KVTRAIL_KAFKA__BOOTSTRAP=address)
        assert "warning" not in result.output


def test_targets_are_shown_by_name_and_their_addresses_are_not() -> None:
    result = check(
        KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL="https://hook.example/hush",
        KVTRAIL_NOTIFY__WEBHOOKS__OPS__SECRET="hush",
        KVTRAIL_NOTIFY__ALERTMANAGERS__MAIN__URL="http://am:9093",
    )
    assert result.exit_code == 0, result.output
    assert "hush" not in result.output
    assert line(result, "notify.webhooks.ops.url")[1:] == ["(set)", "-", "KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL"]
    assert line(result, "notify.alertmanagers.main.url")[1] == "http://am:9093"


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("NOTIFY__WEBHOOKS__OPS__URL", "ftp://hush", "notify.webhooks.ops"),
        ("NOTIFY__ALERTMANAGERS__MAIN__URL", "http://me:hush@am", "notify.alertmanagers.main"),
        ("NOTIFY__WEBHOOKS__OPS__URL_FILE", "/nowhere/hush", "notify.webhooks.ops.url_file"),
        ("HEARTBEAT__DEADLINE_S", "31", "heartbeat"),
    ],
)
def test_a_target_that_cannot_be_is_named(name: str, value: str, field: str) -> None:
    result = check(**{f"KVTRAIL_{name}": value})
    assert isinstance(result.exception, ConfigError)
    assert result.exception.field == field
    assert "hush" not in result.output + str(result.exception)


def test_a_file_that_holds_no_url_is_named_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("hush\n")
    result = check(KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL_FILE=str(tmp_path / "url"))
    assert isinstance(result.exception, ConfigError)
    assert result.exception.field == "notify.webhooks.ops.url_file"
    assert "hush" not in result.output + str(result.exception)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["contoso","northwind"]', ("contoso", "northwind")),
        (' [ "a, b" ] ', ("a, b",)),
        ("contoso, northwind", ("contoso", "northwind")),
        ("[]", ()),
        ("", ()),
    ],
)
@pytest.mark.parametrize("field", ["canary.tenants", "agent.users", "serve.names"])
def test_a_list_in_the_environment_is_json_or_apart_by_commas(field: str, text: str, names: tuple[str, ...]) -> None:
    section, _, name = field.partition(".")
    config = load_config(environ={f"KVTRAIL_{section}__{name}".upper(): text})
    assert getattr(getattr(config, section), name) == names


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("CANARY__TENANTS", '["contoso"', "canary.tenants"),
        ("CANARY__TENANTS", '["contoso", 7]', "canary.tenants"),
        ("CANARY__TENANTS", '["contoso", ""]', "canary.tenants"),
        ("CANARY__TENANTS", "contoso,,northwind", "canary.tenants"),
        ("CANARY__TENANTS", "contoso,kvtrail:heartbeat-a", "canary.tenants"),
        ("AGENT__USERS", '[" "]', "agent.users"),
        ("SERVE__NAMES", ",", "serve.names"),
    ],
)
def test_a_name_in_a_list_that_can_be_none_is_refused(name: str, value: str, field: str) -> None:
    result = check(**{f"KVTRAIL_{name}": value})
    assert isinstance(result.exception, ConfigError)
    assert result.exception.field.startswith(field) and "contoso" not in str(result.exception)
    assert "Value error" not in str(result.exception)


def test_the_secrets_of_targets_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://hook.example/hush\n")
    (tmp_path / "token").write_text("tok\n")
    config = load_config(
        environ={
            "KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL_FILE": str(tmp_path / "url"),
            "KVTRAIL_NOTIFY__ALERTMANAGERS__MAIN__URL": "http://am",
            "KVTRAIL_NOTIFY__ALERTMANAGERS__MAIN__TOKEN_FILE": str(tmp_path / "token"),
        }
    )
    assert config.notify.webhooks["ops"].url.get_secret_value() == "https://hook.example/hush"
    assert config.notify.alertmanagers["main"].token.get_secret_value() == "tok"
