"""Detector and sink as processes, on a real broker and the real engine."""

import json
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from aiokafka import TopicPartition
from kvtrail.judging.offline import judge_history
from kvtrail.schemas.config import ClickHouseConfig, Config, KafkaConfig
from kvtrail.schemas.dead_letters import decode_dead_letter
from kvtrail.schemas.events import Create
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.topics import DEAD_LETTER, FACTS, FINDINGS, LIFECYCLE, OBSERVATIONS
from kvtrail.simulator.delivery import Sent
from kvtrail.simulator.fleet import START_US
from kvtrail.simulator.run import Run
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.comparison import Difference, compare
from kvtrail.tests.streams.fleet_histories import all_folded, exactly, fleet_history, last_request
from kvtrail.tests.streams.harness import (
    Worker,
    all_judged,
    all_stored,
    commit,
    committed,
    config_of,
    end_offsets,
    final,
    publish,
    publish_facts,
    publish_sent,
    published_findings,
    read_topic,
    undisturbed,
    until,
)
from kvtrail.tests.streams.telling import Hook, all_told, telling, told

pytestmark = [pytest.mark.kafka, pytest.mark.engine]

_T = TypeVar("_T")


def test_the_incident_reaches_the_topic_and_clickhouse(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path)
    fact, events = histories.template("answer kindly", 1), histories.incident()
    with Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink:
        publish_facts(topics, [fact])
        publish(topics, [histories.envelope(events)])
        until(all_judged(config), "the detector")
        until(all_stored(config, LIFECYCLE, FINDINGS, FACTS), "the sink")
        expected = final(judge_history([fact, *events], config.judging, config.deployment))
        assert expected
        assert final(published_findings(topics)) == expected
        with connect(database) as client:
            stored = queries.FINDINGS_CURRENT.run(client, status="")
            assert {finding.id: finding for finding in stored} == expected
            by_request = [found.event for found in queries.EVENTS_BY_REQUEST.run(client, request_id="r-3")]
            assert by_request == [events[3]]
            assert queries.FACTS.run(client) == [fact]
            [latency] = queries.PUBLISH_TO_QUERYABLE.run(client)
            assert latency.events == len(events)
        assert detector.stop() == 0
        assert sink.stop() == 0
    assert committed(topics, "kvtrail-detect", LIFECYCLE)


