"""`kvtrail node`: what is wrong is said before a model is loaded; a real one answers, publishes and stops in order."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from kvtrail.audit.console.server import bind
from kvtrail.cli import node as command
from kvtrail.cli.main import kvtrail
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.errors import KvtrailError


def refuse() -> None:
    raise AssertionError("a model was loaded for nothing")


@pytest.mark.parametrize(
    ("words", "environ", "field"),
    [
        (("--host", "0.0.0.0"), {}, "--host"),
        (("--name", "kvtrail:heartbeat"), {}, "--name"),
        (("--name", ""), {}, "--name"),
        (("--directory", "/proc/nowhere"), {}, "--directory"),
        ((), {"KVTRAIL_LOCAL__DIRECTORY": "/proc/nowhere"}, "local.directory"),
        (("--canary",), {}, "canary.keys"),
        ((), {"KVTRAIL_CANARY__KEYS": "k1:short"}, "canary.keys"),
        ((), {"KVTRAIL_KAFKA__PARTITIONS": "none"}, "kafka.partitions"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], environ: dict[str, str], field: str
) -> None:
    monkeypatch.setattr(command, "load_model", refuse)
    told = CliRunner().invoke(
        kvtrail, ["node", "--port", "0", *words], env={"KVTRAIL_LOCAL__DIRECTORY": str(tmp_path), **environ}
    )
    assert isinstance(told.exception, KvtrailError)
    assert told.exception.field == field


def test_a_taken_port_names_the_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "load_model", refuse)
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        told = CliRunner().invoke(kvtrail, ["node", "--port", port], env={"KVTRAIL_LOCAL__DIRECTORY": str(tmp_path)})
    assert isinstance(told.exception, KvtrailError)
    assert told.exception.field == "--port" and "SERVE" not in str(told.exception)


@pytest.mark.model
@pytest.mark.kafka
@pytest.mark.timeout(400)
def test_it_answers_publishes_and_stops_when_told(topics: KafkaConfig, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtrail.cli", "node", "--port", "0", "--keyed-by", "name", "--no-canary"],
        env={
            **os.environ,
            "KVTRAIL_LOCAL__DIRECTORY": str(tmp_path),
            "KVTRAIL_KAFKA__BOOTSTRAP": topics.bootstrap,
            "KVTRAIL_KAFKA__PARTITIONS": str(topics.partitions),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"ready: node cache-node at (\S+), keyed by name", line):
                break
        else:
            pytest.fail("".join(said))
        messages = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Yes or no?"}]
        told = [
            httpx.post(
                f"{found[1]}/v1/chat/completions",
                json={"messages": messages, "max_tokens": 1},
                headers={"X-Tenant": "contoso"},
                timeout=120,
                trust_env=False,
            ).json()
            for _ in range(2)
        ]
        reused = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in told]
        assert reused[0] == 0 and reused[1] > 0
        assert told[1]["kvtrail"]["key"] == "chat:SmolLM2-135M-Instruct"
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=120)[0]
        assert process.returncode == 0, rest
    finally:
        process.kill()
        process.wait()
