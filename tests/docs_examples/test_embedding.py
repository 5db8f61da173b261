"""The engines of docs/embedding.md, run as they stand there, through an agent and in their own process."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.cli.judge import judge
from kvtrail.producers.recording import RecordingTransport
from kvtrail.schemas.config import load_config
from kvtrail.schemas.envelope import Batch
from kvtrail.schemas.events import Event, Hit

from ..producers.agents import Running
from ..producers.reading import decode, events, gaps, read_topic, runs

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
BLOCK = re.compile(r"^```(?:python|ini) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ENGINE = """
import hashlib
import sys
from types import SimpleNamespace as Some

sys.path.insert(0, sys.argv[1])
from connector import TrailConnector

BLOCK = 4


class Scheduler:
    '''Calls a connector in the order in which vLLM does.'''

    def __init__(self):
        config = Some(
            cache_config=Some(block_size=BLOCK),
            kv_transfer_config=Some(kv_connector_extra_config={"node": "gpu-17/0"}),
        )
        self.connector = TrailConnector(config, Some(name="SCHEDULER"), None)
        self.cached = {}

    def run(self, request_id, tokens, steps=2, salt=""):
        hashes, parent = [], salt.encode()
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            parent = hashlib.sha256(parent + repr(tokens[at : at + BLOCK]).encode()).digest()
            hashes.append(parent)
        request = Some(request_id=f"chatcmpl-{request_id}-0a1b2c3d", block_hashes=hashes, cache_salt=salt)
        self.connector.on_new_request(request)
        found = 0
        while found < len(hashes) and hashes[found] in self.cached:
            found += 1
        for _ in range(2):  # asked again after a step in which there was no room
            assert self.connector.get_num_new_matched_tokens(request, found * BLOCK) == (0, False)
        self.connector.update_state_after_alloc(request, None, 0)
        admitted = Some(req_id=request.request_id, num_computed_tokens=found * BLOCK)
        self.connector.build_connector_meta(Some(scheduled_new_reqs=[admitted]))
        new = [each for each in hashes if each not in self.cached]
        self.cached.update(dict.fromkeys(new))
        self.connector.listen([{"type": "BlockStored", "block_hashes": new, "medium": "GPU"}])
        self.connector.build_connector_meta(Some(scheduled_new_reqs=[admitted]))  # resumed: not a second hit
        for _ in range(steps):
            self.connector.build_connector_meta(Some(scheduled_new_reqs=[]))
        assert self.connector.request_finished(request, []) == (False, None)

    def evict(self, count):
        gone = list(self.cached)[:count]
        for each in gone:
            del self.cached[each]
        self.connector.listen([{"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"}])


scheduler = Scheduler()
scheduler.run("r1", list(range(16)))
scheduler.run("r2", list(range(16)) + [99] * 4)
scheduler.run("r3", list(range(16)), salt="contoso")
scheduler.evict(2)
scheduler.run("r4", list(range(16)))
assert scheduler.connector.reset_cache()
scheduler.cached.clear()
scheduler.run("r5", list(range(8)))
scheduler.connector.shutdown()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's files, as a reader would copy them."""
    place = tmp_path / "engine"
    place.mkdir()
    for name, text in BLOCK.findall(PAGE.read_text()):
        (place / name).write_text(text)
    (place / "engine.py").write_text(ENGINE)
    return place


def run(folder: Path, name: str, *arguments: str, **environment: str) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("KVTRAIL_")}
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", name, *arguments], cwd=folder, env=environ | environment,
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def through_agent(folder: Path, name: str, *arguments: str) -> list[Batch]:
    """What arrived; and the judging core has nothing to say of it."""
    recording = folder / "recording.jsonl"
    with Running(folder / "agent.sock", RecordingTransport(recording)) as running:
        run(folder, name, *arguments, KVTRAIL_AGENT__SOCKET=str(running.path))
    judged = CliRunner().invoke(judge, [str(recording)])
    assert judged.exit_code == 0, judged.output
    assert judged.output.startswith("0 findings,"), judged.output
    return decode(recording.read_bytes().splitlines())


def types(found: list[Event]) -> list[str]:
    return [event.type for event in found]


STORE = ["node_start", "create", "hit", "create", "create", "expire", "invalidate"]
LOOP = ["node_start", "create", "request_end", "hit", "request_end", "create", "request_end"]


def engine_events(found: list[Event]) -> None:
    """What the stand-in did: blocks are created once, hits are told once, evicted ones again."""
    assert types(found) == [
        "node_start", *["create"] * 4, "request_end", "hit", "create", "request_end", *["create"] * 4, "request_end",
        "expire", "expire", *["create"] * 2, "request_end", "invalidate", *["create"] * 2, "request_end",
    ]  # fmt: skip
    (hit,) = [event for event in found if isinstance(event.body, Hit)]
    assert hit.request_id == "r2" and hit.body.reused_tokens == 16 and hit.identity is None  # type: ignore[union-attr]  # a Hit
    created = {event.key for event in found if event.type == "create" and event.request_id == "r1"}
    assert hit.key in created
    assert {event.key for event in found if event.request_id == "r3"}.isdisjoint(created)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("store.py", ["entries"], STORE),
        pytest.param("loop.py", [], LOOP, marks=pytest.mark.model),
        ("engine.py", ["."], None),
    ],
)
def test_an_example_runs_through_an_agent(
    folder: Path, name: str, arguments: list[str], expected: list[str] | None
) -> None:
    batches = through_agent(folder, name, *arguments)
    found = events(batches)
    assert {gaps(lane) for lane in runs(batches).values()} == {0}
    if expected is None:
        engine_events(found)
    else:
        assert types(found) == expected


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("store.py", ["entries"], STORE),
        pytest.param("loop.py", [], LOOP, marks=pytest.mark.model),
        ("engine.py", ["."], None),
    ],
)
def test_an_example_runs_in_process(
    request: pytest.FixtureRequest, folder: Path, name: str, arguments: list[str], expected: list[str] | None
) -> None:
    topics = request.getfixturevalue("topics")
    run(folder, name, *arguments, KVTRAIL_KAFKA__BOOTSTRAP=topics.bootstrap)
    found = events(decode(value for _, _, value in read_topic(topics)))
    if expected is None:
        engine_events(found)
    else:
        assert types(found) == expected


def test_the_unit_sets_what_the_agent_reads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    unit.read_string((folder / "kvtrail-agent.service").read_text())
    assert unit["Service"]["ExecStart"].split()[1:3] == ["agent", "--config"]
    lines = re.findall(r"^Environment=(\w+)=(.*)$", (folder / "kvtrail-agent.service").read_text(), re.MULTILINE)
    for name, value in lines:
        monkeypatch.setenv(name, value)
    config = load_config(None)
    assert str(config.agent.socket) == "/run/kvtrail/agent.sock" and config.agent.group == "kvtrail-engines"
    assert str(config.publisher.spool_directory) == "/var/lib/kvtrail/spool" and config.agent.metrics
