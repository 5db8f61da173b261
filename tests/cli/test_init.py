"""`kvtrail init`: topics and schema, before any worker."""

import pytest
from click.testing import CliRunner
from kvtrail.cli.init import init
from kvtrail.schemas.config import ClickHouseConfig, KafkaConfig
from kvtrail.store.client import connect
from kvtrail.store.migrate import verify


@pytest.mark.kafka
@pytest.mark.engine
def test_init_makes_what_workers_need_and_can_be_repeated(
    kafka: KafkaConfig, engine: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("KVTRAIL_KAFKA__PARTITIONS", str(kafka.partitions))
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", engine.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", "t_init")
    first = CliRunner().invoke(init, [])
    assert first.exit_code == 0, first.output
    assert "topics: as they must be" in first.output and "statements ran" in first.output
    again = CliRunner().invoke(init, [])
    assert again.exit_code == 0 and "schema: up to date" in again.output
    with connect(engine.model_copy(update={"database": "t_init"})) as client:
        verify(client)
        client.command("DROP DATABASE t_init SYNC", in_database=False)
