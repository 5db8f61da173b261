"""The preview is drawn from the generated JSON and the engine's answers."""

import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.cli.dashboards import dashboards as command
from kvtrail.dashboards import generate
from kvtrail.dashboards.formats import human
from kvtrail.dashboards.macros import Window
from kvtrail.dashboards.preview import preview
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.events import Hit
from kvtrail.store.client import connect
from kvtrail.tests.dashboards import history

BOARD = generate.dashboards()["integrity.json"]


def window() -> Window:
    now = int(time.time())
    return Window(start_s=now - 3600, end_s=now + 1, interval_s=60, variables={"tenant": ()})


@pytest.mark.engine
def test_the_page_has_every_panel_and_the_incident(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        history.store_incident(client, int(time.time() * history.S))
        history.store_checks(client, int(time.time() * history.S))
        page = preview(BOARD, client, window(), "http://console")
    for panel in BOARD["panels"]:
        assert f"<h2>{panel['title']}</h2>" in page
    assert 'color:#f2495c">3</div>' in page  # open findings, red
    assert "another&#x27;s marker" in page
    assert re.search(r'href="http://console/investigate\?request=r3"', page)
    assert re.search(r'href="http://console/incidents/[0-9a-f]{32}"', page)
    assert page.count("<svg") == 4
    assert "None in this time range" not in page


@pytest.mark.engine
def test_an_empty_store_says_so_in_every_panel(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        page = preview(BOARD, client, window(), "http://console")
    assert page.count('class="none"') == 10
    assert "No events" in page and "No traffic" in page


@pytest.mark.engine
def test_what_tenants_choose_is_escaped(database: ClickHouseConfig) -> None:
    who = history.identity("<script>alert(1)</script>", "a", "1")
    now = int(time.time() * history.S)
    with connect(database) as client:
        hit = history.event(1, now - history.S, Hit(reused_tokens=5), who, '"><img src=x>')
        history.store_events(client, [hit], now)
        history.store_findings(client, [history.wrong_hit(hit)], now)
        page = preview(BOARD, client, window(), "http://console")
    assert "<script" not in page and "<img" not in page
    assert "request=%22%3E%3Cimg%20src%3Dx%3E" in page


@pytest.mark.engine
def test_the_command_writes_the_page(
    database: ClickHouseConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    done = CliRunner().invoke(command, ["preview", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1234567, "locale", "1,234,567"), (0.5, "percentunit", "50%"), (0.0421, "s", "42.1 ms"), (3.0, "s", "3 s"),
        (90, "s", "1.5 min"), (7200, "s", "2 hours"), (1530, "none", "1.53 K"), (0.1, "eps", "0.1 evt/s"),
        (None, "none", ""), ("text", "s", "text"),
        (datetime(2026, 1, 2, 3, 4, 5), "dateTimeAsIso", "2026-01-02 03:04:05"),
    ],
)  # fmt: skip
def test_values_are_shown_in_their_unit(value: object, unit: str, shown: str) -> None:
    assert human(value, unit) == shown
