"""`kvtrail judge` on histories and scenarios."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from kvtrail.cli.judge import judge
from kvtrail.judging.scenarios import parse_scenario
from kvtrail.schemas.envelope import EnvelopeEncoder, encode_plain
from kvtrail.schemas.events import Event
from kvtrail.schemas.facts import Fact, encode_fact

HISTORY = """
r:1  registry template support_v7 {digest=d3}
n1:1 create support_v7:m1 northwind {keysrc=asserted, tmpl=support_v7@d1, in=I1, tier=disk}
n1:2 hit    support_v7:m1 northwind {keysrc=asserted, tmpl=support_v7@d1, in=I1, tier=disk}
n1:3 hit    support_v7:m1 contoso {keysrc=asserted, tmpl=support_v7@d2, in=I2, tier=disk}
"""
MILD = "n1:1 create K acme\nn1:2 hit K acme\nn1:4 hit K acme"
FILLED = "n1:1 create K acme\nn1:3 hit K acme\nn1:2 hit K acme"
RIGHT = "id: T1\ntitle: t\nhistory: |\n  n1:1 create K acme\n  n1:2 hit K acme\nexpect: []\n"
WRONG = RIGHT.replace("T1", "T2").replace("hit K acme", "hit K acme {weights=W2}")


def lines(*, packed: bool) -> bytes:
    records = [record for _, record in parse_scenario({"history": HISTORY}).steps]
    events = [record for record in records if isinstance(record, Event)]
    facts = [b'{"fact":' + encode_fact(record) + b"}" for record in records if isinstance(record, Fact)]
    return b"\n".join(facts + ([EnvelopeEncoder().encode(events)] if packed else [encode_plain(e) for e in events]))


def test_envelopes_and_plain_events_give_the_same_findings(tmp_path: Path) -> None:
    outputs = []
    for packed in (True, False):
        path = tmp_path / f"{packed}.jsonl"
        path.write_bytes(lines(packed=packed))
        result = CliRunner().invoke(judge, [str(path)])
        assert result.exit_code == 0
        outputs.append(result.output)
    assert outputs[0] == outputs[1]
    assert "CROSS_TENANT_REUSE" in outputs[0] and "key=support_v7:m1" in outputs[0]
    assert "differing: tenant, template digest, token ids" in outputs[0]
    assert "1 finding, 1 incident" in outputs[0]


@pytest.mark.parametrize(
    ("asked", "status"), [([], 0), (["--fail-on", "critical"], 1), (["--fail-on", "low", "--json"], 1)]
)
def test_findings_fail_the_command_where_that_is_asked_for(tmp_path: Path, asked: list[str], status: int) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(lines(packed=True))
    assert CliRunner().invoke(judge, [*asked, str(path)]).exit_code == status


def test_what_is_less_severe_or_retracted_does_not_fail_the_command(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    events = [one for _, one in parse_scenario({"history": MILD}).steps if isinstance(one, Event)]
    path.write_bytes(b"\n".join(encode_plain(event) for event in events))
    assert CliRunner().invoke(judge, ["--fail-on", "high", str(path)]).exit_code == 0
    assert CliRunner().invoke(judge, ["--fail-on", "medium", str(path)]).exit_code == 1
    filled = [one for _, one in parse_scenario({"history": FILLED}).steps if isinstance(one, Event)]
    path.write_bytes(b"\n".join(encode_plain(event) for event in filled))
    assert CliRunner().invoke(judge, ["--fail-on", "info", "--retracted", str(path)]).exit_code == 0


def test_json_is_for_machines(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(lines(packed=True))
    document = json.loads(CliRunner().invoke(judge, ["--json", str(path)]).stdout)
    (finding,) = document["findings"]
    assert finding["cause"] == "CROSS_TENANT_REUSE" and finding["severity"] == "critical"
    assert document["incidents"][0]["cause_id"] == finding["cause_id"] and document["refused"] == 0


def test_bad_lines_are_named_and_the_rest_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(b"nonsense\n" + lines(packed=False) + b'\n{"fact": {"id": 1}}\n')
    result = CliRunner().invoke(judge, [str(path)])
    assert result.exit_code == 0
    assert "h.jsonl:1: refused: record: is not JSON." in result.stderr
    assert "1 finding, 1 incident, 2 refused" in result.stdout


def test_a_scenario_that_cannot_be_read_is_wrong_and_alone(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(RIGHT)
    (tmp_path / "b.yaml").write_text(RIGHT.replace("hit K acme", "hit K acme {tokens=many}"))
    (tmp_path / "c.yaml").write_text(RIGHT.replace("hit K", "kick K"))
    result = CliRunner().invoke(judge, [str(tmp_path)])
    assert result.exit_code == 1
    assert "1 of 3 cases right" in result.output and "c.n1:2.type: is no type of event." in result.output


def test_a_wrong_scenario_is_shown_and_fails(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(RIGHT)
    assert CliRunner().invoke(judge, [str(tmp_path)]).exit_code == 0
    (tmp_path / "b.yaml").write_text(WRONG)
    result = CliRunner().invoke(judge, [str(tmp_path)])
    assert result.exit_code == 1
    assert "WRONG    unexpected n1:2 WEIGHTS_MISMATCH high" in result.output
    assert "1 of 2 cases right" in result.output


def test_a_recording_of_the_demo_is_judged_without_what_it_says_to_people(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"recording":{"v":1}}\n' + lines(packed=True) + b'\n{"answer":{"text":"30 days"}}\n')
    result = CliRunner().invoke(judge, [str(path)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "1 finding, 1 incident\n" in result.stdout
    # A record is never taken for one of them, whatever it holds.
    path.write_bytes(b'{"recording":{},"v":7}\n')
    assert "refused: v: is not known here." in CliRunner().invoke(judge, [str(path)]).stderr
