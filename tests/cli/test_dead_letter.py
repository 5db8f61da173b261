"""`kvtrail dead-letter` on a real engine, and on a real broker where records are sent again."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.dead_letter import dead_letter as command
from kvtrail.cli.local.handover import to_environ
from kvtrail.schemas.config import ClickHouseConfig, Config, KafkaConfig, LocalConfig
from kvtrail.schemas.dead_letters import DeadLetter, dead_letter
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.errors import InvalidField, UndecodableRecord, UnknownSchemaVersion
from kvtrail.schemas.facts import encode_fact
from kvtrail.schemas.topics import FACTS, LIFECYCLE
from kvtrail.store.client import connect
from kvtrail.store.rows import Source, dead_letter_rows
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import read_topic
from kvtrail.tests.streams.histories import START_US

pytestmark = [pytest.mark.kafka, pytest.mark.engine]
RUBBISH = b"\xff\x1b[31mred\nrecord " + b"x" * 5000


def _letters() -> list[DeadLetter]:
    events = histories.incident()
    now_readable = histories.envelope(events)[1]
    fact = encode_fact(histories.template("answer kindly", 1))
    no_version = UnknownSchemaVersion("is not known here.", field="v", remedy="Upgrade this worker.")
    lane = ("node-1", "i1", "n:node-1")
    return [
        dead_letter(UndecodableRecord("is not JSON.", field="record", remedy="Send UTF-8 JSON."), RUBBISH,
                    topic=LIFECYCLE, partition=1, offset=7, stage="decode", at_us=START_US + 1),
        dead_letter(no_version, now_readable,
                    topic=LIFECYCLE, partition=1, offset=8, stage="decode", at_us=START_US + 2),
        dead_letter(no_version, fact, topic=FACTS, partition=0, offset=3, stage="decode", at_us=START_US + 3),
        dead_letter(InvalidField("is no count.", field="events.2.body.tokens", remedy="Count."), now_readable,
                    topic=LIFECYCLE, partition=1, offset=9, stage="decode", at_us=START_US + 4, lane=lane, seq=3,
                    index=2),
    ]  # fmt: skip


@pytest.fixture
def config(topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path) -> Config:
    with connect(database) as client:
        rows = [(Source("kvtrail.dead-letter", 0, at, letter.at_us), letter) for at, letter in enumerate(_letters())]
        client.insert(*dead_letter_rows(rows), token="letters")
    return Config(kafka=topics, clickhouse=database, local=LocalConfig(directory=tmp_path))


def _run(config: Config, *words: str) -> Result:
    return CliRunner().invoke(command, words, env=to_environ(config))


def test_list_names_each_with_its_reason_newest_first(config: Config) -> None:
    listed = _run(config, "list")
    assert listed.exit_code == 1
    ids = ["kvtrail.lifecycle/1/9/2", "kvtrail.facts/0/3", "kvtrail.lifecycle/1/8", "kvtrail.lifecycle/1/7"]
    assert [line.split()[2] for line in listed.stdout.splitlines()] == ids
    assert "undecodable_record  record: is not JSON." in listed.stdout
    assert _run(config, "list", "--code", "undecodable_record").stdout.count("\n") == 1
    assert _run(config, "list", "--since", "1h").stdout == "No dead letter.\n"
    assert _run(config, "list", "--stage", "insert").exit_code == 0
    documents = [json.loads(line) for line in _run(config, "list", "--json").stdout.splitlines()]
    assert [each["id"] for each in documents] == ids


def test_show_says_where_why_and_what_to_do_and_escapes_the_bytes(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "raw"
    shown = _run(config, "show", "lifecycle/1/7", "--raw", str(file))
    assert shown.exit_code == 0
    assert "why      undecodable_record: record: is not JSON." in shown.stdout
    assert "remedy   Send UTF-8 JSON." in shown.stdout
    assert "\x1b" not in shown.stdout and r"\xff\x1b[31mred\nrecord" in shown.stdout
    assert "bytes more" in shown.stderr
    assert file.read_bytes() == RUBBISH
    assert "x" * 5000 in _run(config, "show", "lifecycle/1/7", "--full").stdout
    assert "from     node-1 i1 n:node-1, number 3" in _run(config, "show", "kvtrail.lifecycle/1/9/2").stdout
    for wrong in ("lifecycle/1/99", "lifecycle/1", "x", "lifecycle/1/a", "lifecycle/1/9/0"):
        assert _run(config, "show", wrong).exit_code != 0


def test_replay_sends_what_can_be_read_now_and_says_why_not_of_the_rest(config: Config, topics: KafkaConfig) -> None:
    dry = _run(config, "replay", "--all", "--dry-run")
    assert dry.exit_code == 1
    assert "kvtrail.lifecycle/1/8  would be sent under key n:node-1" in dry.stdout
    assert not read_topic(topics, LIFECYCLE)
    sent = _run(config, "replay", "--all")
    assert sent.exit_code == 1
    assert "kvtrail.lifecycle/1/7  not sent: record: is not JSON." in sent.stderr
    assert "kvtrail.lifecycle/1/9/2  not sent" in sent.stderr and "counts as seen" in sent.stderr
    assert "2 sent, 2 not." in sent.stderr
    [record] = read_topic(topics, LIFECYCLE)
    assert EnvelopeDecoder().decode(record.value).events == histories.incident()
    [fact] = read_topic(topics, FACTS)
    assert fact.value == encode_fact(histories.template("answer kindly", 1))
    assert _run(config, "replay", "lifecycle/1/8").exit_code == 0
    assert [each.partition for each in read_topic(topics, LIFECYCLE)] == [record.partition] * 2
    assert _run(config, "replay").exit_code == 2


def test_what_a_limit_leaves_is_said(config: Config) -> None:
    """Otherwise it would say that everything was sent."""
    some = _run(config, "replay", "--all", "--stage", "decode", "--code", "unknown_schema_version", "--limit", "1",
                "--dry-run")  # fmt: skip
    assert (some.exit_code, some.stdout.count("would be sent")) == (1, 1)
    assert "the newest 1 were taken" in some.stderr
    whole = _run(config, "replay", "--all", "--code", "unknown_schema_version", "--limit", "2", "--dry-run")
    assert (whole.exit_code, "were taken" in whole.stderr) == (0, False)
