"""Incidents are the same wherever one looks: `kvtrail judge`, `kvtrail findings --incidents`."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.audit.incidents import fold_incidents
from kvtrail.cli.main import kvtrail
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.store.client import connect
from kvtrail.store.rows import Source, finding_rows
from kvtrail.tests.judging.test_incidents import MANY, revisions


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(kvtrail, list(words))
    return result.exit_code, result.output


@pytest.mark.engine
def test_the_store_folds_what_the_judges_said(database: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = f"{MANY}\nn2:1 create Z acme {{in=I1}}\nn2:3 hit Z acme {{in=I2}}\nn2:2 create Z acme {{in=I2}}"
    told = revisions(lines)
    assert any(finding.status == "retracted" and finding.reason for finding in told)
    at = Source("kvtrail.findings", 0, 0, time.time_ns() // 1000)
    with connect(database) as client:
        client.insert(*finding_rows([(at, finding) for finding in told]), token="findings")
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    status, output = run("findings", "--incidents", "--json")
    assert status == 1
    stored = json.loads(output)["incidents"]
    folded = fold_incidents({finding.id: finding for finding in told}.values())
    assert {(one["cause_id"], one["severity"], one["findings"]) for one in stored} == {
        (one.cause_id, one.severity.value, one.findings) for one in folded
    }
    _, text = run("findings", "--incidents")
    assert all(one.sentence in text for one in folded)


def test_judge_says_incidents_in_the_same_words(tmp_path: Path) -> None:
    recording = Path(__file__).parents[2] / "cli" / "recordings"
    status, output = run("judge", str(recording))
    assert status == 0
    document = json.loads(run("judge", str(recording), "--json")[1])
    assert len(document["incidents"]) == output.count("\nincident ") > 0
    for one in document["incidents"]:
        assert f"incident {one['cause_id'][:12]}  {one['severity']}" in output
    assert "this key does not cover tenant: " in output
