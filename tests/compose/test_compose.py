"""compose.yaml: everything that can be known about it without a Docker engine."""

import base64
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import yaml
from kvtrail.cli.main import COMMANDS
from kvtrail.dashboards.generate import DASHBOARDS_PATH, GENERATED
from kvtrail.dashboards.target import PLUGIN, PLUGIN_VERSION
from kvtrail.schemas.config import Config, load_config
from kvtrail.streams.process import STOP_DEADLINE_S
from kvtrail.tests.compose.project import COMPOSE, ROOT, filled, project, raw, required, text, variables

WORKERS = {"init", "detector", "sink", "resolver", "fleet", "notifier", "heartbeat", "serve"}
LOCKED = ("detector", "sink", "resolver", "fleet", "notifier", "heartbeat")
ONE_SHOT = {"init"}
SERVICES: dict[str, dict[str, Any]] = project()["services"]
VOLUMES: dict[str, Any] = project()["volumes"]


def mounts(service: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(source, target, mode) of every mount."""
    found = []
    for mount in service.get("volumes", []):
        source, target, mode = [*mount.split(":"), ""][:3]
        found.append((source, target, mode))
    return found


def worker_config(name: str) -> Config:
    """The configuration that kvtrail makes of the service's environment."""
    return load_config(environ={key: str(value) for key, value in SERVICES[name]["environment"].items()})


def test_the_services_are_the_whole_stack() -> None:
    assert SERVICES.keys() == WORKERS | {"kafka", "clickhouse", "grafana"}


def test_images_are_pinned_to_exact_versions() -> None:
    for name, service in SERVICES.items():
        image = service["image"]
        if name in WORKERS:
            assert image == "kvtrail:local" and service["build"] == {
                "context": "..",
                "dockerfile": "compose/Dockerfile",
            }
        else:
            assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+(\.\d+)?", image), image


@pytest.mark.parametrize("name", sorted(WORKERS))
def test_every_setting_of_a_worker_is_one_that_kvtrail_knows(name: str) -> None:
    config = worker_config(name)
    assert config.kafka.bootstrap == "kafka:19092"
    assert config.clickhouse.url == "http://clickhouse:8123"
    assert config.clickhouse.password.get_secret_value() == "secret-of-clickhouse_password"


@pytest.mark.parametrize("name", sorted(WORKERS))
def test_every_command_exists(name: str) -> None:
    [command] = SERVICES[name]["command"]
    assert command in COMMANDS
    check = SERVICES[name].get("healthcheck", {}).get("test", ["CMD"])
    if check[1:2] == ["kvtrail"]:
        assert check[2] in COMMANDS and check[3] == command


def test_everything_that_stays_is_watched_and_restarted() -> None:
    for name, service in SERVICES.items():
        if name in ONE_SHOT:
            assert service["restart"] == "no" and "healthcheck" not in service
        else:
            assert service["restart"] == "unless-stopped"
            assert service["healthcheck"].keys() == {"test", "interval", "timeout", "retries", "start_period"}


def test_nobody_starts_before_what_it_needs() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            condition = how["condition"]
            assert condition == ("service_completed_successfully" if needed in ONE_SHOT else "service_healthy"), name
    for name in WORKERS - ONE_SHOT:
        assert "init" in SERVICES[name]["depends_on"]
    assert SERVICES["init"]["depends_on"].keys() == {"kafka", "clickhouse"}


def test_every_port_is_on_this_machine_only() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


def test_the_defaults_of_the_ports_differ() -> None:
    outside = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(set(outside)) == len(outside) == 4


def test_no_secret_is_in_the_file_and_none_has_a_default() -> None:
    for service in raw()["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET", name):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", str(value)), name
    for service in SERVICES.values():
        for part in (service.get("command"), service.get("healthcheck")):
            assert "secret-of" not in str(part)


@pytest.mark.parametrize("missing", sorted(required()))
def test_it_does_not_start_without_a_secret(missing: str) -> None:
    with pytest.raises(AssertionError, match=missing):
        filled({name: value for name, value in required().items() if name != missing})


def test_the_example_lists_every_variable_and_sets_none_of_the_secrets() -> None:
    example = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (COMPOSE / ".env.example").read_text(), re.MULTILINE))
    assert example.keys() == variables().keys()
    set_there = re.findall(r"^([A-Z_]+)=(.*)$", (COMPOSE / ".env.example").read_text(), re.MULTILINE)
    assert {name for name, _ in set_there} == required().keys()
    assert not any(value for _, value in set_there)
    assert ".env" in (COMPOSE / ".gitignore").read_text().splitlines()


