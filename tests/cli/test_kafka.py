"""The local broker: real, found again after a crash, gone with its parent, clear when it cannot start."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kvtrail.cli.local import kafka as module
from kvtrail.cli.local.java import Tools
from kvtrail.cli.local.kafka import KafkaBroker, cluster_id, wait_for_broker
from kvtrail.cli.local.ports import free_ports
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.errors import BrokerError, StackError
from kvtrail.schemas.topics import DEAD_LETTER
from kvtrail.streams.topics import ensure_topics

from .programs import java


def gone(pid: int, deadline_s: float = 20) -> bool:
    """Whether the process has ended (a zombie has) within the deadline."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


async def _send(config: KafkaConfig, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=config.bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait(DEAD_LETTER, value)


async def _read(config: KafkaConfig, count: int) -> list[bytes]:
    async with AIOKafkaConsumer(
        DEAD_LETTER, bootstrap_servers=config.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        return [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(count)]


@pytest.mark.kafka
def test_what_was_acknowledged_survives_kill_9_and_the_port_stays(broker: KafkaBroker) -> None:
    asyncio.run(ensure_topics(broker.config))
    asyncio.run(_send(broker.config, b"one"))
    before = broker.config
    broker.kill()
    assert not broker.running
    broker.restart()
    assert broker.config == before
    asyncio.run(_send(broker.config, b"two"))
    assert asyncio.run(_read(broker.config, 2)) == [b"one", b"two"]


@pytest.mark.kafka
def test_stop_is_orderly_and_leaves_no_process_but_the_log(broker: KafkaBroker) -> None:
    pid = broker.pid
    assert broker.stop()
    assert gone(pid)
    assert "Kafka Server started" in broker.log.read_text()


@pytest.mark.kafka
def test_another_broker_on_the_same_folder_and_other_ports_has_the_data(broker: KafkaBroker) -> None:
    asyncio.run(ensure_topics(broker.config))
    asyncio.run(_send(broker.config, b"one"))
    broker.stop()
    with KafkaBroker(broker.directory, port=free_ports(1)[0]) as later:
        assert later.config != broker.config
        assert asyncio.run(_read(later.config, 1)) == [b"one"]


@pytest.mark.kafka
def test_two_brokers_cannot_share_a_folder(broker: KafkaBroker) -> None:
    with pytest.raises(StackError, match="another Kafka broker uses"):
        KafkaBroker(broker.directory).start()
    assert broker.running


@pytest.mark.kafka
def test_the_broker_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kvtrail.cli.local.kafka import KafkaBroker\n"
        "broker = KafkaBroker(Path(sys.argv[1])); broker.start(); print(broker.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(parent.pid, signal.SIGKILL)
    assert gone(pid)


def test_a_taken_port_names_the_setting(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StackError, match=f"kafka.bootstrap: port {port}.* is taken .* choose another port"):
            KafkaBroker(tmp_path, port=port).start()


def test_a_folder_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="KVTRAIL_LOCAL__DIRECTORY"):
        KafkaBroker(tmp_path / "file" / "kafka").start()


def test_too_little_disk_is_refused_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(StackError, match=r"the disk under .* is full"):
        KafkaBroker(tmp_path).start()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("java.io.IOException: No space left on device", "the disk under .* is full"),
        ("java.net.BindException: Address already in use", "is taken by another program"),
        ("something nobody foresaw", "something nobody foresaw"),
    ],
)
def test_the_brokers_last_words_become_an_error_of_ours(tmp_path: Path, words: str, expected: str) -> None:
    java(tmp_path / "home" / "bin", then=f'case "$*" in *StorageTool*) exit 0;; esac; echo "{words}"; exit 1')
    tools = Tools(environ={**os.environ, "JAVA_HOME": str(tmp_path / "home")})
    with pytest.raises(StackError, match=expected):
        KafkaBroker(tmp_path / "kafka", tools=tools).start()


def test_no_cluster_id_looks_like_an_option() -> None:
    found = {cluster_id() for _ in range(2000)}
    assert not [each for each in found if each.startswith("-") or len(each) != 22]


def test_a_failed_format_shows_what_it_said(tmp_path: Path) -> None:
    java(tmp_path / "home" / "bin", then="echo 'cannot format this'; exit 3")
    tools = Tools(environ={**os.environ, "JAVA_HOME": str(tmp_path / "home")})
    with pytest.raises(StackError, match="cannot format this"):
        KafkaBroker(tmp_path / "kafka", tools=tools).start()


@pytest.mark.kafka
def test_a_broker_the_user_names_is_waited_for(kafka: KafkaConfig) -> None:
    wait_for_broker(kafka, 10)


def test_a_broker_that_is_not_there_is_an_error_with_a_remedy() -> None:
    with pytest.raises(BrokerError, match=r"kafka\.bootstrap: no Kafka broker answered"):
        wait_for_broker(KafkaConfig(bootstrap=f"127.0.0.1:{free_ports(1)[0]}"), 0.3)
