"""What `kvtrail up` says once everything runs."""

import sys
from pathlib import Path

import pytest
from kvtrail.cli.local.stack import LocalStack
from kvtrail.cli.up import announce
from kvtrail.schemas.config import Config, ServeConfig


@pytest.mark.parametrize("terminal", [True, False])
def test_the_way_into_the_console_is_said_and_is_a_secret_only_on_a_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    announce(LocalStack(Config(serve=ServeConfig(port=18780)), tmp_path), 1.0)
    said = capsys.readouterr().out
    assert ("http://127.0.0.1:18780/enter?code=" in said) is terminal
    assert "kvtrail serve --link" in said
