"""Kafka's jars: whole or absent, downloaded once, errors that say what to do."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kvtrail.cli.local.jars import POM, cache_directory, kafka_jars, kafka_version
from kvtrail.cli.local.java import Tools
from kvtrail.schemas.errors import StackError

from .programs import program

TARGET = 'for a in "$@"; do case "$a" in -DoutputDirectory=*) out="${a#*=}";; esac; done; /bin/mkdir -p "$out"\n'
GOOD = TARGET + 'echo x >> "$CALLS"; echo jar > "$out/kafka_2.13.jar"; echo jar > "$out/other.jar"'


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    environ = {
        "PATH": str(tmp_path / "bin"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "CALLS": str(tmp_path / "calls"),
    }
    return Tools(environ=environ, root=False)


def test_the_pom_names_the_version() -> None:
    assert kafka_version() == "4.4.0"
    assert POM.is_file()


def test_the_cache_is_the_users(tmp_path: Path) -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/kvtrail")
    assert cache_directory({"HOME": "/h"}) == Path("/h/.cache/kvtrail")


def test_they_are_downloaded_once(tmp_path: Path, tools: Tools) -> None:
    program(tmp_path / "bin", "mvn", GOOD)
    first = kafka_jars(tools)
    assert {jar.name for jar in first.iterdir()} == {"kafka_2.13.jar", "other.jar"}
    assert kafka_jars(tools) == first
    assert (tmp_path / "calls").read_text() == "x\n"


def test_processes_at_the_same_time_download_once(tmp_path: Path, tools: Tools) -> None:
    program(tmp_path / "bin", "mvn", GOOD)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: kafka_jars(tools), range(4)))
    assert len(folders) == 1
    assert (tmp_path / "calls").read_text() == "x\n"


def test_an_interrupted_download_leaves_no_cache_and_is_swept_up(tmp_path: Path, tools: Tools) -> None:
    left = tmp_path / "cache" / "kvtrail" / "half-abc"
    left.mkdir(parents=True)
    program(tmp_path / "bin", "mvn", TARGET + 'echo jar > "$out/kafka_2.13.jar"; kill -9 $$')
    with pytest.raises(StackError):
        kafka_jars(tools)
    assert [path.name for path in (tmp_path / "cache" / "kvtrail").iterdir()] == ["kafka.lock"]
    program(tmp_path / "bin", "mvn", GOOD)
    assert (kafka_jars(tools) / "other.jar").is_file()


def test_no_network_says_what_to_do(tmp_path: Path, tools: Tools) -> None:
    program(tmp_path / "bin", "mvn", "echo '[ERROR] Unknown host repo: Name or service not known'; exit 1")
    with pytest.raises(StackError, match=r"Unknown host.* Check the network .*KVTRAIL_KAFKA__BOOTSTRAP"):
        kafka_jars(tools)


def test_a_full_disk_says_so(tmp_path: Path, tools: Tools) -> None:
    program(tmp_path / "bin", "mvn", "echo '[ERROR] No space left on device'; exit 1")
    with pytest.raises(StackError, match="Free disk space"):
        kafka_jars(tools)


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, tools: Tools) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(StackError, match="XDG_CACHE_HOME"):
        kafka_jars(tools)
