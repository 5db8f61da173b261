"""What happens when something else goes away: the store, the broker, a worker for good, the log's beginning."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.schemas.config import ClickHouseConfig, KafkaConfig
from kvtrail.schemas.events import Create, Invalidate
from kvtrail.schemas.topics import FINDINGS, LIFECYCLE, STATE
from kvtrail.simulator.run import Run
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.tests.fixtures.engine import start_store, stop_store, wait_for_port
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.comparison import compare
from kvtrail.tests.streams.harness import (
    Worker,
    all_judged,
    all_stored,
    committed,
    config_of,
    end_offsets,
    final,
    publish,
    publish_sent,
    published_findings,
    read_topic,
    truncate,
    undisturbed,
    until,
)

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


@pytest.mark.engine
def test_a_store_that_dies_and_comes_back_gets_every_row_once(topics: KafkaConfig, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    store = start_store(directory)
    database = wait_for_port(directory, store)
    port = int(database.url.rsplit(":", 1)[1])
    config = config_of(topics, database, tmp_path)
    events = [histories.incident(f"node-{n}") for n in range(30)]
    try:
        with Worker("sink", config, tmp_path) as sink:
            publish(topics, map(histories.envelope, events[:10]))
            until(all_stored(config, LIFECYCLE), "the first rows")
            store.kill()
            store.wait()
            publish(topics, map(histories.envelope, events[10:]))
            sink.wait_for("the store is tried again")
            (directory / "port").unlink(missing_ok=True)
            store = start_store(directory, port)
            wait_for_port(directory, store)
            until(all_stored(config, LIFECYCLE), "the rest")
            with connect(database) as client:
                stored = [found.event.id for found in queries.EVENT_TAIL.run(client, limit=1000)]
                assert sorted(stored) == sorted(event.id for group in events for event in group)
            assert sink.stop() == 0
    finally:
        stop_store(store)


@pytest.mark.engine
def test_a_broker_that_dies_and_comes_back_changes_nothing(
    broker: KafkaBroker, database: ClickHouseConfig, tmp_path: Path
) -> None:
    """A worker may give up over it; whoever supervises it starts it again, as here."""
    config = config_of(broker.config, database, tmp_path)
    sent = [*Run(seed=9, events=2_000, faults=20).sent()]
    half = len(sent) // 2
    with Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink:
        publish_sent(broker.config, sent[:half])
        until(lambda: end_offsets(broker.config, FINDINGS), "findings")
        broker.kill()
        broker.restart()
        publish_sent(broker.config, sent[half:])
        judged, stored = all_judged(config), all_stored(config, LIFECYCLE, FINDINGS)

        def done() -> bool:
            for worker in (detector, sink):
                if worker.ended:
                    worker.start(wait=False)
            return judged() and stored()

        until(done, "everything judged and stored")
        assert compare(config, f"{database.database}_undisturbed").differences == []
        with connect(database) as client:
            client.command(f"DROP DATABASE {database.database}_undisturbed SYNC", in_database=False)


def test_a_second_detector_takes_over_what_the_first_leaves(topics: KafkaConfig, tmp_path: Path) -> None:
    one = config_of(topics, None, tmp_path)
    two = one.model_copy(update={"detector": one.detector.model_copy(update={"instance": "detector-1"})})
    sent = [*Run(seed=11, events=3_000, faults=20).sent()]
    third = len(sent) // 3
    with Worker("detect", one, tmp_path) as first, Worker("detect", two, tmp_path) as second:
        until(lambda: _partitions(first) | _partitions(second) == {0, 1, 2, 3} and _partitions(second), "both")
        publish_sent(topics, sent[:third])
        until(lambda: end_offsets(topics, FINDINGS), "findings")
        until(lambda: _saved(topics, _partitions(first)), "the first to save its state")
        had = _partitions(first)
        # Killed, its partitions come after its session has ended; stopped for good, at once.
        first.kill()
        publish_sent(topics, sent[third : 2 * third])
        until(lambda: _partitions(second) == {0, 1, 2, 3}, "the second to take over")
        publish_sent(topics, sent[2 * third :])
        # Not from the log's beginning, but from what the other one had saved.
        until(lambda: _restored(second) & had, "the state of a partition that was the first's")
        until(all_judged(one), "the second to judge the rest")
        assert final(published_findings(topics)) == undisturbed(one)
        first.start()
        until(lambda: len(_partitions(second)) == 2, "the first to get its share again")
        assert second.stop() == 0
        until(lambda: _partitions(first) == {0, 1, 2, 3}, "the first to get all")
        assert first.stop() == 0
    assert final(published_findings(topics)) == undisturbed(one)


@pytest.mark.engine
def test_a_finding_that_several_partitions_raise_is_the_same_whichever_comes_first(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    """Its subject spans them: an operation over several homes, a namespace. Partitions know nothing of each other."""
    config = config_of(topics, database, tmp_path)
    lanes = [histories.Lane(f"node-{number}") for number in range(12)]
    refused = Invalidate(scope="store", outcome="refused", cause="drill", op_id="drill")
    records = []
    for number, lane in enumerate(lanes):
        chosen = lane.event(Create(tokens=1), histories.identity("northwind", "w"))
        events = [lane.event(refused, key=""), msgspec.structs.replace(chosen, key_origin="client")]
        records.append(
            histories.envelope([
                msgspec.structs.replace(event, seq=at, time_us=histories.START_US + 97 * number % 13)
                for at, event in enumerate(events, 1)
            ])
        )  # fmt: skip
    with Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink:
        publish(topics, records)
        until(all_judged(config), "the detector")
        until(all_stored(config, LIFECYCLE, FINDINGS), "the sink")
        assert detector.stop() == 0
        assert sink.stop() == 0
    raised = [finding for finding in published_findings(topics) if finding.cause == "INVALIDATE_FAILED"]
    assert len(raised) > 1 and len({finding.id for finding in raised}) == 1, "or this test shows nothing"
    assert compare(config, f"{database.database}_undisturbed").differences == []
    with connect(database) as client:
        client.command("OPTIMIZE TABLE findings FINAL")
        [current] = queries.FINDINGS_CURRENT.run(client, cause="INVALIDATE_FAILED")
        assert current.event_time_us == histories.START_US
        client.command(f"DROP DATABASE {database.database}_undisturbed SYNC", in_database=False)


def _saved(kafka: KafkaConfig, partitions: set[int]) -> bool:
    """Whether a state of one of these partitions, at least, was saved."""
    return any(record.partition in partitions for record in read_topic(kafka, STATE))


def _restored(worker: Worker) -> set[int]:
    """The partitions whose state the worker has restored."""
    return {line["partition"] for line in worker.lines() if line["message"] == "restored" and line["next"] > 0}


def _partitions(worker: Worker) -> set[int]:
    """What the worker says it was assigned last."""
    assigned = [line["partitions"] for line in worker.lines() if line["message"] == "assigned"]
    return set(assigned[-1]) if assigned else set()


def _judged_once(topics: KafkaConfig, tmp_path: Path) -> Worker:
    """A detector that has judged and saved one home's history, and was stopped."""
    config = config_of(topics, None, tmp_path)
    detector = Worker("detect", config, tmp_path)
    with detector:
        publish(topics, [("n:node-1", histories.envelope([event])[1]) for event in histories.incident("node-1")])
        until(all_judged(config), "the detector")
        assert detector.stop() == 0
    return detector


