"""`make install` on machines that lack something: it says what, and what to type. (That it works is what runs this.)"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .programs import program

INSTALL = Path(__file__).resolve().parents[2] / "tools" / "install"
NEEDED = ("bash", "dirname", "uname", "rm", "grep", "env", "mkdir", "touch", "ln")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A copy of the installer, and a folder that is the whole PATH with what any machine has."""
    (tmp_path / "tools").mkdir()
    shutil.copy(INSTALL, tmp_path / "tools" / "install")
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    return tmp_path


def install(machine: Path, **environ: str) -> str:
    """What a failing installation says."""
    ran = subprocess.run(
        [machine / "tools" / "install"],
        env={"PATH": str(machine / "bin"), "HOME": str(machine), **environ},
        cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stdout
    assert not (machine / ".venv").exists()
    return ran.stdout


def python(machine: Path, version: str, *, new: bool, venv: str = "exit 1") -> None:
    """A stand-in interpreter: new enough or not, and what its `-m venv` does."""
    program(
        machine / "bin",
        "python3",
        f'case "$*" in *version_info*) exit {0 if new else 1};; *python_version*) echo {version};; '
        f"*venv*) {venv};; esac",
    )


def test_an_old_python_is_named_with_what_to_do(machine: Path) -> None:
    python(machine, "3.9.2", new=False)
    said = install(machine)
    assert "needs Python 3.11+, found 3.9.2: install python3.12" in said
    assert "make install PYTHON=" in said


def test_no_python_at_all_too(machine: Path) -> None:
    assert "needs Python 3.11+, found none" in install(machine)
    assert "found none" in install(machine, PYTHON="/nowhere/python3.12")


def test_a_python_without_venv_names_the_package(machine: Path) -> None:
    python(machine, "3.11.2", new=True, venv="echo 'ensurepip is not available'; exit 1")
    assert "Type: apt-get install python3-venv" in install(machine)


def test_a_full_disk_shows_what_python_said(machine: Path) -> None:
    python(machine, "3.11.2", new=True, venv="echo 'No space left on device'; exit 1")
    assert "no virtual environment could be made: No space left on device" in install(machine)


def test_no_network_says_so(machine: Path) -> None:
    offline = f'case "$*" in *install*) rm -rf {machine}/.venv; exit 1;; esac'
    made = program(machine / "template", "python", offline)
    copied = f"mkdir -p {machine}/.venv/bin; ln -s {made} {machine}/.venv/bin/python"
    python(machine, "3.11.2", new=True, venv=copied)
    assert "PyPI could not be reached" in install(machine)


def test_an_unknown_torch_is_refused_before_anything_is_made(machine: Path) -> None:
    python(machine, "3.11.2", new=True)
    assert "TORCH=rocm is none of auto, pypi, cpu" in install(machine, TORCH="rocm")


def test_it_has_no_syntax_that_only_shows_later() -> None:
    assert os.access(INSTALL, os.X_OK)
    assert subprocess.run(["bash", "-n", INSTALL], check=False).returncode == 0
