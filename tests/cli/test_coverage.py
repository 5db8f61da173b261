"""`kvtrail coverage`, over recorded histories and over the store."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.cli.judge import Lines
from kvtrail.cli.main import kvtrail
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.envelope import Batch
from kvtrail.schemas.facts import Fact
from kvtrail.store.client import connect
from kvtrail.store.rows import Record, Source, fact_rows, record_rows
from kvtrail.tests.streams import histories

RECORDINGS = Path(__file__).parents[2] / "cli" / "recordings"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(kvtrail, ["coverage", *words])
    return result.exit_code, result.output


def test_a_recorded_history_says_what_it_can_reveal() -> None:
    status, output = run(str(RECORDINGS))
    assert status == 1
    assert " kinds of failure are invisible" in output.splitlines()[0]
    assert "Your cache sends no place on creates" in output
    assert "Never sent: " in output


def test_one_is_one(tmp_path: Path) -> None:
    (tmp_path / "incident.jsonl").write_bytes(histories.envelope(histories.incident()[:3])[1])
    assert "1 hit, 1 create." in run(str(tmp_path))[1]


def test_json_has_every_rule_and_every_dimension(tmp_path: Path) -> None:
    status, output = run(str(RECORDINGS), "--json")
    document = json.loads(output)
    assert (status, document["schema"], document["exact"]) == (1, "kvtrail.coverage/1", True)
    shares = {one["dimension"]: one["share"] for one in document["dimensions"]}
    assert shares["template_digest"] == 1.0 and shares["guardrail_digest"] == 0.0 and shares["resolved_model"] == 0.0
    (tmp_path / "empty.jsonl").write_text("")
    assert "nothing can be judged" in run(str(tmp_path))[1]


@pytest.mark.engine
def test_the_store_says_the_same_of_its_events(database: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    at = time.time_ns() // 1000  # what was appended long ago is past its retention
    with connect(database) as client:
        for number, one in enumerate(Lines(sorted(RECORDINGS.glob("*.jsonl")))):
            source = Source("kvtrail.lifecycle", 0, number, at)
            rows = [fact_rows([(source, one)])] if isinstance(one, Fact) else []
            if isinstance(one, Batch) and one.events:
                rows = [record_rows([Record(source, b"{}", one, frozenset())])]
            for table, columns in rows:
                client.insert(table, columns, token=f"{number}")
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    stored = json.loads(run("--since", "36500d", "--json")[1])
    recorded = json.loads(run(str(RECORDINGS), "--json")[1])
    assert (stored["exact"], stored["hits"], stored["creates"]) == (False, recorded["hits"], recorded["creates"])
    assert stored["hits"] and stored["rules"] == recorded["rules"]
