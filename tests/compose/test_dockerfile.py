"""The workers' image: what its Dockerfile promises, checked without building it."""

import re
import tomllib
from typing import Any

from kvtrail.tests.compose.project import COMPOSE, ROOT

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined, comments gone."""
    lines = [line for line in (COMPOSE / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def ignored() -> list[str]:
    """The patterns of the build context's ignore file."""
    lines = (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_bases_are_one_exact_version() -> None:
    bases = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    assert len(bases) == 2 and len(set(bases)) == 1
    match = re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-\w+", bases[0])
    assert match and f">={match[1]}" == PYPROJECT["project"]["requires-python"]


def test_it_runs_as_nobody_in_particular() -> None:
    order = [name for name, _ in instructions()]
    final = instructions()[len(order) - 1 - order[::-1].index("FROM") :]
    users = [arguments for name, arguments in final if name == "USER"]
    assert users == ["10001:10001"]
    assert [arguments for name, arguments in final if name == "ENTRYPOINT"] == ['["kvtrail"]']
    assert not any("pip install" in arguments or "COPY . " in arguments for _, arguments in final)


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    kept = {pattern.removeprefix("!").rstrip("/") for pattern in ignored() if pattern.startswith("!")}
    for name, arguments in instructions():
        if name == "COPY" and not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source == "." or source in kept
    assert ignored()[0] == "*"
    assert all((ROOT / name).exists() for name in kept)


def test_the_context_holds_every_room_and_no_secret() -> None:
    kept = {pattern.removeprefix("!").rstrip("/") for pattern in ignored() if pattern.startswith("!")}
    packages = PYPROJECT["tool"]["setuptools"]["packages"]
    assert {package.split(".")[1] for package in packages if "." in package} <= kept
    assert {"pyproject.toml", "constraints.txt", "__init__.py", PYPROJECT["project"]["readme"]} <= kept
    assert "tests" not in kept and "compose/.env" in ignored()


def test_the_extras_it_installs_exist_and_are_what_workers_need() -> None:
    [run] = [arguments for name, arguments in instructions() if name == "RUN" and "whl" in arguments]
    match = re.search(r"whl\)\[([\w,]+)\]", run)
    assert match
    extras = set(match[1].split(","))
    assert extras == {"streams", "audit"} and extras <= PYPROJECT["project"]["optional-dependencies"].keys()
    assert "-c constraints.txt" in run


def test_build_tools_are_pinned_as_everywhere() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    [run] = [arguments for name, arguments in instructions() if name == "RUN" and arguments.startswith("pip install")]
    pinned = re.findall(r'"([\w-]+==[\w.]+)"', run)
    assert pinned and set(pinned) <= set(constraints)
