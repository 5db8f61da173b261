"""`kvtrail backfill` and `kvtrail replay`: a recording through the whole pipeline, judged again from the store."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.backfill import backfill
from kvtrail.cli.local.handover import to_environ
from kvtrail.cli.replay import _print, moment, replay
from kvtrail.judging.judge import Judge
from kvtrail.schemas.config import ClickHouseConfig, Config, KafkaConfig
from kvtrail.schemas.errors import KvtrailError
from kvtrail.schemas.facts import encode_fact
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.topics import FACTS, FINDINGS, LIFECYCLE
from kvtrail.simulator.run import Run
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.streams import history, rejudging
from kvtrail.streams.backfill import LARGEST_LINE
from kvtrail.streams.history import EvidenceAltered
from kvtrail.streams.rejudging import Outcome, compare
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import Worker, all_judged, all_stored, config_of, read_topic, undisturbed, until


def _recording(path: Path) -> Path:
    """A small fleet with faults, and the incident."""
    lines = []
    for sent in Run(seed=3, events=600, faults=12).sent():
        lines.append(b'{"fact":' + encode_fact(sent.fact) + b"}" if sent.fact else sent.record)
    lines += [histories.envelope(histories.incident("node-x"))[1], b'{"recording":{"v":1}}', b'{"answer":{}}', b""]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def _run(command: object, config: Config, *words: str) -> Result:
    return CliRunner().invoke(command, words, env=to_environ(config))  # type: ignore[arg-type] # a click command


@pytest.mark.kafka
@pytest.mark.engine
def test_a_recording_is_ingested_once_and_judged_again_from_the_store(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path)
    file = _recording(tmp_path / "history.jsonl")
    checked = _run(backfill, config, str(file), "--dry-run")
    assert checked.exit_code == 0
    assert not read_topic(topics, LIFECYCLE)
    sent = _run(backfill, config, str(file))
    assert sent.exit_code == 0
    assert sent.stdout == checked.stdout.replace("would be sent", "sent")
    once = [record.value for record in read_topic(topics, LIFECYCLE)]
    with Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink:
        until(all_judged(config), "the detector")
        assert _run(backfill, config, str(file)).exit_code == 0, "a second time changes nothing"
        until(all_judged(config), "the detector")
        until(all_stored(config, LIFECYCLE, FINDINGS, FACTS), "the sink")
        assert detector.stop() == 0
        assert sink.stop() == 0
    assert sorted(record.value for record in read_topic(topics, LIFECYCLE)) == sorted(once * 2)
    expected = [one for one in undisturbed(config).values() if one.status == "open"]
    assert len(expected) > 8
    with connect(database) as client:
        assert queries.DUPLICATES.run(client) == []
        first = min(one.event_time_us for one in expected)
        span = ("--from", _iso(first - 1_000_000), "--to", _iso(max(one.event_time_us for one in expected) + 1_000_000))
        same = _run(replay, config, *span)
        assert same.exit_code == 0, same.output
        assert f": {len(expected)} findings the same, 0 new, 0 gone, 0 changed" in same.stdout
        before = _counts(client)
        cause = next(one.cause for one in expected if one.cause == "CROSS_TENANT_REUSE")
        client.command(
            "ALTER TABLE findings DELETE WHERE cause = {cause:String}", {"cause": cause}, {"mutations_sync": 2}
        )
        missing = _run(replay, config, *span, "--json")
        assert missing.exit_code == 1
        document = json.loads(missing.stdout)
        assert {change["kind"] for change in document["changes"]} == {"new"}
        assert {change["judged"]["cause"] for change in document["changes"]} == {cause}
        assert _run(replay, config, *span, "--rules", "template-mismatch").exit_code == 0
        shown = _run(replay, config, *span, "--rules", cause)
        assert "new: today's rules find these" in shown.stdout
        assert {**_counts(client), "findings": 0} == {**before, "findings": 0}, "nothing was written"
        client.command("ALTER TABLE evidence UPDATE raw = concat(raw, ' ') WHERE 1", {}, {"mutations_sync": 2})
        assert isinstance(_run(replay, config, *span).exception, EvidenceAltered)


def _iso(us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(us / 1e6, UTC).isoformat()


def _counts(client: object) -> dict[str, int]:
    tables = ("events", "evidence", "findings", "facts", "dead_letters", "batches")
    return {name: client.query(f"SELECT count() AS n FROM {name}")[0]["n"] for name in tables}  # type: ignore[attr-defined] # a store client


def test_a_record_that_cannot_be_judged_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = histories.envelope(histories.incident("node-x"))[1]
    page = [SimpleNamespace(offset=7, append_us=1, raw=raw, sha256=hashlib.sha256(raw).hexdigest())]

    def query(rows: object) -> SimpleNamespace:
        return SimpleNamespace(run=lambda client, **named: rows)

    asked = SimpleNamespace(
        FAR_PAST_US=0, FAR_FUTURE_US=1, APPENDED_BETWEEN=query([(1, 1, 1)]), FACTS_APPENDED=query([]),
        EVIDENCE_PAGE=query(page), EVIDENCE_PLACES=query([SimpleNamespace(partition=3, first_offset=0)]),
    )  # fmt: skip

    def defect(self: Judge, batch: object, append_us: int) -> list[Finding]:
        raise KeyError("a defect")

    monkeypatch.setattr(rejudging, "queries", asked)
    monkeypatch.setattr(history, "queries", asked)
    monkeypatch.setattr(Judge, "batch", defect)
    with pytest.raises(rejudging.NotJudged, match="KeyError") as raised:
        rejudging.rejudge(None, Config(), rejudging.Span(from_us=0, to_us=1))  # type: ignore[arg-type]  # none is asked
    assert raised.value.field == f"{LIFECYCLE}/3/7"


def test_new_gone_and_changed_are_told_apart() -> None:
    from kvtrail.judging.offline import judge_history
    from msgspec.structs import replace as having

    found = {one.id: one for one in judge_history(histories.incident())}
    first, second = found.values()
    assert compare(found, found) == ([], 2)
    retracted = having(first, revision=2, status="retracted")
    milder = having(second, title="milder", complete=False, revision=9)
    changes, same = compare({first.id: retracted, second.id: second}, {first.id: first, second.id: milder})
    assert [(change.kind, change.fields) for change in changes] == [("new", ()), ("changed", ("title", "complete"))]
    assert same == 0
    assert [change.kind for change in compare(found, {first.id: retracted})[0]] == ["gone", "gone"]
    assert compare(found, {}, frozenset({"STREAM_GAP"})) == ([], 0)
    assert compare({}, {first.id: having(first, cause="RETENTION_TOO_SHORT")}) == ([], 0)
    assert compare({}, {first.id: first}, not_compared={first.cause}) == ([], 0)


def test_bad_lines_are_named_and_nothing_of_them_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    good = histories.envelope(histories.incident())[1]
    file.write_bytes(good + b"\nno json\n" + good.replace(b'"template_digest":"', b'"template_digest":"!') + b"\n")
    checked = CliRunner().invoke(backfill, [str(file), "--dry-run"])
    assert checked.exit_code == 1
    assert "bad.jsonl:2: refused: record: is not JSON." in checked.stderr
    assert "bad.jsonl:3: refused:" in checked.stderr
    assert checked.stdout == "1 record with 5 events and 0 facts would be sent, 2 refused\n"


def test_a_torn_end_and_a_line_that_no_broker_takes_cost_only_themselves(tmp_path: Path) -> None:
    """An envelope that is too large used to end the whole run, with the advice to send the file again."""
    file = tmp_path / "torn.jsonl"
    good = histories.envelope(histories.incident())[1]
    huge = good[:-1] + b" " * 10_000_000 + b"}"
    file.write_bytes(b"\n".join([good, huge, b"x" * LARGEST_LINE, good, good[:-9]]))
    checked = CliRunner().invoke(backfill, [str(file), "--dry-run"])
    assert checked.exit_code == 1
    assert "torn.jsonl:2: refused: record: is longer than" in checked.stderr
    assert "torn.jsonl:3: refused: record: is not JSON." in checked.stderr
    assert "torn.jsonl:5: refused: record: is not JSON." in checked.stderr
    assert checked.stdout == "2 records with 10 events and 0 facts would be sent, 3 refused\n"


def test_a_span_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    turned = CliRunner().invoke(replay, ["--from", "1h", "--to", "2h"])
    assert isinstance(turned.exception, KvtrailError) and "lies before --from" in str(turned.exception)


def test_times_are_read_in_both_ways() -> None:
    assert moment("90s", "from", 1000.0) == 910_000_000
    assert moment("2026-11-29T12:00Z", "from", 0) == moment("2026-11-29T13:00+01:00", "from", 0)
    assert moment("2026-11-29", "from", 0) == moment("2026-11-29T00:00Z", "from", 0)
    with pytest.raises(KvtrailError, match="is no time"):
        moment("yesterday", "from", 0)


def test_one_is_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    _print(Outcome(changes=(), same=1, records=1, events=1))
    assert capsys.readouterr().out.startswith("1 record judged again: 1 finding the same, 0 new")