@pytest.mark.timeout(400)
def test_kill_9_of_either_worker_changes_nothing(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    """Eight kills in the middle of a fleet's traffic, and the same events and findings as an undisturbed run; and
    whoever is to be told of them is."""
    with Hook(seed=5) as hook:
        config = telling(exactly(config_of(topics, database, tmp_path)), hook)
        sent = [*Run(seed=5, events=5_000, faults=40).sent()]
        shared = [*fleet_history(5, START_US, 36)]
        workers = [Worker(command, config, tmp_path) for command in ("detect", "sink", "fleet", "notify")]
        detector, sink, fleet, notifier = workers
        with detector, sink, fleet, notifier:
            for third in range(3):
                some = _third(sent, third), _third(shared, third)
                publishing = threading.Thread(target=_publish, args=(topics, *some))
                before, told_before = _progress(topics), len(hook.taken)
                folded = committed(topics, "kvtrail-fleet", OBSERVATIONS)
                publishing.start()
                until(partial(_judges_more, topics, before), "new findings")
                detector.kill()
                until(partial(_stores_more, topics, before), "new rows")
                sink.kill()
                detector.start()
                sink.start()
                if third == 1:
                    until(partial(_tells_more, hook, told_before), "somebody to be told")
                    notifier.kill()
                    until(partial(_folds_more, topics, folded), "the fleet worker to save something")
                    fleet.kill()
                    notifier.start(wait=False)
                    fleet.start(wait=False)
                publishing.join()
            until(all_judged(config), "the detector")
            publish(topics, last_request(START_US + 10**9))
            until(partial(all_folded, config), "the fleet worker")
            until(all_stored(config, LIFECYCLE, FINDINGS, FACTS), "the sink")
            account = compare(config, f"{database.database}_undisturbed", fleet=True)
            assert account.differences == []
            assert account.compared["findings"] > 20
            events = {event.id for item in sent for event in item.events}
            assert account.compared["events"] == len(events) + len(shared) + 2
            until(partial(all_told, config), "the notifier")
            assert _untold(config, account.revisions, hook) == []
        with connect(database) as client:
            client.command(f"DROP DATABASE {database.database}_undisturbed SYNC", in_database=False)


def _untold(config: Config, revisions: Sequence[Finding], hook: Hook) -> list[Difference]:
    """What differs for good: what was decided last waits for a moment."""
    found: list[Difference] = []

    def nothing() -> bool:
        found[:] = told(config, revisions, [*hook.taken]).differences
        return not found

    with suppress(AssertionError):
        until(nothing, "everything to be told", 20)
    return found


def _third(items: Sequence[_T], number: int) -> Sequence[_T]:
    size = len(items) // 3 + 1
    return items[number * size : (number + 1) * size]


def _publish(kafka: KafkaConfig, sent: Sequence[Sent], shared: Sequence[tuple[str, bytes]]) -> None:
    publish(kafka, shared)
    publish_sent(kafka, sent)


Progress = tuple[dict[int, int], dict[int, tuple[int, str]]]


def _progress(kafka: KafkaConfig) -> Progress:
    return end_offsets(kafka, FINDINGS), committed(kafka, "kvtrail-sink", LIFECYCLE)


def _judges_more(kafka: KafkaConfig, before: Progress) -> bool:
    return end_offsets(kafka, FINDINGS) != before[0]


def _folds_more(kafka: KafkaConfig, before: dict[int, tuple[int, str]]) -> bool:
    return committed(kafka, "kvtrail-fleet", OBSERVATIONS) != before


def _tells_more(hook: Hook, before: int) -> bool:
    return len(hook.taken) > before


def _stores_more(kafka: KafkaConfig, before: Progress) -> bool:
    return committed(kafka, "kvtrail-sink", LIFECYCLE) != before[1]


def test_a_stop_and_a_stop_for_a_restart_keep_everything(topics: KafkaConfig, tmp_path: Path) -> None:
    config = config_of(topics, None, tmp_path)
    sent = [*Run(seed=6, events=3_000, faults=20).sent()]
    third = len(sent) // 3
    detector = Worker("detect", config, tmp_path)
    with detector:
        publish_sent(topics, sent[:third])
        until(lambda: committed(topics, "kvtrail-detect", LIFECYCLE), "the first acknowledgement")
        assert detector.stop(signal.SIGHUP) == 0
        publish_sent(topics, sent[third : 2 * third])
        detector.start()
        publish_sent(topics, sent[2 * third :])
        assert detector.stop() == 0
        detector.start()
        restored = detector.wait_for("restored")
        assert restored["next"] > 0
        until(all_judged(config), "the detector")
        assert detector.stop() == 0
        assert final(published_findings(topics)) == undisturbed(config)
        done = next(line for line in detector.lines() if line["message"] == "stopped")
        assert done["records"] < len(read_topic(topics, LIFECYCLE))


BAD = {
    "undecodable": (b"\xffnot json", "undecodable_record", "record"),
    "empty": (None, "undecodable_record", "record"),
    "version": (b'{"v":99}', "unknown_schema_version", "v"),
}


def _bad_records() -> dict[str, tuple[bytes | None, str, str]]:
    """Every kind of bad input: bytes, code, field. The last three are good envelopes with one thing wrong."""
    lane = histories.Lane("node-bad")
    good = [lane.event(Create(tokens=n), histories.identity("northwind", "w"), key=f"k{n}") for n in range(3)]
    envelope = json.loads(histories.envelope(good)[1])
    name = json.loads(json.dumps(envelope))
    name["identities"][0]["template_digest"] = "support_v7"
    tenant = json.loads(json.dumps(envelope))
    tenant["identities"][0]["tenant_id"] = " "
    tenant["first"], tenant["last"] = 4, 6
    broken = json.loads(json.dumps(envelope))
    broken["last"] = 9
    number = json.loads(json.dumps(envelope))
    number["events"][1][5]["tokens"] = 10**30
    number["first"], number["last"] = 7, 9
    return {
        **BAD,
        "broken run": (json.dumps(broken).encode(), "broken_run", "last"),
        "name in a digest's place": (
            json.dumps(name).encode(),
            "name_in_digest_place",
            "events.0.identity.template_digest",
        ),
        "empty tenant": (json.dumps(tenant).encode(), "empty_tenant", "events.0.identity.tenant_id"),
        "number": (json.dumps(number).encode(), "invalid_field", "events.1.body.tokens"),
    }  # fmt: skip


def test_bad_input_of_every_kind_is_kept_and_its_neighbours_are_processed(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path)
    bad = _bad_records()
    events = histories.incident("node-bad-too")
    records: list[tuple[str, bytes | None]] = [("n:node-bad", value) for value, _, _ in bad.values()]
    with Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink:
        publish(topics, records)
        publish(topics, [("n:node-bad", histories.envelope(events)[1])])
        until(all_judged(config), "the detector")
        until(all_stored(config, LIFECYCLE, FINDINGS), "the sink")
        assert final(published_findings(topics)) == undisturbed(config)
        letters = [decode_dead_letter(record.value) for record in read_topic(topics, DEAD_LETTER)]
        for kind, (value, code, field) in bad.items():
            [first, *_] = [letter for letter in letters if letter.raw == (value or b"") and letter.code == code]
            assert first.field == field, kind
            assert (first.topic, first.stage) == (LIFECYCLE, "decode")
            assert "10" * 10 not in first.message
        with connect(database) as client:
            rows = queries.DEAD_LETTERS.run(client, limit=1000)
            assert sorted(rows, key=_place) == sorted(letters, key=_place)
            counts = {(found.code, found.field): found.letters for found in queries.DEAD_LETTER_COUNTS.run(client)}
            assert counts[("broken_run", "last")] == 1
            stored = queries.EVENT_TAIL.run(client, limit=1000)
            # The incident, and the two good events beside the one with the impossible number.
            assert {found.event.id for found in stored} == {event.id for event in events} | {
                f"node-bad/i1/n:node-bad/{seq}" for seq in (7, 9)
            }
        assert sink.stop() == 0
        stopped = next(line for line in sink.lines() if line["message"] == "stopped")
        assert stopped["dead_letters"] == len(letters)
        assert detector.stop() == 0


def _place(letter: object) -> str:
    return repr(letter)


def test_facts_govern_what_follows_them_live_as_offline(topics: KafkaConfig, tmp_path: Path) -> None:
    """Facts and envelopes race through different topics; only append times decide."""
    config = config_of(topics, None, tmp_path)
    with Worker("detect", config, tmp_path) as detector:
        for number in range(12):
            publish_facts(topics, [histories.template(f"wording {number}", number)])
            publish(topics, [histories.envelope(histories.incident(f"node-{number}"))])
        until(all_judged(config), "the detector")
        assert final(published_findings(topics)) == undisturbed(config)
        assert detector.stop() == 0


def test_faust_606_a_commit_past_what_was_judged_loses_nothing(topics: KafkaConfig, tmp_path: Path) -> None:
    """Faust can commit beyond a record in flight. The state ends where it ends, so the rest is read from the log,
    although nothing of it is delivered again."""
    config = config_of(topics, None, tmp_path)
    with Worker("detect", config, tmp_path) as detector:
        publish(topics, [histories.envelope(histories.incident("node-1"))])
        until(all_judged(config), "the detector")
        assert detector.stop() == 0
        publish(topics, [histories.envelope(histories.incident(f"node-{n}")) for n in range(2, 9)])
        ends = end_offsets(topics, LIFECYCLE)
        commit(topics, "kvtrail-detect", {TopicPartition(LIFECYCLE, p): (end, "") for p, end in ends.items()})
        detector.start()
        expected = undisturbed(config)
        until(lambda: final(published_findings(topics)) == expected, "findings about what was committed unjudged")
        assert detector.stop() == 0


FAILING_OUTLET = """
from kvtrail.streams.detector import FindingsTopic
inner = FindingsTopic.publish
async def publish(self, findings):
    if any(finding.home == "n:node-7" for finding in findings):
        raise RuntimeError("a defect of the outlet")
    await inner(self, findings)
FindingsTopic.publish = publish
"""


def test_faust_ack_on_exception_a_failed_batch_is_not_acknowledged(topics: KafkaConfig, tmp_path: Path) -> None:
    """Faust's `take` acknowledges a batch whose body raised. Ours ends the process, and the next life judges it."""
    config = config_of(topics, None, tmp_path)
    records = [histories.envelope(histories.incident(f"node-{n}")) for n in range(1, 9)]
    failing = Worker("detect", config, tmp_path, preamble=FAILING_OUTLET)
    with failing:
        publish(topics, records)
        assert failing.wait() == 1
    with Worker("detect", config, tmp_path) as detector:
        until(all_judged(config), "the detector")
        assert final(published_findings(topics)) == undisturbed(config)
        assert detector.stop() == 0


def test_faust_web_server_is_not_bound(topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path) -> None:
    config = config_of(topics, database, tmp_path)
    for command in ("detect", "sink"):
        with Worker(command, config, tmp_path) as worker:
            listening = [
                found for found in psutil.Process(worker.pid).net_connections() if found.status == psutil.CONN_LISTEN
            ]
            assert listening == []


LATE_WAIT = """
import asyncio
from kvtrail.streams.process import Stopping
inner = Stopping.wait
async def wait(self):
    await inner(self)
    await asyncio.sleep(10)
Stopping.wait = wait
"""


def test_a_stop_that_the_loop_sees_first_is_still_a_stop(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    """The loop ends over the request itself: that is no failure, and the group has to be left."""
    config = config_of(topics, database, tmp_path)
    publish(topics, [histories.envelope(histories.incident())])
    with Worker("sink", config, tmp_path, preamble=LATE_WAIT) as worker:
        until(all_stored(config, LIFECYCLE), "the sink")
        assert worker.stop() == 0
        assert [line for line in worker.lines() if line["message"] == "stopped"]


def test_one_instance_name_is_one_process(topics: KafkaConfig, tmp_path: Path) -> None:
    config = config_of(topics, None, tmp_path)
    with Worker("detect", config, tmp_path) as first:
        second = Worker("detect", config, tmp_path)
        second.start(wait=False)
        assert second.wait() == 2
        assert "already runs on this machine" in second.log.read_text()
        assert first.stop() == 0


@pytest.mark.parametrize("command", ["detect", "sink"])
def test_two_machines_with_one_instance_name_do_not_fence_each_other_for_ever(
    command: str, topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with (
        Worker(command, config_of(topics, database, here), here) as first,
        Worker(command, config_of(topics, database, there), there) as second,
    ):
        until(lambda: first.ended or second.ended, "one of them to give up")
        loser = first if first.ended else second
        assert loser.wait() == 1
        # Either it counted how often the broker forgot it, or aiokafka met an error code it does not know.
        assert loser.lines()[-1]["message"].startswith(("giving up: another process", "giving up: Faust has crashed"))


@pytest.mark.parametrize("command", ["detect", "sink"])
def test_an_unreachable_broker_is_one_clear_line(command: str, tmp_path: Path) -> None:
    config = config_of(KafkaConfig(bootstrap="127.0.0.1:1"), None, tmp_path)
    worker = Worker(command, config, tmp_path)
    worker.start(wait=False)
    assert worker.wait() == 2
    assert "kvtrail: kafka.bootstrap: " in worker.log.read_text()
