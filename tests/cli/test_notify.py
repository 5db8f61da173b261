"""`kvtrail notify test` and `log`: is the address right, does it arrive, what was told?"""

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.main import kvtrail, main
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.notifications import Decided
from kvtrail.streams import notifier_journal, notifier_trial
from kvtrail.streams.notifier_targets import Answer
from kvtrail.tests.streams.stub_receiver import Plan, Receiver, StubAlertmanager
from kvtrail.tests.streams.test_notifier_delivery import told


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(kvtrail, ["notify", "test", *arguments], env=environ)


def test_a_target_that_takes_it() -> None:
    with Receiver() as hook, StubAlertmanager() as manager:
        environ = {
            "KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL": f"{hook.url}/hush",
            "KVTRAIL_NOTIFY__ALERTMANAGERS__MAIN__URL": manager.url,
        }
        for name in ("ops", "main"):
            result = run(name, **environ)
            assert (result.exit_code, result.output) == (0, f"{name}: taken (200)\n")
        assert hook.bodies()[0]["cause"] == "TEST" and hook.bodies()[0]["kind"] == "resolved"
        assert manager.firing(hook.bodies()[0]["at_us"] / 1e6 + 60) == [], "it pages nobody"


def test_a_target_that_does_not() -> None:
    with Receiver() as hook:
        hook.otherwise = Plan(403)
        result = run("ops", KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL=f"{hook.url}/hush")
        assert result.exit_code == 1 and "ops: not taken: 403" in result.output and "hush" not in result.output


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("ClientConnectorError", "no answer (ClientConnectorError)"),
        ("no answer within 10 s", "no answer within 10 s"),
    ],
)
def test_one_that_does_not_answer_is_said_once_with_a_question(
    monkeypatch: pytest.MonkeyPatch, detail: str, said: str
) -> None:
    async def silent(*_: object) -> Answer:
        return Answer(0, detail)

    monkeypatch.setattr(notifier_trial, "try_target", silent)
    result = run("ops", KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL="http://127.0.0.1:9/hush")
    assert result.exit_code == 1
    assert result.output == f"ops: not taken: {said}. Can its address be reached from here?\n"


def test_a_name_that_is_none() -> None:
    result = run("other", KVTRAIL_NOTIFY__WEBHOOKS__OPS__URL="http://127.0.0.1:9/hush")
    assert isinstance(result.exception, ConfigError)
    assert "ops" in str(result.exception) and "hush" not in str(result.exception)


def test_a_reason_that_the_title_tells_is_not_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        Decided(notification=told(title=title, reason=reason), targets=("ops",))
        for title, reason in (("pipeline silent: no heartbeat", "no heartbeat"), ("a key is short", "2 tenants now"))
    ]

    async def read(*_: object) -> tuple[list[Decided], int]:
        return entries, len(entries)

    monkeypatch.setattr(notifier_journal, "read_journal", read)
    first, second = CliRunner().invoke(kvtrail, ["notify", "log"]).output.splitlines()
    assert "pipeline silent: no heartbeat, incident" in first and "a key is short (2 tenants now), incident" in second


def test_a_log_without_a_broker_is_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", "127.0.0.1:1")
    with pytest.raises(SystemExit) as caught:
        main(["notify", "log"])
    assert caught.value.code == 2
    assert "kvtrail: kafka.bootstrap: what was told cannot be read" in capsys.readouterr().err