def _where(topics: KafkaConfig) -> tuple[int, int]:
    [(partition, end)] = end_offsets(topics, LIFECYCLE).items()
    return partition, end


def test_a_log_that_begins_after_the_saved_state_stops_the_worker(topics: KafkaConfig, tmp_path: Path) -> None:
    detector = _judged_once(topics, tmp_path)
    partition, end = _where(topics)
    publish(topics, [("n:node-1", b"{}")] * 3)
    asyncio.run(truncate(topics, {TopicPartition(LIFECYCLE, partition): end + 2}))
    detector.start(wait=False)
    assert detector.wait() == 1
    [reason] = [line["message"] for line in detector.lines() if line["level"] == "critical"]
    assert f"{LIFECYCLE}/{partition}: the saved state ends before the log begins" in reason


def test_a_log_whose_beginning_is_gone_starts_cold_where_nothing_was_saved(topics: KafkaConfig, tmp_path: Path) -> None:
    publish(topics, [("n:node-1", b"{}")] * 3)
    partition, _ = _where(topics)
    asyncio.run(truncate(topics, {TopicPartition(LIFECYCLE, partition): 2}))
    with Worker("detect", config_of(topics, None, tmp_path), tmp_path) as detector:
        assert detector.wait_for("starting cold")["partition"] == partition
        assert detector.stop() == 0


def test_a_saved_state_that_cannot_be_read_is_rebuilt_from_a_whole_log(topics: KafkaConfig, tmp_path: Path) -> None:
    detector = _judged_once(topics, tmp_path)
    partition, _ = _where(topics)
    asyncio.run(_damage(topics, partition))
    config = config_of(topics, None, tmp_path)
    with detector:
        detector.wait_for("judging the whole log again")
        publish(topics, [("n:node-1", b"{}")])
        until(all_judged(config), "the detector")
        assert detector.stop() == 0
        assert next(line for line in detector.lines() if line["message"] == "stopped")["gap_records"] > 0
        detector.start()
        detector.wait_for("restored")
        assert detector.stop() == 0
    assert final(published_findings(topics)) == undisturbed(config)
    assert committed(topics, "kvtrail-detect", LIFECYCLE)


async def _damage(kafka: KafkaConfig, partition: int) -> None:
    """A manifest whose blobs are not there."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    try:
        for key, value in _records(partition):
            await producer.send_and_wait(STATE, value, key=key, partition=partition)
    finally:
        await producer.stop()


def _records(partition: int) -> list[tuple[bytes, bytes | None]]:
    return [
        (f"{partition}/manifest".encode(), None),
        (
            f"{partition}/manifest".encode(),
            b'{"id":"x","partition":%d,"next":1,"last_append_us":0,"blobs":1,"bytes":9,"sha256":"","writer":"w"}'
            % partition,
        ),
    ]
