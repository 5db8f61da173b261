"""Whatever is lost on the way is a finding that names node, lane and range: never a silence."""

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from kvtrail.cli.judge import judge
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher

from .agents import Running
from .reading import TENANT, until
from .test_spool import config, hits


def gap(memory: MemoryTransport, folder: Path) -> tuple[str, int]:
    """The one finding about missing events: its subject, and how many numbers its ranges hold."""
    path = folder / "arrived.jsonl"
    path.write_bytes(b"".join(record + b"\n" for _, record in memory.records))
    said = json.loads(CliRunner().invoke(judge, ["--json", str(path)]).output)
    found: list[dict[str, Any]] = [one for one in said["findings"] if one["cause"] == "STREAM_GAP"]
    (finding,) = found
    ranges = re.findall(r"(\d+)(?:-(\d+))?(?:, |$)", finding["title"].partition(": ")[2])
    count = sum(int(last or first) - int(first) + 1 for first, last in ranges)
    assert finding["title"].startswith(f"{count} event(s) missing: ")
    return finding["subject"], count


def test_what_does_not_fit_a_full_spool(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    settings = config(tmp_path / "spool", spool_bytes=64 * 1024, max_events=50, envelope_events=10)
    publisher = LifecyclePublisher("gpu-1", memory, settings)
    while publisher.stats().lost < 500:
        hits(publisher, 50)
        publisher.flush(0.01)
    memory.down = False
    assert publisher.close(30)
    assert gap(memory, tmp_path) == (f"lane:gpu-1/{publisher.incarnation}/n:gpu-1", publisher.stats().lost)


def test_what_a_torn_end_of_a_spool_held(tmp_path: Path) -> None:
    memory = MemoryTransport(down=True)
    first = LifecyclePublisher("gpu-1", memory, config(tmp_path / "spool", envelope_events=10))
    hits(first, 99)
    assert first.close()
    (segment,) = tmp_path.rglob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-5])
    memory.down = False
    with LifecyclePublisher("gpu-1", memory, config(tmp_path / "spool")) as second:
        until(lambda: len(memory.records) > 5 and second.stats().spooled == 0, "the rest is sent, and its end declared")
    subject, count = gap(memory, tmp_path)
    assert subject == f"lane:gpu-1/{first.incarnation}/n:gpu-1" and 1 <= count <= 10


def test_what_an_engine_without_its_agent_could_not_hold(tmp_path: Path) -> None:
    publisher = AgentPublisher("gpu-1", tmp_path / "agent.sock", max_events=100, linger_s=0.0)
    for number in range(1000):
        publisher.hit(f"k{number}", TENANT, store="kv", tier="gpu")
    with Running(tmp_path / "agent.sock", memory := MemoryTransport()):
        assert publisher.close(30)
    assert gap(memory, tmp_path) == (f"lane:gpu-1/{publisher.incarnation}/n:gpu-1", publisher.stats().lost)