def test_mounted_files_exist_and_are_read_only() -> None:
    used = set()
    for name, service in SERVICES.items():
        for source, target, mode in mounts(service):
            if source.startswith("."):
                assert (COMPOSE / source).exists(), f"{name}: {source}"
                assert mode == "ro", f"{name}: {target}"
            else:
                used.add(source)
    assert used == VOLUMES.keys()


def test_workers_run_with_as_little_as_they_can() -> None:
    for name in WORKERS:
        service = SERVICES[name]
        assert service["read_only"] is True and "/tmp" in service["tmpfs"]
        assert service["user"] == "10001:10001"
    for name, service in SERVICES.items():
        assert service.get("cap_drop") == (None if name == "clickhouse" else ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "network_mode", "pid", "cap_add", "devices"} & service.keys(), name
        assert not any("docker.sock" in source for source, _, _ in mounts(service)), name


def test_a_worker_has_longer_to_stop_than_it_takes() -> None:
    for name in WORKERS:
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > STOP_DEADLINE_S


def test_workers_of_one_kind_share_the_lock_on_their_names() -> None:
    for name in LOCKED:
        directory = str(worker_config(name).local.directory)
        assert [target for _, target, _ in mounts(SERVICES[name])] == [directory]
    shared = {source for name in LOCKED for source, _, _ in mounts(SERVICES[name])}
    assert len(shared) == 1


def test_nobody_is_told_until_a_target_is_set() -> None:
    assert not worker_config("notifier").notify.has_targets
    both = {"WEBHOOK_URL": "https://hook.example/x", "ALERTMANAGER_URL": "http://am:9093"}
    values = filled(required() | both)["services"]["notifier"]["environment"]
    notify = load_config(environ={key: str(value) for key, value in values.items()}).notify
    assert notify.webhooks["main"].url.get_secret_value() == both["WEBHOOK_URL"]
    assert notify.alertmanagers["alertmanager"].url == both["ALERTMANAGER_URL"]
    assert notify.console == "http://127.0.0.1:8780"


