"""`kvtrail hit-rate` on the real engine."""

import json
import time

import pytest
from click.testing import CliRunner
from kvtrail.cli.hit_rate import hit_rate
from kvtrail.cli.main import main
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.events import Event, LookupCount, Lookups
from kvtrail.store.client import connect
from kvtrail.store.rows import record_rows
from kvtrail.tests.store.samples import record

pytestmark = pytest.mark.engine

COUNTS = (
    LookupCount(tenant_id="northwind", template_id="support_v7", model_id="m1", tier="gpu", hit=1500, miss=500),
    LookupCount(tenant_id="northwind", template_id="support_v7", model_id="m1", tier="nvme", partial=10, miss=490),
    LookupCount(tenant_id="contoso", tier="gpu", bypassed=7),
)


@pytest.fixture
def stored(database: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    event = Event(
        node="gpu-1",
        incarnation="i",
        home="n:gpu-1",
        seq=4,
        time_us=time.time_ns() // 1000,
        body=Lookups(counts=COUNTS),
    )
    with connect(database) as client:
        client.insert(*record_rows([record([event], 0)]), token="l")


def test_rates_by_tenant_and_what_they_leave_out(stored: None) -> None:
    shown = CliRunner().invoke(hit_rate, []).output.replace("\u00a0", " ").splitlines()
    assert shown[0].split() == ["tenant", "lookups", "hit", "partial", "miss", "bypassed", "hit", "rate"]
    assert shown[1].split() == ["northwind", "2", "500", "1", "500", "10", "990", "0", "60.0%"]
    assert shown[2].split() == ["contoso", "7", "0", "0", "0", "7", "-"]
    assert "not weighted by tokens" in shown[4]
    assert shown[5] == "Not accounted for, each may hold lookups: 3 events missing from 1 lane."


def test_groups_and_json(stored: None) -> None:
    document = json.loads(CliRunner().invoke(hit_rate, ["--by", "model, tier", "--json"]).output)
    assert [(row["model"], row["tier"], row["hit_rate"]) for row in document["rows"]] == [
        ("m1", "gpu", 0.75),
        ("m1", "nvme", 0.0),
        ("", "gpu", None),
    ]
    assert document["unaccounted"]["missing"] == 3 and "not weighted" in document["counts"]


def test_nothing_reported_is_said(database: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    shown = CliRunner().invoke(hit_rate, []).output
    assert shown.startswith("No lookups were reported") and "Nothing is known to be missing" in shown


def test_another_group_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["hit-rate", "--by", "colour"])
    assert "--by: is nothing to group by." in capsys.readouterr().err
