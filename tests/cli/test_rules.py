"""`kvtrail rules`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.cli import rules as rules_module
from kvtrail.cli.main import kvtrail
from kvtrail.judging.rules import RULES


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(kvtrail, ["rules", *words])
    return result.exit_code, result.output


def test_the_list_has_every_rule_once() -> None:
    status, output = run("list")
    assert status == 0
    assert [output.count(f"  {rule} ") for rule in RULES] == [1] * len(RULES)
    status, output = run("list", "--family", "policy", "--json")
    assert {rule["family"] for rule in json.loads(output)["rules"]} == {"policy"}


def test_a_rule_is_shown_with_its_cases() -> None:
    status, output = run("show", "template-mismatch")
    assert status == 0
    for said in ("Key on the digest of the rendered template.", "template_digest", "S02", "C45@n1:3"):
        assert said in output
    assert json.loads(run("show", "TEMPLATE_MISMATCH", "--json")[1])["dimensions"] == ["template_digest", "template_id"]


def test_lint_passes_here_and_fails_on_a_catalogue_with_holes(tmp_path: Path) -> None:
    status, output = run("lint")
    assert (status, output.splitlines()[-1][-12:]) == (0, "0 problem(s)")
    (tmp_path / "S01.yaml").write_text("history: |\n  n1:1 create K acme\nexpect:\n  - {at: n1:1, finding: KEY_DRIFT}")
    status, output = run("lint", str(tmp_path))
    assert status == 1
    assert "CROSS_TENANT_REUSE: is not expected in S01" in output
    assert "case S01: missing n1:1 KEY_DRIFT" in output


def test_without_the_catalogue_it_says_what_to_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "CATALOGUE", tmp_path / "none")
    result = CliRunner().invoke(kvtrail, ["rules", "lint"])
    assert "CATALOGUE" in str(result.exception)