def test_kafka_is_one_node_that_keeps_its_data() -> None:
    kafka = SERVICES["kafka"]
    env = kafka["environment"]
    assert len(base64.urlsafe_b64decode(env["CLUSTER_ID"] + "==")) == 16
    assert env["KAFKA_LOG_DIRS"] in [target for _, target, _ in mounts(kafka)]
    assert env["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    listeners = dict(one.split("://") for one in env["KAFKA_LISTENERS"].split(","))
    told = dict(one.split("://") for one in env["KAFKA_ADVERTISED_LISTENERS"].split(","))
    protocols = dict(one.split(":") for one in env["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert listeners.keys() == protocols.keys() == told.keys() | {env["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert told["INSIDE"] == worker_config("sink").kafka.bootstrap
    assert kafka["ports"] == [f"{told['OUTSIDE']}{listeners['OUTSIDE']}"]
    assert env["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"{env['KAFKA_NODE_ID']}@kafka{listeners['CONTROLLER']}"


def test_another_port_of_kafka_is_also_told_to_clients() -> None:
    kafka = filled(required() | {"KAFKA_PORT": "19999"})["services"]["kafka"]
    assert kafka["ports"] == ["127.0.0.1:19999:9092"]
    assert "OUTSIDE://127.0.0.1:19999" in kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_clickhouse_has_the_two_users_that_are_used_and_no_other() -> None:
    env = SERVICES["clickhouse"]["environment"]
    root = ET.parse(COMPOSE / "clickhouse" / "users.xml").getroot()
    users = {user.tag: user for user in root.find("users") or ()}
    assert users.pop("default").attrib == {"remove": "remove"}
    assert users.keys() == {
        worker_config("sink").clickhouse.user,
        SERVICES["grafana"]["environment"]["CLICKHOUSE_USER"],
    }
    for user in users.values():
        password = user.find("password")
        assert password is not None and password.attrib["from_env"] in env and not password.text
    database = worker_config("sink").clickhouse.database
    granted = [query.text for query in users["grafana"].iter("query")]
    assert granted == [f"GRANT SELECT ON {database}.*"]
    profile = users["grafana"].findtext("profile")
    assert root.findtext(f"profiles/{profile}/readonly") == "2"


def test_clickhouse_logs_to_the_console_alone() -> None:
    logger = ET.parse(COMPOSE / "clickhouse" / "server.xml").getroot().find("logger")
    assert logger is not None and logger.findtext("console") == "1"
    assert {tag: logger.find(tag).attrib for tag in ("log", "errorlog")} == {  # type: ignore[union-attr]  # fails if absent
        "log": {"remove": "remove"},
        "errorlog": {"remove": "remove"},
    }


def test_grafana_finds_what_was_generated() -> None:
    grafana = SERVICES["grafana"]
    targets = {target: (COMPOSE / source).resolve() for source, target, _ in mounts(grafana) if source.startswith(".")}
    assert targets[DASHBOARDS_PATH] == GENERATED / "dashboards"
    for kind in ("datasources", "dashboards", "alerting"):
        assert targets[f"/etc/grafana/provisioning/{kind}"] == GENERATED / "provisioning" / kind
    env = grafana["environment"]
    assert env["GF_PLUGINS_PREINSTALL_SYNC"] == f"{PLUGIN}@{PLUGIN_VERSION}"
    home = env["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (targets[DASHBOARDS_PATH] / home.removeprefix(f"{DASHBOARDS_PATH}/")).is_file()


def test_grafana_has_every_variable_its_files_ask_for() -> None:
    env = SERVICES["grafana"]["environment"]
    asked: set[str] = set()
    for path in (GENERATED / "provisioning" / "datasources").glob("*.yaml"):
        asked |= set(re.findall(r"\$([A-Z_]+)", path.read_text()))
    for path in (GENERATED / "provisioning" / "alerting").glob("*.yaml"):
        asked |= set(re.findall(r"\$\{([A-Z_]+)\}", path.read_text()))
    assert asked == {"CLICKHOUSE_HOST", "CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD", "RUNBOOKS_URL"}
    assert asked <= env.keys()
    assert env["CLICKHOUSE_PASSWORD"] == "secret-of-clickhouse_grafana_password"


def test_an_alert_leads_to_a_page_that_grafana_serves() -> None:
    grafana = SERVICES["grafana"]
    [folder] = [
        (COMPOSE / source).resolve()
        for source, target, _ in mounts(grafana)
        if target.endswith("/public/kvtrail-runbooks")
    ]
    assert grafana["environment"]["RUNBOOKS_URL"] == "http://127.0.0.1:3000/public/kvtrail-runbooks"
    alerting = yaml.safe_load((GENERATED / "provisioning" / "alerting" / "kvtrail.yaml").read_text())
    for group in alerting["groups"]:
        for rule in group["rules"]:
            assert (folder / rule["annotations"]["runbook_url"].removeprefix("${RUNBOOKS_URL}/")).is_file()


def _compose() -> list[str] | None:
    """How to call Docker Compose here, if it is there at all; an engine is not needed."""
    if named := os.environ.get("DOCKER_COMPOSE"):
        return [named]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker"):
        asked = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
        return ["docker", "compose"] if asked.returncode == 0 else None
    return None


def test_docker_compose_itself_accepts_the_file() -> None:
    command = _compose()
    if command is None:
        pytest.skip("no Docker Compose on this machine")
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **required()}
    arguments = [*command, "-f", str(COMPOSE / "compose.yaml"), "config"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)
    assert read["services"].keys() == SERVICES.keys()
    for name, service in SERVICES.items():
        assert {key: str(value) for key, value in read["services"][name]["environment"].items()} == {
            key: str(value) for key, value in service["environment"].items()
        }, name


def test_the_file_says_how_to_start() -> None:
    assert "cp compose/.env.example compose/.env" in text()
    assert (ROOT / "compose" / "compose.yaml").is_file()
