"""History judged again: what compares several homes is found again too, from the store and from the log."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtrail.schemas.config import ClickHouseConfig, Config, KafkaConfig
from kvtrail.schemas.errors import BrokerError
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.fleet_settings import FleetConfig
from kvtrail.schemas.topics import FINDINGS, LIFECYCLE
from kvtrail.store.client import Client, connect
from kvtrail.store.rows import Source, finding_rows
from kvtrail.streams import rejudging
from kvtrail.streams.history import LoggedHistory
from kvtrail.streams.records import Record
from kvtrail.streams.rejudging import Outcome, Span, rejudge
from kvtrail.tests.streams.fleet_histories import CAUSES, SETTINGS, fleet_history
from kvtrail.tests.streams.harness import (
    Worker,
    all_judged,
    all_stored,
    config_of,
    final,
    publish,
    published_findings,
    until,
)
from kvtrail.tests.streams.test_fleet import offline, plain

START_US = 1_790_000_000_000_000
EVER = Span(from_us=0, to_us=2**60)
CONFIG = Config(judging=SETTINGS, fleet=FleetConfig(request_s=2))


class Recorded:
    """Records of three partitions, half a second from one to the next."""

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._records = [
            Record(
                topic=LIFECYCLE, partition=int(home[-1]) % 3, offset=number, append_us=START_US + number * 500_000,
                value=raw,
            )
            for number, (home, raw) in enumerate(fleet_history(1, START_US, 24))
        ]  # fmt: skip

    def facts(self) -> Iterator[tuple[int, Fact]]:
        yield from ()

    def partitions(self, since_us: int, until_us: int) -> list[int]:
        return [0, 1, 2]

    def pages(self, partition: int, since_us: int, until_us: int) -> Iterator[list[Record]]:
        for record in self._records:
            if record.partition == partition:
                yield [record]

    def whole(self) -> bool:
        return self._whole


def _again(client: Client, config: Config = CONFIG, *, whole: bool = True, **asked: object) -> Outcome:
    span = Span(from_us=0, to_us=2**60, warm_up_us=asked.pop("warm_up_us", 0))  # type: ignore[arg-type]  # a number
    return rejudge(client, config, span, history=Recorded(whole=whole), **asked)  # type: ignore[arg-type]  # as asked


def _found(outcome: Outcome) -> set[str]:
    return {change.finding.cause for change in outcome.changes}


@pytest.mark.engine
def test_what_compares_homes_is_found_again_and_compared(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        found = _again(client)
        assert _found(found) >= CAUSES
        assert {cause for one in found.left_out for cause in one.causes} == rejudging.NOT_COMPARED
        _store(client, [change.judged for change in found.changes if change.judged is not None])
        again = _again(client)
        assert (again.changes, again.same) == ((), len(found.changes))
        only = _again(client, causes=frozenset({"KEY_DRIFT"}))
        assert only.same and only.same < again.same and not only.left_out


@pytest.mark.engine
def test_what_history_cannot_say_is_named_and_neither_gone_nor_the_same(database: ClickHouseConfig) -> None:
    counting = {"KEY_DRIFT", "PREFIX_PROBING"}
    with connect(database) as client:
        stored = [change.judged for change in _again(client).changes if change.judged is not None]
        _store(client, stored)
        for outcome, missing in (
            (_again(client, whole=False), counting),
            (_again(client, warm_up_us=60_000_000), counting),
            (_again(client, warm_up_us=1_000_000), CAUSES),
            (_again(client, CONFIG.model_copy(update={"fleet": FleetConfig(enabled=False)})), CAUSES),
        ):
            left_out = {cause for one in outcome.left_out for cause in one.causes}
            assert left_out == missing | rejudging.NOT_COMPARED
            assert not outcome.changes
            assert outcome.same == sum(one.cause not in left_out for one in stored)
        [asked] = _again(client, whole=False, causes=frozenset({"KEY_DRIFT"})).left_out
        assert "beginning is gone" in asked.reason


@pytest.mark.kafka
def test_a_log_that_is_not_there_or_another_is_one_clear_error(topics: KafkaConfig) -> None:
    for wrong, said in (({"partitions": 6}, "has 4 partitions"), ({"bootstrap": "127.0.0.1:1"}, "could not be used")):
        with pytest.raises(BrokerError, match=said), LoggedHistory(topics.model_copy(update=wrong)):
            pass


def _store(client: Client, findings: list[Finding]) -> None:
    rows = finding_rows((Source(FINDINGS, 0, at, START_US), one) for at, one in enumerate(findings))
    client.insert(rows.table, rows.columns, "stored")


@pytest.mark.kafka
@pytest.mark.engine
def test_store_and_log_give_what_was_found_live(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    fleet = FleetConfig(request_s=1, snapshot_s=0.3, clock_skew_s=0.1)
    config = config_of(topics, database, tmp_path).model_copy(update={"judging": SETTINGS, "fleet": fleet})
    with (
        Worker("detect", config, tmp_path), Worker("fleet", config, tmp_path), Worker("sink", config, tmp_path),
        connect(database) as client,
    ):  # fmt: skip
        history = list(fleet_history(7, time.time_ns() // 1000, 60))
        for start in range(0, len(history), 60):
            publish(topics, history[start : start + 60])
        until(all_judged(config), "everything to be judged")
        wanted = offline(config)
        assert {one.cause for one in wanted.values()} == CAUSES
        until(lambda: plain(final(published_findings(topics))).keys() >= wanted.keys(), "the fleet's findings")
        until(all_stored(config, LIFECYCLE, FINDINGS), "the sink")
        stored = rejudge(client, config, EVER)
        assert (stored.changes, stored.whole) == ((), True)
        assert stored.same == sum(one.status == "open" for one in final(published_findings(topics)).values())
        with LoggedHistory(topics) as log:
            logged = rejudge(client, config, EVER, history=log)
        assert logged == stored
        client.command(
            "ALTER TABLE findings DELETE WHERE cause IN {causes:Array(String)}", {"causes": sorted(CAUSES)},
            {"mutations_sync": 2},
        )  # fmt: skip
        with LoggedHistory(topics) as log:
            assert _found(rejudge(client, config, EVER, history=log)) == CAUSES
