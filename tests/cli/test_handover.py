"""What a child process is configured with is exactly what its parent was, and a running stack can be found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.cli.local.handover import child_environ, to_environ
from kvtrail.cli.local.running import alone, current_config, publish, withdraw
from kvtrail.schemas.config import Config, load_config
from kvtrail.schemas.errors import StackError
from pydantic import SecretStr

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)


@given(
    deployment=names,
    bootstrap=names,
    partitions=st.integers(1, 64),
    horizon=st.floats(1, 1e7),
    password=names,
    hosts=st.lists(names, max_size=3),
)
def test_the_environment_makes_the_same_configuration(
    deployment: str, bootstrap: str, partitions: int, horizon: float, password: str, hosts: list[str]
) -> None:
    config = Config.model_validate(
        {
            "deployment": deployment,
            "kafka": {"bootstrap": bootstrap, "partitions": partitions},
            "clickhouse": {"password": password},
            "judging": {"horizon_s": horizon},
            "serve": {"names": tuple(hosts)},
        }
    )
    assert load_config(environ=to_environ(config)) == config


def test_the_parents_own_variables_do_not_leak_into_a_child() -> None:
    base = {"PATH": "/bin", "KVTRAIL_CONFIG": "/etc/kvtrail.toml", "KVTRAIL_DEPLOYMENT": "other"}
    environ = child_environ(Config(deployment="mine"), base)
    assert environ["PATH"] == "/bin"
    assert "KVTRAIL_CONFIG" not in environ
    assert load_config(environ=environ) == Config(deployment="mine")


def with_addresses(bootstrap: str, url: str) -> Config:
    return Config.model_validate(
        {"kafka": {"bootstrap": bootstrap}, "clickhouse": {"url": url, "password": SecretStr("hush")}}
    )


def test_commands_find_the_running_stack_and_only_a_running_one(tmp_path: Path) -> None:
    environ = {"KVTRAIL_LOCAL__DIRECTORY": str(tmp_path)}
    with alone(tmp_path):
        publish(tmp_path, with_addresses("127.0.0.1:7777", "http://127.0.0.1:8888"))
        found = current_config(environ=environ)
        assert found.kafka.bootstrap == "127.0.0.1:7777"
        assert found.clickhouse.url == "http://127.0.0.1:8888"
        assert "hush" not in (tmp_path / "stack.json").read_text()
    # Its process is gone (the lock is free) without having said so.
    assert json.loads((tmp_path / "stack.json").read_text())
    assert current_config(environ=environ).kafka.bootstrap == Config().kafka.bootstrap
    withdraw(tmp_path)
    assert not (tmp_path / "stack.json").exists()


def test_an_address_the_user_names_wins_over_the_running_stack(tmp_path: Path) -> None:
    environ = {"KVTRAIL_LOCAL__DIRECTORY": str(tmp_path), "KVTRAIL_KAFKA__BOOTSTRAP": "named:1"}
    with alone(tmp_path):
        publish(tmp_path, with_addresses("127.0.0.1:7777", "http://127.0.0.1:8888"))
        found = current_config(environ=environ)
    assert found.kafka.bootstrap == "named:1"
    assert found.clickhouse.url == "http://127.0.0.1:8888"


def test_two_stacks_cannot_share_a_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kvtrail.cli.local.running import alone\n"
        "with alone(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StackError, match=rf"process {other.pid}\) runs on"), alone(tmp_path):
            pass
        other.kill()
    with alone(tmp_path):
        assert int((tmp_path / "stack.lock").read_text()) == os.getpid()


def test_a_state_folder_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="KVTRAIL_LOCAL__DIRECTORY"), alone(tmp_path / "file" / "state"):
        pass
