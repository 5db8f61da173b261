"""Kafka's jars: downloaded once per user through Maven, complete or not there at all."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from ...schemas.errors import StackError
from .java import Tools

POM = Path(__file__).resolve().parents[2] / "compose" / "kafka-local" / "pom.xml"
SIZE = "43 MB"


def cache_directory(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/kvtrail`, or `~/.cache/kvtrail`."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "kvtrail"


def kafka_version() -> str:
    """The version of Kafka that the local broker runs."""
    found = ElementTree.parse(POM).findtext(".//{*}kafka.version")
    assert found is not None
    return found


def kafka_jars(tools: Tools) -> Path:
    """The folder with the broker's jars, downloading them first where this user has none.

    Safe against interruption and against a second process doing the same: the folder appears whole, by a rename.
    Raises `StackError` where the download or the cache folder fails.
    """
    version = kafka_version()
    cache = cache_directory(tools.environ)
    # A changed pom is another set of jars, whatever Kafka's version says.
    jars = cache / f"kafka-{version}-{hashlib.sha256(POM.read_bytes()).hexdigest()[:8]}"
    if jars.is_dir():
        return jars
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / "kafka.lock"):
            if not jars.is_dir():
                for half in cache.glob("half-*"):  # left by an interrupted download: under the lock, nobody's
                    shutil.rmtree(half, ignore_errors=True)
                half = Path(tempfile.mkdtemp(prefix="half-", dir=cache))
                try:
                    maven = tools.maven()
                    tools.say(f"Downloading Kafka {version} through Maven (about {SIZE}, once)")
                    _download(tools, maven, half / "jars")
                    (half / "jars").rename(jars)
                finally:
                    shutil.rmtree(half, ignore_errors=True)
    except OSError as error:
        raise StackError(
            f"the cache folder {cache} cannot be used ({error.strerror}).",
            remedy="Free space or mend its rights, or set XDG_CACHE_HOME to a folder you can write.",
        ) from error
    return jars


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(tools: Tools, maven: Path, target: Path) -> None:
    ran = subprocess.run(
        [
            maven, "-q", "-B", "-f", POM, "dependency:copy-dependencies",
            f"-DoutputDirectory={target}", "-DincludeScope=runtime",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **tools.environ},
        check=False,
    )  # fmt: skip
    if ran.returncode == 0 and any(target.glob("kafka_*.jar")):
        return
    reason = next((line for line in ran.stdout.splitlines() if "ERROR" in line), "Maven said nothing")
    full = "No space left" in ran.stdout
    raise StackError(
        f"Kafka's jars could not be downloaded: {reason.removeprefix('[ERROR] ')[:300]}",
        remedy="Free disk space and try again."
        if full
        else "Check the network (or the mirror in ~/.m2/settings.xml) and try again; "
        "or name a broker you have: KVTRAIL_KAFKA__BOOTSTRAP=host:port",
    )
