"""What is checked in is what the code writes, and what the code writes is fit to be shown."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard
from kvtrail.dashboards import generate
from kvtrail.dashboards.alerts import api_group
from kvtrail.dashboards.integrity import RULES
from kvtrail.dashboards.lint import lint_dashboard, lint_rules
from kvtrail.dashboards.queries import QUERIES
from kvtrail.dashboards.target import DATASOURCE_UID

RUNBOOKS = Path(generate.__file__).parent.parent / "docs" / "runbooks"
Spoil = Callable[[dict[str, Any]], object]


@pytest.fixture
def board() -> dict[str, Any]:
    return copy.deepcopy(generate.dashboards()["integrity.json"])


@pytest.fixture
def groups() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(generate.files()["provisioning/alerting/kvtrail.yaml"])
    return found


def test_the_checked_in_files_are_what_the_code_writes() -> None:
    assert generate.stale(generate.GENERATED) == [], "run `kvtrail dashboards write`"


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    assert len(generate.write(tmp_path)) == 4
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert generate.write(tmp_path) == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_stale_files_are_named(tmp_path: Path) -> None:
    generate.write(tmp_path)
    (tmp_path / "dashboards" / "integrity.json").write_text("{}")
    (tmp_path / "dashboards" / "left-over.json").write_text("{}")
    (tmp_path / "provisioning" / "alerting" / "kvtrail.yaml").unlink()
    assert generate.stale(tmp_path) == [
        "dashboards/integrity.json", "dashboards/left-over.json", "provisioning/alerting/kvtrail.yaml",
    ]  # fmt: skip


def test_the_dashboard_survives_the_sdk_unchanged(board: dict[str, Any]) -> None:
    assert generate.plain(Dashboard.from_json(copy.deepcopy(board))) == board


def test_every_query_in_the_files_is_a_named_one_and_every_named_one_is_used(
    board: dict[str, Any], groups: dict[str, Any]
) -> None:
    used: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            used.extend(text for name, text in value.items() if name == "rawSql")
            for inner in value.values():
                collect(inner)
        elif isinstance(value, list):
            for inner in value:
                collect(inner)

    collect(board)
    collect(groups)
    assert sorted(used) == sorted(query.text for query in QUERIES)


def test_overrides_and_links_name_columns_that_exist(board: dict[str, Any]) -> None:
    by_sql = {query.text: query for query in QUERIES}
    linked = 0
    for panel in board["panels"]:
        columns = by_sql[panel["targets"][0]["rawSql"]].columns
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"] in columns, panel["title"]
            for prop in override["properties"]:
                for link in prop["value"] if prop["id"] == "links" else ():
                    fields = re.findall(r'\$\{__data\.fields\["(\w+)"\]:percentencode\}', link["url"])
                    assert fields and set(fields) <= columns.keys(), panel["title"]
                    linked += 1
    assert linked == 4


def test_the_dashboard_is_clean(board: dict[str, Any]) -> None:
    assert lint_dashboard(board) == []


def test_the_rules_are_clean(board: dict[str, Any], groups: dict[str, Any]) -> None:
    assert lint_rules(groups, [board], RUNBOOKS) == []


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda b: b.update(uid=""), "uid"),
        (lambda b: b.update(editable=True), "edited"),
        (lambda b: b.update(description=""), "description"),
        (lambda b: b["templating"]["list"].pop(0), "no variable for its data source"),
        (lambda b: b["templating"]["list"][1].update(refresh=1), "time range"),
        (lambda b: b["annotations"]["list"].pop(0), "built-in"),
        (lambda b: b["annotations"]["list"][1]["target"].update(rawSql="SELECT 1"), "LIMIT"),
        (lambda b: b["panels"][0].update(title=""), "no title"),
        (lambda b: b["panels"][0].pop("id"), "no id"),
        (lambda b: b["panels"][1].update(id=1), "used twice"),
        (lambda b: b["panels"][1]["gridPos"].update(x=1), "overlaps"),
        (lambda b: b["panels"][5]["gridPos"].update(w=5), "24 columns"),
        (lambda b: b["panels"][0]["fieldConfig"]["defaults"].update(unit="furlong"), "unknown unit"),
        (lambda b: b["panels"][0]["fieldConfig"]["defaults"].pop("noValue"), "no value"),
        (lambda b: b["panels"][0]["targets"][0]["datasource"].update(uid="x"), "data source"),
        (lambda b: b["panels"][0]["targets"][0].update(rawSql="SELECT * FROM events LIMIT 5"), "every column"),
        (lambda b: b["panels"][0]["targets"][0].update(rawSql="SELECT a FROM t LIMIT 1 BY id"), "bounded"),
        (lambda b: b["panels"][0].update(targets=[]), "no query"),
        (lambda b: b["panels"][0]["options"]["reduceOptions"].update(calcs=[]), "which value"),
        (lambda b: b["panels"][6]["targets"][0].update(format=1), "asks for a table"),
    ],
)
def test_the_lint_finds(board: dict[str, Any], spoil: Spoil, complaint: str) -> None:
    spoil(board)
    found = lint_dashboard(board)
    assert any(complaint in problem for problem in found), found


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda r: r.update(uid="x" * 41), "uid"),
        (lambda r: r.update(panelId=99), "panel that does not exist"),
        (lambda r: r["annotations"].update(runbook_url="http://x/none.md"), "names no page"),
        (lambda r: r["annotations"].pop("runbook_url"), "no runbook_url"),
        (lambda r: r["labels"].pop("severity"), "pages somebody"),
        (lambda r: r.update(condition="Z"), "names no query"),
        (lambda r: r["data"][0].update(datasourceUid="${datasource}"), "literal uid"),
        (lambda r: r["data"][0]["model"].update(rawSql="SELECT $__conditionalAll(a, $tenant) LIMIT 1"), "browser"),
        (lambda r: r["data"][0]["model"].update(rawSql="SELECT count() FROM t GROUP BY a LIMIT 1"), "groups"),
        (lambda r: r["data"][0]["model"].update(rawSql="SELECT count() FROM t"), "bounded"),
    ],
)
def test_the_lint_of_rules_finds(board: dict[str, Any], groups: dict[str, Any], spoil: Spoil, complaint: str) -> None:
    spoil(groups["groups"][0]["rules"][0])
    found = lint_rules(groups, [board], RUNBOOKS)
    assert any(complaint in problem for problem in found), found


def test_files_and_api_say_the_same_in_their_own_names(groups: dict[str, Any]) -> None:
    api = api_group(RULES, "https://runbooks.example/")
    assert api["interval"] == 60 and groups["groups"][0]["interval"] == "60s"
    for rule, filed in zip(api["rules"], groups["groups"][0]["rules"], strict=True):
        assert rule["keep_firing_for"] == filed["keepFiringFor"]
        assert rule["annotations"]["__panelId__"] == str(filed["panelId"])
        assert rule["annotations"]["__dashboardUid__"] == filed["dashboardUid"]
        assert rule["annotations"]["runbook_url"].startswith("https://runbooks.example/")
        assert filed["annotations"]["runbook_url"].startswith("${RUNBOOKS_URL}/")
        assert rule["data"] == filed["data"]
        assert rule["folderUID"] == api["folderUid"]
        assert not {"folderUID", "orgID", "ruleGroup", "keep_firing_for"} & filed.keys()


def test_the_files_agree_on_uids_and_hold_no_secret(groups: dict[str, Any]) -> None:
    files = generate.files()
    source = yaml.safe_load(files["provisioning/datasources/kvtrail.yaml"])["datasources"][0]
    assert source["uid"] == DATASOURCE_UID == groups["groups"][0]["rules"][0]["data"][0]["datasourceUid"]
    assert source["secureJsonData"] == {"password": "$CLICKHOUSE_PASSWORD"}
    provider = yaml.safe_load(files["provisioning/dashboards/kvtrail.yaml"])["providers"][0]
    assert provider["allowUiUpdates"] is False
    assert provider["folder"] == groups["groups"][0]["folder"]
