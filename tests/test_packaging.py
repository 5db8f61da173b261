"""The built wheel holds every room and its files; what embeds the publisher installs small and pulls in little."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NOT_SHIPPED = {"tests", "benchmarks", "docs", "tools"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"^([a-z0-9][a-z0-9-]*)==([0-9][^ ;]*)( ; .+)?$")

# What a process that embeds the publisher installs: all of it, and nothing else.
SMALL = {
    "aiokafka", "annotated-types", "async-timeout", "click", "kvtrail", "msgspec", "packaging", "pydantic",
    "pydantic-core", "typing-extensions", "typing-inspection",
}  # fmt: skip
SMALL_BYTES = 40 * 1024 * 1024
HEAVY = {"chdb", "clickhouse_connect", "faust", "jinja2", "mode", "numpy", "starlette", "torch", "transformers"}


def rooms() -> list[Path]:
    return [each.parent for each in sorted(ROOT.glob("*/__init__.py")) if each.parent.name not in NOT_SHIPPED]


def files_of(room: Path) -> set[str]:
    """What the wheel must hold of a room: everything but its page for developers."""
    return {
        f"kvtrail/{path.relative_to(ROOT)}"
        for path in room.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in ("README.md", ".gitignore")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools would ship what an earlier build left in the repository."""
    source = tmp_path_factory.mktemp("source")
    for room in rooms():
        shutil.copytree(room, source / room.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "__init__.py", "py.typed"):
        shutil.copy(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)])
    return next(out.glob("*.whl"))


def run(command: list[str], *, status: int = 0) -> str:
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert ran.returncode == status, ran.stdout
    return ran.stdout


def test_the_wheel_holds_every_room_with_its_files_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("kvtrail-")}
    wanted = {"kvtrail/__init__.py", "kvtrail/py.typed"}.union(*map(files_of, rooms()))
    assert wanted - held == set(), "list the package or its data in pyproject.toml"
    assert held - wanted == set()


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its base dependencies only; its Python."""
    uv = Path(sys.executable).with_name("uv")
    folder = tmp_path_factory.mktemp("bare")
    run([str(uv), "venv", "-q", "--python", sys.executable, str(folder / "venv")])
    python = folder / "venv" / "bin" / "python"
    run([str(uv), "pip", "install", "-q", "--python", str(python), "-c", str(ROOT / "constraints.txt"), str(wheel)])
    return python


def test_the_base_installs_small_packages_only(bare: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    listed = run([str(uv), "pip", "list", "-q", "--python", str(bare), "--format", "freeze"])
    assert {line.split("==")[0].split(" @")[0] for line in listed.splitlines()} == SMALL
    size = sum(path.stat().st_size for path in bare.parents[1].rglob("*") if path.is_file())
    assert size < SMALL_BYTES


@pytest.mark.parametrize("room", ["schemas", "judging", "producers"])
def test_every_module_of_a_light_room_imports_in_a_bare_environment(bare: Path, room: str) -> None:
    code = (
        "import importlib, pkgutil, sys, kvtrail\n"
        f"room = importlib.import_module('kvtrail.{room}')\n"
        "for module in pkgutil.walk_packages(room.__path__, room.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert run([str(bare), "-I", "-c", code]).strip() == "[]"


def test_importing_the_publisher_pulls_in_nothing_heavy_even_where_it_is_installed() -> None:
    code = (
        f"import sys, kvtrail.producers.publisher, kvtrail.producers.kafka; print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert run([sys.executable, "-I", "-c", code]).strip() == "[]"


def test_the_command_works_there_and_names_the_extra_that_is_missing(bare: Path) -> None:
    command = str(bare.with_name("kvtrail"))
    assert "Commands:" in run([command, "--help"])
    assert "deployment" in run([command, "config", "check"])
    for name, extra in (("sink", "streams"), ("detect", "streams"), ("up", "streams,local,audit")):
        assert f"pip install 'kvtrail[{extra}]'" in run([command, name], status=2)


def test_every_requirement_has_one_exact_pin_that_satisfies_it() -> None:
    pins = dict(pin_of(line) for line in (ROOT / "constraints.txt").read_text().splitlines())
    wanted = [
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    ]
    for text in wanted:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not in constraints.txt: make lock"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{name}: make lock"


def pin_of(line: str) -> tuple[str, str]:
    """Name and version of a line of constraints.txt, which holds exact versions and no address."""
    match = PIN.match(line)
    assert match, f"constraints.txt: {line}"
    return match[1], match[2]


def test_no_two_packages_bring_the_same_file() -> None:
    """Which of two is installed last is chance, and differs from machine to machine."""
    owners: dict[str, set[str]] = {}
    for each in distributions():
        for file in each.files or ():
            if not str(file).startswith("..") and "__pycache__" not in file.parts:
                owners.setdefault(str(file), set()).add(each.name)
    assert owners
    assert {file: names for file, names in owners.items() if len(names) > 1} == {}
