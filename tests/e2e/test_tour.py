"""`kvtrail tour` as a user with nothing but the base installation runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# What a base installation does not have. An import of any of them ends the process.
FORBIDDEN = (
    "torch", "transformers", "gguf", "accelerate", "numpy", "xxhash", "faust", "clickhouse_connect", "chdb",
    "starlette", "uvicorn", "jinja2", "grafana_api", "yaml", "cramjam", "click_default_group", "psutil",
)  # fmt: skip
BARE = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {FORBIDDEN!r}:
            raise ModuleNotFoundError("not in a base installation: " + name, name=name)
sys.meta_path.insert(0, Refuse())
from kvtrail.cli.main import main
main()
"""


def tour(*arguments: str, encoding: str = "utf-8") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", BARE, "tour", *arguments],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        encoding=encoding,
        timeout=60,
    )


@pytest.fixture(scope="module")
def shown() -> str:
    done = tour()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_it_says_that_it_is_a_recording_of_when_and_of_what(shown: str) -> None:
    first = " ".join(shown.split("\n\n")[0].split())
    assert first.startswith("RECORDED on 20")
    assert "SmolLM2-135M-Instruct" in first


def test_it_shows_wrong_and_right_answers_and_both_findings(shown: str) -> None:
    assert shown.count("WRONG") == 2
    assert "▸ CRITICAL CROSS_TENANT_REUSE: contoso was served northwind's entry" in shown
    assert "▸ MEDIUM TEMPLATE_MISMATCH: northwind was served its own earlier entry" in shown
    assert "✓ 2 wrong answers, 2 findings; 7 right answers, none." in shown


def test_it_ends_the_investigation_with_four_lines(shown: str) -> None:
    table = [line for line in shown.splitlines() if " cache." in line]
    assert [line.split()[1] for line in table] == ["cache.create", "cache.hit", "cache.hit", "cache.hit"]
    assert table[2].endswith("← created by northwind: key does not cover tenant, template digest, token ids")
    assert "Verdict: the cache is implicated" in shown


def test_a_recording_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "r.jsonl"
    original = Path(__file__).parents[2] / "cli" / "recordings" / "incident.jsonl"
    own.write_bytes(original.read_bytes().replace(b"within 14 days", b"within 15 days"))
    done = tour("--recording", str(own))
    assert done.returncode == 1
    assert "✗" in done.stdout


def test_a_recording_that_is_not_there() -> None:
    done = tour("--recording", "/nowhere.jsonl")
    assert done.returncode == 2
    assert done.stderr.startswith("kvtrail: /nowhere.jsonl: cannot be read")


def test_a_terminal_that_knows_ascii_only() -> None:
    done = tour(encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert "=> CRITICAL CROSS_TENANT_REUSE" in done.stdout
    assert "<- created by northwind" in done.stdout
    assert "ok: 2 wrong answers" in done.stdout
