"""Limits of refusals: when a worker that refuses records stops."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from kvtrail.schemas.config import ClickHouseConfig, Config, KafkaConfig
from kvtrail.schemas.context import RequestContext, encode_context
from kvtrail.schemas.dead_letters import decode_dead_letter
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder, Reject
from kvtrail.schemas.errors import BadInput, InvalidField, StoreRejected
from kvtrail.schemas.topics import CONTEXT, FACTS, FINDINGS, LIFECYCLE
from kvtrail.store import queries
from kvtrail.store.client import Client, connect
from kvtrail.store.rows import Source
from kvtrail.streams import batches
from kvtrail.streams.clients import LARGEST_RECORD
from kvtrail.streams.deadletters import DeadLetterTopic, fitted
from kvtrail.streams.intake import LifecycleIntake, letter_of
from kvtrail.streams.lanes import Runs, StoredLanes
from kvtrail.streams.readmission import key_of
from kvtrail.streams.records import Record
from kvtrail.streams.refusals import WINDOW, RefusalLimit, TooManyRefused, refused
from kvtrail.streams.writer import Writer
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import Worker, all_judged, all_stored, config_of, publish, until
from msgspec.structs import replace


def _limit(in_a_row: int = 5, share: float = 0.5) -> RefusalLimit:
    return RefusalLimit("kvtrail.lifecycle/2", "sink", in_a_row=in_a_row, share=share)


def test_a_row_of_refusals_stops_and_one_good_record_begins_anew() -> None:
    limit = _limit()
    for was_refused in [*[True] * 4, False, *[True] * 4]:
        limit.take(was_refused)
    with pytest.raises(TooManyRefused) as stop:
        limit.take(True)
    assert stop.value.field == "kvtrail.lifecycle/2"
    assert "sink.refused_in_a_row to 0" in stop.value.remedy


def test_a_share_of_refusals_stops_only_over_a_whole_window() -> None:
    limit = _limit(in_a_row=0, share=0.5)
    for number in range(WINDOW - 1):
        limit.take(number % 3 != 0)
    limit.take(False)
    with pytest.raises(TooManyRefused, match="of the last"):
        limit.take(True)


def test_a_restart_forgives_nothing() -> None:
    limit = _limit()
    limit.recall([False, *[True] * 9])
    limit.take(False)
    limit.recall([True] * 4)
    with pytest.raises(TooManyRefused):
        limit.take(True)


def test_limits_can_be_off() -> None:
    limit = _limit(in_a_row=0, share=1)
    for _ in range(3 * WINDOW):
        limit.take(True)


def test_a_bad_event_beside_good_ones_does_not_count() -> None:
    good = EnvelopeDecoder().decode(histories.envelope(histories.incident())[1])
    reject = Reject(error=InvalidField("x", field="y"))
    assert not refused(good)
    assert refused(Batch(rejects=[reject]))
    assert not refused(Batch(events=good.events[:2], rejects=[reject]))
    assert refused(Batch(events=good.events[:2], rejects=[reject, reject]))


def test_a_number_can_be_taken_out_of_runs() -> None:
    runs = Runs([(1, 5), (8, 8)])
    for number in (3, 8, 7, 1, 5):
        runs.remove(number)
    assert [*runs] == [(2, 2), (4, 4)]


class _Broken:
    """A store whose table has no such column, until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.rows = 0
        self.letters = 0

    def insert(self, table: str, columns: Mapping[str, Sequence[Any]], token: str) -> None:
        if table == "dead_letters":
            self.letters += len(columns["raw"])
        elif self.mended:
            self.rows += len(columns["record"])
        else:
            raise StoreRejected("has no column.", field=table)


class _Topic:
    async def publish(self, letters: Sequence[Any]) -> list[tuple[Source, Any]]:
        return [(Source("kvtrail.dead-letter", 0, at, 1), letter) for at, letter in enumerate(letters)]


def _batch(intake: LifecycleIntake, records: Sequence[Record], limit: RefusalLimit) -> batches.Batch:
    items = [intake.take(record) for record in records]
    first, last = records[0].offset, records[-1].offset
    return batches.Batch(first=first, last=last, items=items, intake=intake, limit=limit)


