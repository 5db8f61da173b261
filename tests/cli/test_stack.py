"""The local stack: broker and store are real here, the workers are stand-ins that show how they are treated."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from kvtrail.cli.local.running import current_config
from kvtrail.cli.local.stack import LocalStack
from kvtrail.schemas.config import Config, load_config
from kvtrail.schemas.errors import StackError
from kvtrail.schemas.paging import NotifyConfig, WebhookTarget
from kvtrail.streams.topics import verify_topics
from pydantic import SecretStr

from .test_kafka import gone

pytestmark = [pytest.mark.kafka, pytest.mark.engine]

# At its start a worker must find topics and schema; it notes its environment and waits.
WORKER = """
import asyncio, os, sys, time
from kvtrail.schemas.config import load_config
from kvtrail.store.client import connect
from kvtrail.store.migrate import verify
from kvtrail.streams.topics import verify_topics
config = load_config()
asyncio.run(verify_topics(config.kafka))
with connect(config.clickhouse) as client:
    verify(client)
print("ready: stand-in", flush=True)
time.sleep(600)
"""
SERVE = (
    "import http.server, os\n"
    "http.server.HTTPServer(('127.0.0.1', int(os.environ['KVTRAIL_SERVE__PORT'])), "
    "http.server.SimpleHTTPRequestHandler).serve_forever()"
)
COMMANDS = {
    "detect": [sys.executable, "-c", WORKER],
    "sink": [sys.executable, "-c", WORKER],
    "resolve": [sys.executable, "-c", WORKER],
    "fleet": [sys.executable, "-c", WORKER],
    "notify": [sys.executable, "-c", WORKER],
    "heartbeat": [sys.executable, "-c", WORKER],
    "serve": [sys.executable, "-c", SERVE],
}


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, told: list[str]) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("stack")
    with LocalStack(Config(deployment="test"), folder, ephemeral=True, commands=COMMANDS, tell=told.append) as found:
        yield found


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_topics_and_schema_come_before_any_worker_and_all_answer(stack: LocalStack) -> None:
    assert stack.names == ["kafka", "store", "detect", "sink", "resolve", "fleet", "serve"]
    asyncio.run(verify_topics(stack.config.kafka))
    with urlopen(f"http://127.0.0.1:{stack.config.serve.port}", timeout=10) as answer:
        assert answer.status == 200


def test_its_environment_leads_to_it(stack: LocalStack) -> None:
    assert load_config(environ=stack.environ) == stack.config
    found = current_config(environ={"KVTRAIL_LOCAL__DIRECTORY": str(stack.directory)})
    assert found.clickhouse.url == stack.config.clickhouse.url


def test_a_killed_worker_is_started_again(stack: LocalStack, told: list[str]) -> None:
    first = stack.pid("detect")
    stack.kill("detect")
    until(lambda: any("detect is back" in line for line in told))
    assert stack.pid("detect") != first
    assert "detect ended with signal SIGKILL: starting it again" in told


def test_a_worker_held_down_stays_down_until_restarted(stack: LocalStack) -> None:
    stack.kill("sink", hold=True)
    assert gone(stack.pid("sink"))
    stack.restart("sink")
    stack.wait_ready("sink")


def test_a_killed_broker_and_store_come_back_on_their_addresses(stack: LocalStack) -> None:
    before = stack.config
    for name in ("kafka", "store"):
        stack.kill(name)
        stack.wait_ready(name)
    assert stack.config == before
    stack.restart("sink")  # finds topics and schema, or would not be ready


def test_a_second_stack_on_the_folder_is_refused(stack: LocalStack) -> None:
    with pytest.raises(StackError, match=f"process {os.getpid()}"):
        LocalStack(Config(), stack.directory, ephemeral=True).start()
    stack.wait_ready("serve")


def test_a_worker_that_cannot_start_ends_the_stack_with_its_words(stack: LocalStack, tmp_path: Path) -> None:
    # The broker and the store are the user's: those of the other stack.
    named = Config(kafka=stack.config.kafka, clickhouse=stack.config.clickhouse)
    broken = {**COMMANDS, "sink": [sys.executable, "-c", "import sys; sys.exit('no such island')"]}
    failing = LocalStack(named, tmp_path, ephemeral=True, commands=broken)
    with pytest.raises(StackError, match="no such island"):
        failing.start()
    assert failing.names == []
    stack.wait_ready("kafka")


def test_a_broker_the_user_names_is_used_and_left_alone(stack: LocalStack, tmp_path: Path) -> None:
    named = Config(kafka=stack.config.kafka, clickhouse=stack.config.clickhouse)
    with LocalStack(named, tmp_path, ephemeral=True, commands=COMMANDS) as second:
        assert second.names == ["detect", "sink", "resolve", "fleet", "serve"]
    assert stack.pid("kafka")
    asyncio.run(verify_topics(stack.config.kafka))


UP = """
import sys
from kvtrail.cli.local import stack
stack.LocalStack.__init__.__kwdefaults__["commands"] = dict(%r)
from kvtrail.cli.main import main
main(["up", "--fresh"])
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """`kvtrail up` with the stand-in workers, as a process of its own."""
    environ = {**os.environ, "KVTRAIL_LOCAL__DIRECTORY": str(tmp_path / "state")}
    with subprocess.Popen(
        [sys.executable, "-c", UP % list(COMMANDS.items())],
        env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def read_until(process: "subprocess.Popen[str]", start: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith(start):
            return
    raise AssertionError("".join(seen))


def children_once_up(process: "subprocess.Popen[str]") -> list[int]:
    read_until(process, "Ctrl-C stops")
    found = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(found) == 7
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_up_leaves_no_process_behind(up: "subprocess.Popen[str]", number: signal.Signals) -> None:
    children = children_once_up(up)
    up.send_signal(number)
    output, _ = up.communicate(timeout=60)
    assert up.returncode == (-number if number is signal.SIGKILL else 0), output
    assert all(gone(pid) for pid in children)


def test_a_second_ctrl_c_does_not_wait_for_a_stubborn_worker(up: "subprocess.Popen[str]") -> None:
    children = children_once_up(up)
    workers = [pid for pid in children if "stand-in" in " ".join(psutil.Process(pid).cmdline())]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)  # cannot even be asked
    # Until it has really stopped, a SIGTERM that follows would end it.
    until(lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in workers))
    up.send_signal(signal.SIGINT)
    read_until(up, "… Stopping")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=60)
    assert up.returncode == 128 + signal.SIGINT
    assert all(gone(pid) for pid in children)


@pytest.mark.e2e
def test_the_real_workers_come_up_and_come_back(tmp_path: Path) -> None:
    told: list[str] = []
    with LocalStack(Config(deployment="real"), tmp_path, ephemeral=True, tell=told.append) as stack:
        for name in ("detect", "sink", "resolve", "fleet", "serve"):
            stack.kill(name)
        for name in ("detect", "sink", "resolve", "fleet", "serve"):
            stack.wait_ready(name)
        stack.restart("detect")
        pids = [stack.pid(name) for name in stack.names]
    assert all(gone(pid) for pid in pids)
    assert not any("killed" in line for line in told), told


def test_with_somebody_to_tell_notifier_and_heartbeat_run_too(tmp_path: Path) -> None:
    notify = NotifyConfig(webhooks={"ops": WebhookTarget(url=SecretStr("http://127.0.0.1:9/x"))})
    config = Config(deployment="test", notify=notify)
    with LocalStack(config, tmp_path, ephemeral=True, commands=COMMANDS, tell=lambda _: None) as found:
        assert {"notify", "heartbeat"} <= set(found.names)
        assert found.environ["KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL"] == "http://127.0.0.1:9/x"
