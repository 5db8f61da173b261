"""`kvtrail canary`: an answer that somebody complains about, and whose marker is in it."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.main import kvtrail, main
from kvtrail.producers.canary import Canary
from kvtrail.producers.canary_keys import CanaryKey

Run = Callable[..., Result]
CANARY = Canary([CanaryKey("2026b", b"n" * 32)])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("KVTRAIL_CANARY__KEYS", f"2026b:{'n' * 32}")
    monkeypatch.setenv("KVTRAIL_CANARY__TENANTS", "northwind,contoso")
    return lambda *words, text="": CliRunner().invoke(kvtrail, ["canary", *words], input=text, catch_exceptions=False)


@pytest.mark.parametrize(
    ("tenant", "status", "said"),
    [
        ("contoso", 0, "pass: its own marker, key 2026b\n"),
        ("northwind", 1, "fail: the marker of another tenant, key 2026b (northwind)\n"),
        ("fabrikam", 1, "fail: the marker of another tenant, unknown which, key 2026b\n"),
        ("", 3, "inconclusive: no marker\n"),
    ],
)
def test_whose_marker_an_answer_shows(run: Run, tenant: str, status: int, said: str) -> None:
    text = f"[ref: {CANARY.marker(tenant)}] Within 90 days." if tenant else "Within 90 days."
    result = run("whose", "contoso", text=text)
    assert (result.exit_code, result.output) == (status, said)


def test_a_tenant_can_be_named_and_the_answer_read_by_programs(run: Run) -> None:
    text = CANARY.marker("fabrikam").upper().replace("-", " ")
    found = json.loads(run("whose", "contoso", "--tenant", "fabrikam", "--json", text=text).output)
    assert (found["result"], found["expected"], found["observed"]) == ("fail", "contoso", "fabrikam")


def test_the_sentence_goes_into_a_prompt(run: Run) -> None:
    assert run("sentence", "contoso").output == f"{CANARY.sentence('contoso')}\n"


def test_without_secrets_nothing_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["canary", "sentence", "contoso"])
    assert caught.value.code == 2 and "canary.keys: no key is set." in capsys.readouterr().err