def test_a_store_that_rejects_everything_stops_the_sink_and_a_mended_one_takes_what_is_sent_again() -> None:
    store, tp = _Broken(), TopicPartition(LIFECYCLE, 0)
    writer = Writer(cast(Client, store), cast(DeadLetterTopic, _Topic()), 0, interrupted=lambda: False)
    intake, limit = LifecycleIntake(StoredLanes()), _limit(in_a_row=8)
    values = [histories.envelope(histories.incident(f"node-{number}"))[1] for number in range(12)]
    log = [
        Record(topic=LIFECYCLE, partition=0, offset=at, append_us=at, value=value) for at, value in enumerate(values)
    ]
    asyncio.run(writer.write(tp, _batch(intake, log[:4], limit)))
    assert store.letters == 4
    with pytest.raises(TooManyRefused):
        asyncio.run(writer.write(tp, _batch(intake, log[4:], limit)))
    assert store.letters == 4, "what trips the limit is not a dead letter yet"
    store.mended = True
    again = Record(topic=LIFECYCLE, partition=0, offset=50, append_us=50, value=values[0])
    asyncio.run(writer.write(tp, _batch(intake, [again], _limit())))
    assert store.rows == 1 + 5, "its events are new: they were never stored"


def test_a_context_goes_back_under_its_request_id() -> None:
    value = encode_context(RequestContext(request_id="r-1", tenant_id="northwind", at_us=1))
    record = Record(topic=CONTEXT, partition=0, offset=1, append_us=1, value=value)
    assert key_of(letter_of(InvalidField("is bad.", field="x"), record, "resolve")) == b"r-1"
    with pytest.raises(BadInput):
        key_of(letter_of(InvalidField("is bad.", field="x"), replace(record, value=b"{}"), "resolve"))


def test_a_letter_about_a_record_as_large_as_the_broker_takes_fits_the_broker() -> None:
    raw = bytes(range(256)) * 4096
    record = Record(topic=LIFECYCLE, partition=0, offset=1, append_us=1, value=raw)
    letter = letter_of(InvalidField("is bad.", field="x"), record, "decode")
    told = decode_dead_letter(fitted(letter))
    assert len(fitted(letter)) < LARGEST_RECORD
    assert raw.startswith(told.raw) and len(told.raw) > 700_000
    assert told.message == "is bad. The topic has only the beginning of its 1048576 bytes."
    small = letter_of(InvalidField("is bad.", field="x"), replace(record, value=raw[:700_000]), "decode")
    assert decode_dead_letter(fitted(small)) == small


@pytest.mark.kafka
@pytest.mark.engine
def test_rubbish_as_large_as_the_broker_takes_is_refused_and_stops_nobody(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path)
    with Worker("sink", config, tmp_path) as sink:
        rubbish = b"x" * (LARGEST_RECORD - 1000)
        publish(topics, [("n:node-1", rubbish), histories.envelope(histories.incident("node-1"))])
        until(all_stored(config, LIFECYCLE), "the sink")
        with connect(database) as client:
            [letter] = queries.DEAD_LETTERS_FOUND.run(client)
            assert letter.raw == rubbish, "the table has all of it"
            assert len(queries.EVENT_TAIL.run(client)) == 5
        assert sink.stop() == 0


@pytest.mark.kafka
@pytest.mark.engine
def test_workers_stop_before_a_topic_is_drained_and_go_on_when_told(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    loose = config_of(topics, database, tmp_path)
    config = _limited(loose, 5)
    good, rubbish = histories.envelope(histories.incident("node-1")), ("n:node-1", b"rubbish")
    with Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink:
        publish(topics, [good, *[rubbish] * 3, histories.envelope(histories.incident("node-1")), *[rubbish] * 3])
        until(all_judged(config), "the detector")
        until(all_stored(config, LIFECYCLE, FINDINGS, FACTS), "the sink")
        publish(topics, [rubbish] * 40)
        for worker in (detector, sink):
            until(lambda worker=worker: worker.ended, f"{worker.command} to stop")  # type: ignore[misc] # bound on purpose
            assert worker.wait() == 1
            assert "records in a row were refused" in worker.wait_for("giving up")["message"]
        before = _letters(database)
        assert 6 <= before < 11
        for worker in (detector, sink):  # a restart forgives nothing
            worker.start(wait=False)
            assert worker.wait() == 1
        assert _letters(database) == before
    with (
        Worker("detect", _limited(loose, 0), tmp_path) as detector,
        Worker("sink", _limited(loose, 0), tmp_path) as sink,
    ):
        until(all_judged(config), "the detector")
        until(all_stored(config, LIFECYCLE), "the sink")
        assert _letters(database) == 46
        assert detector.stop(signal.SIGTERM) == 0
        assert sink.stop() == 0


def _limited(config: Config, in_a_row: int) -> Config:
    return config.model_copy(
        update={
            name: getattr(config, name).model_copy(update={"refused_in_a_row": in_a_row})
            for name in ("detector", "sink")
        }
    )


def _letters(database: ClickHouseConfig) -> int:
    with connect(database) as client:
        return len(queries.DEAD_LETTERS_FOUND.run(client, limit=1000))
