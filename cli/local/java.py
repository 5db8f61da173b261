"""Java 17+ and Maven for the local broker: found, or installed where that needs no password, or asked for."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...schemas.errors import StackError

OLDEST = 17
JRE_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "openjdk-25-jre-headless", "default-jre-headless")


def _silent(line: str) -> None:
    del line


@dataclass(frozen=True)
class Tools:
    """Looks for programs on this machine. `say` gets one line when something is installed."""

    say: Callable[[str], None] = _silent
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    jvms: Path = Path("/usr/lib/jvm")
    root: bool = field(default_factory=lambda: os.geteuid() == 0)

    def java(self) -> Path:
        """A `java` of at least version 17. Raises `StackError` with the one command to type."""
        found = self._java()
        if found is None:
            self._install("Java 17+", JRE_PACKAGES)
            found = self._java()
        if found is None:
            raise StackError(f"Java {OLDEST}+ is missing after its installation.", remedy=self._ask(JRE_PACKAGES[0]))
        return found

    def maven(self) -> Path:
        """The `mvn` command. Raises `StackError` with the one command to type."""
        found = self._which("mvn")
        if found is None:
            self._install("Maven", ("maven",))
            found = self._which("mvn")
        if found is None:
            raise StackError("Maven is missing after its installation.", remedy=self._ask("maven"))
        return found

    def _which(self, name: str) -> Path | None:
        found = shutil.which(name, path=self.environ.get("PATH", os.defpath))
        return Path(found) if found else None

    def _java(self) -> Path | None:
        for java in self._candidates():
            if self._version(java) >= OLDEST:
                return java
        return None

    def _candidates(self) -> Iterator[Path]:
        if home := self.environ.get("JAVA_HOME"):
            yield Path(home) / "bin" / "java"
        if on_path := self._which("java"):
            yield on_path
        yield from sorted(self.jvms.glob("*/bin/java"))

    def _version(self, java: Path) -> int:
        """The major version, 0 where `java` does not run."""
        try:
            ran = subprocess.run(
                [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return 0
        match = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
        return int(match[1]) if match else 0

    def _install(self, what: str, packages: tuple[str, ...]) -> None:
        """Install the first of `packages` that the package manager has, or raise `StackError`."""
        as_root = self._as_root()
        if as_root is None or self._which("apt-get") is None:
            raise StackError(f"{what} is needed for the local Kafka and was not found.", remedy=self._ask(packages[0]))
        self.say(f"{what} is missing: installing {packages[0]} with apt-get")
        self._apt(as_root, "update", "-qq")
        output = ""
        for package in packages:
            ran = self._apt(as_root, "install", "-y", "-qq", "--no-install-recommends", package)
            if ran.returncode == 0:
                return
            output = ran.stdout
        raise StackError(
            f"apt-get could not install {what}: {_last_line(output)}",
            remedy=f"Check network and disk, then type: {self._command(packages[0])}",
        )

    def _apt(self, as_root: list[str], *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*as_root, "apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
        )

    def _as_root(self) -> list[str] | None:
        """How to run something as root without a password; None where that cannot be."""
        if self.root:
            return []
        sudo = self._which("sudo")
        if sudo is None:
            return None
        allowed = subprocess.run(
            [sudo, "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True, env=dict(self.environ), check=False
        )
        return [str(sudo), "-n"] if allowed.returncode == 0 else None

    def _command(self, package: str) -> str:
        """The one command to type on this machine."""
        sudo = "" if self.root else "sudo "
        if self._which("apt-get"):
            return f"{sudo}apt-get install {package}"
        jdk = "maven" if package == "maven" else "java-17-openjdk-headless"
        if self._which("dnf"):
            return f"{sudo}dnf install {jdk}"
        if self._which("brew"):
            return "brew install maven" if package == "maven" else "brew install openjdk@17"
        return f"install {'Maven' if package == 'maven' else 'a Java 17+ runtime'} and put it on PATH"

    def _ask(self, package: str) -> str:
        return f"Type: {self._command(package)} (or name a broker you have: KVTRAIL_KAFKA__BOOTSTRAP=host:port)"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (lines[-1] if lines else "no output").rstrip(".") + "."
