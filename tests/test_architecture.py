"""The rules of the house that a machine can hold: who imports whom, and how modules are built."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = sorted(each.parent.name for each in ROOT.glob("*/__init__.py"))
SHIPPED = [room for room in ROOMS if room not in ("tests", "benchmarks")]
SOURCES = [path for room in SHIPPED for path in sorted((ROOT / room).rglob("*.py"))]


def test_rooms_import_downwards_only() -> None:
    ran = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout


def test_every_room_has_its_place_in_the_layers() -> None:
    layers = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    placed = {room for layer in layers for room in layer.replace("|", " ").split()}
    assert placed == set(SHIPPED) - {"compose"}, "compose holds no code"


def test_every_package_is_listed_for_the_wheel() -> None:
    listed = set(PYPROJECT["tool"]["setuptools"]["packages"]) - {"kvtrail"}
    assert listed == {".".join(("kvtrail", *path.parent.relative_to(ROOT).parts)) for path in SOURCES
                      if path.name == "__init__.py"}  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_each_other_relatively(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.append(node.module)
        assert not [name for name in names if name.split(".")[0] == "kvtrail"], "write it relatively (from ..room)"


def test_no_module_is_a_bag_of_things() -> None:
    bags = {"utils", "util", "helpers", "common", "manager", "misc", "base"}
    assert not [path for path in SOURCES if path.stem in bags]


def test_every_module_says_what_it_is() -> None:
    silent = [
        path for path in SOURCES if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
