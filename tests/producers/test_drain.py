"""`kvtrail producers drain`: what a host that is gone has left in its spool is sent once, and accounted for."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.producers import producers
from kvtrail.producers import tally
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import KafkaConfig, PublisherConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.events import Check

from .reading import TENANT, decode, events, first_arrivals, gaps, read_topic, runs, until

KILLED = """
    import os, sys
    from pathlib import Path
    from kvtrail.producers.memory import MemoryTransport
    from kvtrail.producers.publisher import LifecyclePublisher
    from kvtrail.schemas.config import PublisherConfig
    from kvtrail.schemas.identity import Identity
    config = PublisherConfig(spool_directory=Path(sys.argv[1]), spool_after_s=0.05, linger_s=0.0, envelope_events=10)
    publisher = LifecyclePublisher("gpu-1", MemoryTransport(down=True), config)
    for n in range(100):
        publisher.hit(f"k{n}", Identity(tenant_id="northwind"), store="kv", tier="gpu", request_id=str(n))
    assert publisher.flush()
    publisher._sender._transport.spool.append = None  # from now on nothing gets out of memory
    for n in range(100, 130):
        publisher.hit(f"k{n}", Identity(tenant_id="northwind"), store="kv", tier="gpu", request_id=str(n))
    os.kill(os.getpid(), 9)
"""


def drain(*arguments: str, bootstrap: str) -> Result:
    return CliRunner().invoke(
        producers, ["drain", *arguments], env={"KVTRAIL_KAFKA__BOOTSTRAP": bootstrap}, catch_exceptions=False
    )


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Of a node that was killed: a hundred events on disk, thirty in memory."""
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], timeout=60, check=False)
    assert killed.returncode == -9
    return tmp_path


@pytest.mark.kafka
def test_what_is_left_is_sent_once_in_order_and_the_rest_declared(spool: Path, request: pytest.FixtureRequest) -> None:
    topics: KafkaConfig = request.getfixturevalue("topics")
    alive = LifecyclePublisher("gpu-2", MemoryTransport(down=True), PublisherConfig(spool_directory=spool))
    alive.hit("k", TENANT, store="kv", tier="gpu")
    done = drain("--spool", str(spool), bootstrap=topics.bootstrap)
    assert done.exit_code == 0, done.output
    assert "gpu-1: " in done.output and "1 of them ends of lanes that a kill cut off" in done.output
    batches = decode(value for _, _, value in read_topic(topics))
    arrived = first_arrivals(batches)
    assert [int(event.request_id) for event in arrived if event.request_id] == list(range(100))
    assert isinstance(arrived[-1].body, Check) and {event.node for event in arrived} == {"gpu-1"}
    (lane,) = runs(batches).values()
    assert gaps(lane) == 30
    assert [path.name for path in spool.iterdir() if list(path.iterdir())] == ["n-gpu-2"], "what runs is left alone"
    again = drain("--spool", str(spool), bootstrap=topics.bootstrap)
    assert again.exit_code == 0 and len(events(decode(v for _, _, v in read_topic(topics)))) == len(arrived)
    alive.close(0)


def test_without_a_broker_everything_stays_and_it_says_so(spool: Path) -> None:
    before = sorted(path.stat().st_size for path in spool.rglob("*.seg"))
    done = drain("--spool", str(spool), "--timeout", "0.2", bootstrap="127.0.0.1:1")
    assert done.exit_code == 1 and "left" in done.output and "run it again" in done.output
    assert sorted(path.stat().st_size for path in spool.rglob("*.seg")) == before


@pytest.mark.kafka
def test_another_boots_memory_is_unknown_and_said(
    spool: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    topics: KafkaConfig = request.getfixturevalue("topics")
    monkeypatch.setattr(tally, "_boot", lambda: "another")
    done = drain("--spool", str(spool), "--node", "gpu-1", bootstrap=topics.bootstrap)
    assert done.exit_code == 0 and "what they had in memory is unknown" in done.output
    found = events(decode(value for _, _, value in read_topic(topics)))
    assert len(found) == 101 and not any(isinstance(event.body, Check) for event in found)


def test_an_empty_spool_and_a_missing_folder(tmp_path: Path) -> None:
    assert "nothing is left" in drain("--spool", str(tmp_path), bootstrap="127.0.0.1:1").output
    refused = CliRunner().invoke(producers, ["drain"], env={"KVTRAIL_PUBLISHER__SPOOL_DIRECTORY": ""})
    assert refused.exit_code != 0


def test_what_cannot_be_read_is_named_with_what_to_do(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a traceback nor "nothing is left": root reads everything, so the disk says no."""
    whole = Path.read_bytes, Path.iterdir
    denied: list[str] = []

    def unless_denied(path: Path) -> None:
        if path.name in denied:
            raise PermissionError(13, "Permission denied", str(path))

    def read_bytes(path: Path) -> bytes:
        unless_denied(path)
        return whole[0](path)

    def iterdir(path: Path) -> Iterator[Path]:
        unless_denied(path)
        return whole[1](path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(Path, "iterdir", iterdir)
    for denied[:] in (["tally"], ["n-gpu-1"]):
        with pytest.raises(ConfigError, match="Permission denied") as told:
            CliRunner().invoke(producers, ["drain", "--spool", str(spool)], catch_exceptions=False)
        assert told.value.field == "publisher.spool_directory" and "Run it as the user" in told.value.remedy


def test_how_far_behind_is_told_and_comes_to_nothing(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    config = PublisherConfig(spool_directory=tmp_path, spool_after_s=0.05, linger_s=0.0)
    publisher = LifecyclePublisher("gpu-1", memory, config)
    assert publisher.stats().lag_s == 0
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    until(lambda: publisher.stats().spooled > 0 and publisher.stats().lag_s > 0.2, "it is behind")
    memory.down = False
    until(lambda: publisher.stats().lag_s == 0 and publisher.stats().spooled == 0, "it has caught up")
    publisher.close()
    without = LifecyclePublisher("gpu-1", MemoryTransport(down=True), PublisherConfig(linger_s=0.0, close_s=0.1))
    without.hit("k", TENANT, store="kv", tier="gpu")
    until(lambda: without.stats().lag_s > 0.2, "it is behind in memory, too")
    without.close()
