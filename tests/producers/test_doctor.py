"""`kvtrail producers doctor` says what works and what does not."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.producers import producers
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import KafkaConfig, PublisherConfig

from .agents import Running
from .reading import TENANT, decode, events, read_topic


def doctor(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(
        producers, ["doctor", *arguments], env={f"KVTRAIL_{name}": value for name, value in environ.items()}
    )


@pytest.mark.kafka
def test_a_probe_goes_every_way_there_is(topics: KafkaConfig, tmp_path: Path) -> None:
    down = MemoryTransport(down=True)
    left = LifecyclePublisher("gpu-9", down, PublisherConfig(spool_directory=tmp_path / "spool", spool_after_s=0.01))
    left.hit("k", TENANT, store="kv", tier="gpu")
    assert left.close()
    with Running(tmp_path / "agent.sock", memory := MemoryTransport()):
        said = doctor(
            KAFKA__BOOTSTRAP=topics.bootstrap,
            PUBLISHER__SPOOL_DIRECTORY=str(tmp_path / "spool"),
            PUBLISHER__SPOOL_BYTES="1000000",
            AGENT__SOCKET=str(tmp_path / "agent.sock"),
        )
    assert said.exit_code == 0, said.output
    lines = {line.split()[0]: line for line in said.output.splitlines()}
    assert all(" ok" in line for line in lines.values()) and set(lines) == {"configuration", "broker", "spool", "agent"}
    assert "gpu-9" in lines["spool"]
    for found in (
        events(decode(value for _, _, value in read_topic(topics))),
        events(decode(record for _, record in memory.records)),
    ):
        assert [event.type for event in found] == ["node_start", "check"]
        assert found[0].node.startswith("kvtrail-doctor/")


def test_what_does_not_work_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = doctor(
        "--timeout", "0.3",
        KAFKA__BOOTSTRAP="127.0.0.1:1",
        PUBLISHER__SPOOL_DIRECTORY=str(tmp_path / "file" / "spool"),
        AGENT__SOCKET=str(tmp_path / "agent.sock"),
    )  # fmt: skip
    assert said.exit_code == 1
    lines = {line.split()[0]: line for line in said.output.splitlines()}
    assert "KafkaConnectionError" in lines["broker"]
    assert "publisher.spool_directory" in lines["spool"]
    assert "FileNotFoundError" in lines["agent"]
