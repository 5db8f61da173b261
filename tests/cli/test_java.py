"""Java and Maven: found, installed where no password is needed, else the one command to type."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kvtrail.cli.local.java import Tools
from kvtrail.schemas.errors import StackError

from .programs import java, program

Machine = Callable[..., Tools]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def machine(tmp_path: Path, said: list[str]) -> Machine:
    """Tools of a machine whose programs are all in `tmp_path/bin`."""

    def make(*, root: bool = True, **environ: str) -> Tools:
        return Tools(
            say=said.append,
            environ={"PATH": str(tmp_path / "bin"), **environ},
            jvms=tmp_path / "jvm",
            root=root,
        )

    return make


def apt(folder: Path, log: Path, brings: str = "") -> None:
    """An apt-get that notes how it was called; installing the package named in `brings` makes it appear."""
    program(
        folder / "bin",
        "apt-get",
        f'echo "$@" >> {log}\n'
        'case "$*" in *update*) exit 0;; esac\n'
        f'case "$*" in *{brings or "nothing-at-all"}*) '
        f"/bin/cp -r {folder}/repository/. {folder}/bin/ && exit 0;; esac\n"
        "echo 'E: Unable to locate package'; exit 100",
    )


def test_the_first_java_that_is_new_enough_is_taken(tmp_path: Path, machine: Machine) -> None:
    java(tmp_path / "bin", "11.0.2")
    java(tmp_path / "jvm" / "a" / "bin", "1.8.0_392")
    good = java(tmp_path / "jvm" / "b" / "bin", "25.0.1")
    assert machine().java() == good


def test_java_home_comes_first(tmp_path: Path, machine: Machine) -> None:
    java(tmp_path / "bin", "21")
    home = java(tmp_path / "home" / "bin", "17.0.1")
    assert machine(JAVA_HOME=str(tmp_path / "home")).java() == home


def test_root_gets_java_installed_and_is_told_in_one_line(tmp_path: Path, machine: Machine, said: list[str]) -> None:
    java(tmp_path / "repository")
    apt(tmp_path, tmp_path / "apt.log", brings="openjdk-17-jre-headless")
    assert machine().java() == tmp_path / "bin" / "java"
    assert said == ["Java 17+ is missing: installing openjdk-17-jre-headless with apt-get"]
    assert "update" in (tmp_path / "apt.log").read_text().splitlines()[0]


def test_a_release_without_java_17_gets_a_newer_one(tmp_path: Path, machine: Machine) -> None:
    java(tmp_path / "repository", "25")
    apt(tmp_path, tmp_path / "apt.log", brings="openjdk-25-jre-headless")
    assert machine().java() == tmp_path / "bin" / "java"


def test_sudo_without_password_is_used(tmp_path: Path, machine: Machine) -> None:
    program(tmp_path / "repository", "mvn", "exit 0")
    apt(tmp_path, tmp_path / "apt.log", brings="maven")
    program(tmp_path / "bin", "sudo", 'shift; [ "$1" = true ] && exit 0; exec "$@"')
    assert machine(root=False).maven() == tmp_path / "bin" / "mvn"


@pytest.mark.parametrize("sudo", ["", "exit 1"], ids=["no sudo", "sudo wants a password"])
def test_elsewhere_the_one_command_is_named(tmp_path: Path, machine: Machine, said: list[str], sudo: str) -> None:
    apt(tmp_path, tmp_path / "apt.log")
    if sudo:
        program(tmp_path / "bin", "sudo", sudo)
    with pytest.raises(StackError, match="Type: sudo apt-get install openjdk-17-jre-headless"):
        machine(root=False).java()
    assert not said
    assert not (tmp_path / "apt.log").exists()


def test_without_a_known_package_manager_nothing_is_tried(machine: Machine) -> None:
    with pytest.raises(StackError, match="install Maven and put it on PATH"):
        machine().maven()


def test_a_failed_installation_names_its_reason_and_the_command(tmp_path: Path, machine: Machine) -> None:
    apt(tmp_path, tmp_path / "apt.log")
    with pytest.raises(StackError, match=r"Unable to locate package\. .* type: apt-get install maven"):
        machine().maven()
