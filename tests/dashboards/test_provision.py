"""Pushing through grafana-api, against a stub of Grafana's HTTP API."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kvtrail.cli.dashboards import dashboards as command
from kvtrail.dashboards.grafana import (
    Grafana,
    GrafanaConflict,
    GrafanaRefused,
    GrafanaUnavailable,
)
from kvtrail.dashboards.integrity import RULES, UID
from kvtrail.dashboards.provision import Step, datasource, push
from kvtrail.dashboards.target import DATASOURCE_UID
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.errors import ConfigError, KvtrailError
from kvtrail.tests.dashboards.stub_grafana import Answer, StubGrafana
from pydantic import SecretStr

TOKEN = "glsa_very-secret"
GROUP = "/v1/provisioning/folder/kvtrail/rule-groups/kvtrail"
SOURCE_PATH = f"/datasources/uid/{DATASOURCE_UID}"


@pytest.fixture
def stub() -> Iterator[StubGrafana]:
    with StubGrafana() as server:
        yield server


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def grafana(stub: StubGrafana, pauses: list[float]) -> Grafana:
    return Grafana(stub.url, TOKEN, pause=pauses.append)


def source(password: str = "") -> dict[str, Any]:
    return datasource(ClickHouseConfig(url="https://ch.example/", user="grafana", password=SecretStr(password)))


def pushed(grafana: Grafana, **kwargs: Any) -> list[Step]:
    return push(grafana, **{"source": source(), "runbooks": "https://rb.example", **kwargs})


def test_an_empty_grafana_gets_everything_in_order(stub: StubGrafana, grafana: Grafana) -> None:
    assert [step.verb for step in pushed(grafana)] == ["create"] * 4
    assert stub.writes() == [
        ("POST", "/folders"), ("POST", "/datasources"), ("POST", "/dashboards/db"), ("PUT", GROUP),
    ]  # fmt: skip
    sent = {request.path: request for request in stub.requests if request.method != "GET"}
    assert all(request.headers["Authorization"] == f"Bearer {TOKEN}" for request in stub.requests)
    assert sent["/folders"].body == {"title": "kvtrail", "uid": "kvtrail"}
    board = sent["/dashboards/db"].body
    assert (board["dashboard"]["uid"], board["folderUid"], board["overwrite"]) == (UID, "kvtrail", True)
    assert sent[GROUP].headers["X-Disable-Provenance"] == "true"
    assert [rule["uid"] for rule in sent[GROUP].body["rules"]] == [rule.uid for rule in RULES]
    assert sent[GROUP].body["rules"][0]["annotations"]["runbook_url"] == "https://rb.example/critical-finding.md"


def test_pushing_again_writes_nothing(stub: StubGrafana, grafana: Grafana) -> None:
    pushed(grafana)
    stub.requests.clear()
    assert [step.verb for step in pushed(grafana)] == ["keep"] * 4
    assert stub.writes() == []


def test_only_what_differs_is_written(stub: StubGrafana, grafana: Grafana) -> None:
    pushed(grafana)
    stub.objects[f"/dashboards/uid/{UID}"]["dashboard"]["title"] = "renamed by hand"
    stub.objects[GROUP]["rules"].append({"uid": "left-over"})
    stub.objects["/folders/kvtrail"]["title"] = "something else"
    stub.objects[SOURCE_PATH]["jsonData"] = {}
    stub.requests.clear()
    assert [step.verb for step in pushed(grafana)] == ["update"] * 4
    assert stub.writes() == [
        ("PUT", "/folders/kvtrail"), ("PUT", SOURCE_PATH), ("POST", "/dashboards/db"), ("PUT", GROUP),
    ]  # fmt: skip


def test_a_dashboard_in_another_folder_is_brought_home(stub: StubGrafana, grafana: Grafana) -> None:
    pushed(grafana)
    stub.objects[f"/dashboards/uid/{UID}"]["meta"]["folderUid"] = "elsewhere"
    assert [step.verb for step in pushed(grafana)] == ["keep", "keep", "update", "keep"]


def test_a_dry_run_only_reads(stub: StubGrafana, grafana: Grafana) -> None:
    assert [step.verb for step in pushed(grafana, dry_run=True)] == ["create"] * 4
    assert stub.writes() == []


def test_a_data_source_with_a_password_is_always_written(stub: StubGrafana, grafana: Grafana) -> None:
    pushed(grafana, source=source("hunter2"))
    assert [step.verb for step in pushed(grafana, source=source("hunter2"))] == ["keep", "update", "keep", "keep"]
    assert stub.requests[-1].path == GROUP
    [put] = [request for request in stub.requests if (request.method, request.path) == ("PUT", SOURCE_PATH)]
    assert put.body["secureJsonData"] == {"password": "hunter2"}


def test_a_data_source_from_a_file_is_left_alone(stub: StubGrafana, grafana: Grafana) -> None:
    stub.objects[SOURCE_PATH] = {"uid": DATASOURCE_UID, "readOnly": True}
    with pytest.raises(GrafanaRefused, match="no-datasource"):
        pushed(grafana)
    assert [step.what for step in pushed(grafana, source=None)] == ["folder", "dashboard", "rule group"]


@pytest.mark.parametrize("status", [202, 204])
def test_a_success_without_a_body_is_a_success(stub: StubGrafana, grafana: Grafana, status: int) -> None:
    stub.plan("PUT", GROUP, Answer(status))
    assert [step.verb for step in pushed(grafana)] == ["create"] * 4


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_passing_failure_is_tried_again(
    stub: StubGrafana, grafana: Grafana, pauses: list[float], status: int
) -> None:
    stub.plan("POST", "/dashboards/db", *[Answer(status, {"message": "busy"})] * 3)
    assert [step.verb for step in pushed(grafana)] == ["create"] * 4
    assert stub.writes().count(("POST", "/dashboards/db")) == 4
    assert pauses == sorted(pauses) and len(pauses) == 3


def test_a_lasting_failure_ends_the_push(stub: StubGrafana, grafana: Grafana, pauses: list[float]) -> None:
    stub.plan("POST", "/dashboards/db", *[Answer(500)] * 9)
    with pytest.raises(GrafanaUnavailable, match="dashboard: Grafana answered 500"):
        pushed(grafana)
    assert stub.writes().count(("POST", "/dashboards/db")) == 4
    assert ("PUT", GROUP) not in stub.writes()


def test_nothing_listens(pauses: list[float]) -> None:
    with StubGrafana() as gone:
        url = gone.url
    with pytest.raises(GrafanaUnavailable, match="no answer"):
        Grafana(url, TOKEN, pause=pauses.append).version()
    assert len(pauses) == 3


def test_a_folder_that_appeared_meanwhile_is_as_good(stub: StubGrafana, grafana: Grafana) -> None:
    stub.plan("GET", "/folders/kvtrail", Answer(404, {"message": "no"}))
    stub.objects["/folders/kvtrail"] = {"uid": "kvtrail", "title": "kvtrail"}
    stub.plan("POST", "/folders", Answer(412, {"message": "exists"}))
    assert [step.verb for step in pushed(grafana)] == ["create"] * 4


def test_a_conflict_is_told(stub: StubGrafana, grafana: Grafana) -> None:
    stub.plan("POST", "/dashboards/db", Answer(412, {"message": "somebody else"}))
    with pytest.raises(GrafanaConflict, match="412"):
        pushed(grafana)


@pytest.mark.parametrize(("status", "says"), [(400, "does not accept"), (401, "token"), (403, "Admin role")])
def test_a_refusal_is_not_tried_again(stub: StubGrafana, grafana: Grafana, status: int, says: str) -> None:
    stub.plan("PUT", GROUP, Answer(status, {"message": "no"}))
    with pytest.raises(GrafanaRefused, match=says):
        pushed(grafana)
    assert stub.writes().count(("PUT", GROUP)) == 1


def test_an_old_grafana_is_refused_before_anything_is_written(stub: StubGrafana, grafana: Grafana) -> None:
    stub.objects["/health"] = {"version": "11.2.0"}
    with pytest.raises(GrafanaRefused, match="too old"):
        pushed(grafana)
    assert stub.writes() == []


@pytest.mark.parametrize("version", ["13.2.3", "13.0.1-security-01", "12.4.0+security-01", ""])
def test_versions_are_read(stub: StubGrafana, grafana: Grafana, version: str) -> None:
    stub.objects["/health"] = {"version": version}
    assert grafana.version() == tuple(int(part) for part in version.split("-")[0].split("+")[0].split(".") if part)


def test_a_redirect_is_not_followed(stub: StubGrafana, grafana: Grafana) -> None:
    target = Answer(302, None, (("Location", f"{stub.url}/api/health"),))
    stub.plan("POST", "/folders", target)
    with pytest.raises(GrafanaRefused, match="redirects"):
        pushed(grafana)


def test_a_path_before_the_api_is_kept() -> None:
    with StubGrafana(prefix="/monitoring/grafana") as stub:
        assert Grafana(f"{stub.url}/", TOKEN).version() == (13, 2, 3)


@pytest.mark.parametrize("status", [400, 401, 412, 500])
def test_the_token_is_in_no_message_even_when_the_server_echoes_it(
    stub: StubGrafana, pauses: list[float], caplog: pytest.LogCaptureFixture, status: int
) -> None:
    grafana = Grafana(stub.url, TOKEN, attempts=2, pause=pauses.append)
    stub.plan("PUT", GROUP, *[Answer(status, {"message": f"you sent Bearer {TOKEN}"})] * 2)
    with caplog.at_level(logging.DEBUG), pytest.raises(KvtrailError) as caught:
        pushed(grafana)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert TOKEN not in str(chain) + repr(chain)
        chain = chain.__cause__ if chain.__cause__ or chain.__suppress_context__ else chain.__context__
    assert TOKEN not in caplog.text + repr(grafana)


@pytest.mark.parametrize(
    ("url", "token", "says"),
    [
        ("grafana.example", TOKEN, "address"),
        ("ftp://grafana.example", TOKEN, "address"),
        ("http://grafana.example", TOKEN, "unencrypted"),
        ("https://me:secret@grafana.example", TOKEN, "credentials"),
        ("https://grafana.example?token=x", TOKEN, "parameters"),
        ("https://grafana.example", " \n", "empty"),
    ],
)
def test_bad_addresses_and_tokens_are_refused_at_once(url: str, token: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Grafana(url, token)


def test_the_data_source_is_the_configured_clickhouse() -> None:
    made = datasource(ClickHouseConfig(url="http://ch", database="db", user="u"))
    assert made["jsonData"] | {"queryTimeout": ""} == {
        "host": "ch", "port": 8123, "protocol": "http", "secure": False, "username": "u", "defaultDatabase": "db",
        "queryTimeout": "",
    }  # fmt: skip
    assert "secureJsonData" not in made
    assert source("p")["jsonData"]["port"] == 8443
    with pytest.raises(ConfigError, match=r"clickhouse\.url"):
        datasource(ClickHouseConfig(url="ch:8123"))


def test_the_command_pushes(stub: StubGrafana, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    arguments = ["push", "--url", stub.url, "--token-file", str(token), "--runbooks", "https://rb.example"]
    dry = CliRunner().invoke(command, [*arguments, "--dry-run"])
    assert dry.exit_code == 0 and "would create" in dry.output and stub.writes() == []
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == "create        folder kvtrail"
    assert len(stub.writes()) == 4 and TOKEN not in dry.output + done.output
