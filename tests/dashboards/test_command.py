"""`kvtrail dashboards write` and `check`."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.cli.dashboards import dashboards
from kvtrail.dashboards import generate
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.store.client import connect


def test_write_says_what_it_wrote(tmp_path: Path) -> None:
    first = CliRunner().invoke(dashboards, ["write", str(tmp_path)])
    assert first.exit_code == 0 and "4 files, 4 changed" in first.output
    assert "4 files, 0 changed" in CliRunner().invoke(dashboards, ["write", str(tmp_path)]).output


def test_check_passes_on_what_is_checked_in() -> None:
    result = CliRunner().invoke(dashboards, ["check"])
    assert result.exit_code == 0, result.output


def test_check_finds_stale_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "GENERATED", tmp_path)
    result = CliRunner().invoke(dashboards, ["check"])
    assert result.exit_code == 1
    assert "dashboards/integrity.json: run `kvtrail dashboards write`" in result.output


@pytest.mark.engine
def test_check_runs_every_query(database: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    good = CliRunner().invoke(dashboards, ["check", "--run"])
    assert good.exit_code == 0 and "20 queries ran" in good.output, good.output
    with connect(database) as client:
        client.command("DROP TABLE per_minute SYNC")
    bad = CliRunner().invoke(dashboards, ["check", "--run"])
    assert bad.exit_code == 1 and "event_rate: query failed" in bad.output
