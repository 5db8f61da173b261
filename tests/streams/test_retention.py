"""The retention guard: TTLs seen in events against what is kept."""

from pathlib import Path

import pytest
from kvtrail.schemas.config import ClickHouseConfig, KafkaConfig, RetentionConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.events import Create
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.topics import FINDINGS, LIFECYCLE
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.streams.intake import Item, LifecycleIntake
from kvtrail.streams.lanes import StoredLanes
from kvtrail.streams.records import Record
from kvtrail.streams.retention import CAUSE, RetentionWatch
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import Worker, all_stored, config_of, publish, until
from msgspec.structs import replace

DAY_S = 86400.0
KEPT = RetentionConfig(events_days=90, evidence_days=400, longest_ttl_s=30 * DAY_S, factor=3)


def _items(*creates: Create) -> list[Item]:
    lane = histories.Lane("node-1")
    events = [lane.event(create, histories.identity("northwind", "w"), key=f"k{n}") for n, create in enumerate(creates)]
    value = histories.envelope(events)[1]
    record = Record(topic=LIFECYCLE, partition=0, offset=0, append_us=1, value=value)
    return [LifecycleIntake(StoredLanes()).take(record)]


def test_what_retention_outlasts_is_silent_and_what_it_does_not_is_found_once() -> None:
    watch = RetentionWatch(KEPT, "test")
    assert watch.look(_items(Create(), Create(ttl_s=30 * DAY_S), Create(max_age_s=7 * DAY_S))) == []
    assert watch.longest_s == 30 * DAY_S
    [found] = watch.look(_items(Create(ttl_s=31 * DAY_S), Create(ttl_s=55 * DAY_S), Create(max_age_s=32 * DAY_S)))
    assert (found.cause, found.status, found.store) == (CAUSE, "open", "kv")
    assert found.title == "entries may live longer than 30 days; what is kept outlasts 30 days"
    assert found.evidence == ("node-1/i1/n:node-1/1",)
    assert watch.look(_items(Create(ttl_s=60 * DAY_S))) == []
    [longer] = watch.look(_items(Create(ttl_s=61 * DAY_S)))
    assert longer.id != found.id
    assert "longer than 60 days" in longer.title


def test_hostile_ttls_cannot_flood() -> None:
    watch = RetentionWatch(KEPT, "test")
    found = watch.look(_items(*[Create(ttl_s=DAY_S * 1.5**power) for power in range(400)]))
    assert len(found) == len({one.id for one in found}) <= 21


def test_a_longer_retention_retracts_what_it_answers() -> None:
    found = RetentionWatch(KEPT, "test").look(_items(Create(ttl_s=31 * DAY_S), Create(ttl_s=1000 * DAY_S)))
    longer = RetentionConfig(events_days=400, evidence_days=400, longest_ttl_s=30 * DAY_S, factor=3)
    [retracted] = RetentionWatch(longer, "test").outdated(found)
    assert (retracted.id, retracted.revision, retracted.status) == (found[0].id, 2, "retracted")
    assert RetentionWatch(longer, "test").outdated([retracted]) == []


def test_a_retention_that_is_lowered_again_is_a_later_revision() -> None:
    """As revision 1 it would stand behind the retraction, and nobody would hear of it."""
    [found] = RetentionWatch(KEPT, "test").look(_items(Create(ttl_s=31 * DAY_S)))
    retracted = replace(found, revision=2, status="retracted")
    lowered = RetentionWatch(KEPT, "test")
    assert lowered.outdated([retracted]) == []
    [again] = lowered.look(_items(Create(ttl_s=31 * DAY_S)))
    assert (again.id, again.revision, again.status) == (found.id, 3, "open")
    still = RetentionWatch(KEPT, "test")
    assert still.outdated([again]) == []
    assert still.look(_items(Create(ttl_s=31 * DAY_S))) == [], "it stands"


def test_a_configuration_that_contradicts_itself_does_not_load() -> None:
    from kvtrail.schemas.config import load_config

    with pytest.raises(ConfigError, match="events_days is shorter"):
        load_config(environ={"KVTRAIL_RETENTION__EVENTS_DAYS": "80", "KVTRAIL_RETENTION__LONGEST_TTL_S": "2592000"})


@pytest.mark.kafka
@pytest.mark.engine
def test_a_long_ttl_becomes_a_finding_in_the_store_and_goes_when_retention_is_raised(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path)
    lane = histories.Lane("node-1")
    event = lane.event(Create(ttl_s=500 * DAY_S), histories.identity("northwind", "w"))
    with Worker("sink", config, tmp_path) as sink:
        publish(topics, [histories.envelope([event])])
        until(lambda: _found(database), "the finding")
        assert "retention: entries may live longer" in sink.wait_for("retention: ")["message"]
        assert sink.stop() == 0
        publish(topics, [histories.envelope([lane.event(Create(ttl_s=510 * DAY_S), key="another")])])
        sink.start()
        until(all_stored(config, LIFECYCLE, FINDINGS), "the sink")
        [found] = _found(database)
        assert (found.revision, found.evidence) == (1, (event.id,)), "known already: not raised anew"
        assert sink.stop() == 0
    kept = config.model_copy(update={"retention": RetentionConfig(events_days=2000, evidence_days=3000)})
    with Worker("sink", kept, tmp_path) as sink:
        until(all_stored(config, FINDINGS), "the sink")
        [found] = _found(database)
        assert (found.revision, found.status) == (2, "retracted")
        assert sink.stop() == 0
    publish(topics, [histories.envelope([lane.event(Create(ttl_s=510 * DAY_S), key="a third")])])
    with Worker("sink", config, tmp_path) as sink:
        until(all_stored(config, LIFECYCLE, FINDINGS), "the sink")
        [found] = _found(database)
        assert (found.revision, found.status) == (3, "open"), "lowered again: it hides behind no retraction"
        assert sink.stop() == 0


def _found(database: ClickHouseConfig) -> list[Finding]:
    with connect(database) as client:
        return queries.FINDINGS_CURRENT.run(client, cause=CAUSE, status="")
