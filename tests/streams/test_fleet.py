"""Rules that compare homes, live: what one process finds of what detectors observe is what an offline run finds."""

import itertools
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.fleet import FleetJudge
from kvtrail.judging.fleet_snapshot import dump_fleet, encode_fleet, load_fleet
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import History
from kvtrail.schemas.config import Config, KafkaConfig
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.errors import UndecodableRecord
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.fleet_settings import FleetConfig
from kvtrail.schemas.topics import LIFECYCLE, OBSERVATIONS
from kvtrail.streams.fleet_state import FleetState
from kvtrail.streams.observing import Observations, Observed, pack, unpack
from kvtrail.tests.streams.fleet_histories import CAUSES, SETTINGS, fleet_history
from kvtrail.tests.streams.harness import (
    Worker,
    all_judged,
    config_of,
    final,
    publish,
    published_findings,
    read_topic,
    until,
)
from msgspec.structs import replace

START_US = 1_760_000_000_000_000


def plain(findings: dict[str, Finding]) -> dict[str, Finding]:
    """What stands of the fleet rules' findings, without how often it was revised on the way."""
    return {
        name: replace(one, revision=0, reason="")
        for name, one in findings.items()
        if one.cause in CAUSES and one.status == "open"
    }


def observed(partitions: int = 3, contents: int = 24) -> list[Observations]:
    """What the judges of some partitions hand on, record by record, in the order of the log."""
    decoder, judges, made = EnvelopeDecoder(), dict[int, Judge](), list[Observations]()
    for number, (home, raw) in enumerate(fleet_history(1, START_US, contents)):
        partition = int(home[-1]) % partitions
        judge = judges.setdefault(partition, Judge(SETTINGS, "test", FactBook(), observe=True))
        judge.batch(decoder.decode(raw), number)
        assert judge.observations is not None
        append_us = START_US + 500_000 * number
        made.append(Observations(partition, [Observed(number, append_us, tuple(judge.observations))]))
        judge.observations.clear()
    return made


LOG = observed()


def folded(state: FleetState, log: list[Observations]) -> dict[str, Finding]:
    for offset, one in enumerate(log):
        state.take(one.partition, offset, one)
    return final(state.fold(2**62, 10**9, closing=True))


def undisturbed() -> dict[str, Finding]:
    return plain(folded(FleetState(FleetJudge(SETTINGS, "test"), 300), LOG))


def test_the_history_has_all_of_it() -> None:
    assert {one.cause for one in undisturbed().values()} == CAUSES


@pytest.mark.parametrize("seed", range(30))
def test_repetition_and_the_order_of_arrival_between_partitions_change_nothing(seed: int) -> None:
    """Partitions arrive at any speed, and detectors say again what they said before they were killed."""
    random = Random(seed)
    queues = {p: [one for one in LOG if one.partition == p] for p in range(3)}
    arriving: list[Observations] = []
    at = dict.fromkeys(queues, 0)
    while any(at[p] < len(queues[p]) for p in queues):
        p = random.choice([p for p in queues if at[p] < len(queues[p])])
        if random.random() < 0.05:
            at[p] = max(0, at[p] - random.randrange(20))
        arriving.append(queues[p][at[p]])
        at[p] += 1
    state = FleetState(FleetJudge(SETTINGS, "test"), 300)
    assert plain(folded(state, arriving)) == undisturbed()
    assert state.merge.late == 0
    assert state.observations == sum(len(one.observed[0].observations) for one in LOG), "each once"


@given(st.integers(0, len(LOG)), st.integers(0, len(LOG)))
def test_a_snapshot_at_any_point_changes_nothing(at: int, known: int) -> None:
    """Also while some of what was read waits for its order: the next life reads that again."""
    state, found = FleetState(FleetJudge(SETTINGS, "test"), 3), list[Finding]()
    offsets = dict.fromkeys(range(3), 0)
    places = []
    for one in LOG:
        places.append((one.partition, offsets[one.partition]))
        offsets[one.partition] += 1
    for (partition, offset), one in list(zip(places, LOG, strict=True))[:at]:
        state.take(partition, offset, one)
        state.next[partition] = offset + 1
    closing_us = START_US + 500_000 * min(known, at) - 1
    found += state.fold(closing_us, 10**9, closing=True)
    restored = FleetState(FleetJudge(SETTINGS, "test"), 3)
    restored.load(FleetState.encode(state.dump()), SETTINGS, "test")
    for (partition, offset), one in zip(places, LOG, strict=True):
        if offset >= restored.next.get(partition, 0):
            restored.take(partition, offset, one)
    found += restored.fold(2**62, 10**9, closing=True)
    whole = FleetState(FleetJudge(SETTINGS, "test"), 3)
    assert plain(final(found)) == plain(folded(whole, LOG))


@given(st.integers(0, len(LOG)))
def test_a_judge_goes_on_from_its_bytes_to_the_same_revisions(at: int) -> None:
    observations = [each for one in LOG for seen in one.observed for each in seen.observations]
    judge = FleetJudge(SETTINGS, "test")
    for each in observations[:at]:
        judge.take(each)
    again = load_fleet(encode_fleet(dump_fleet(judge)), SETTINGS, "test")
    for each in observations[at:]:
        assert judge.take(each) == again.take(each)
    assert judge.finish() == again.finish()


def test_what_waits_for_a_detector_is_bounded() -> None:
    state = FleetState(FleetJudge(SETTINGS, "test"), 300)
    for offset, one in enumerate(LOG):
        state.take(one.partition, offset, one)
    state.fold(0, 50, closing=False)
    assert state.merge.waiting <= 50 < state.observations


def test_records_of_observations_are_cut_and_read_back() -> None:
    many = [Observed(offset, 1, LOG[0].observed[0].observations * 500) for offset in range(20)]
    records = pack(2, many)
    assert len(records) > 1
    found = [unpack(record) for record in records]
    assert [one for each in found for one in each.observed] == many and {each.partition for each in found} == {2}
    for bad in (b"", b"{}", b"\x93\x02\x90\x07"):
        with pytest.raises(UndecodableRecord):
            unpack(bad)


def offline(config: Config) -> dict[str, Finding]:
    """One run over the whole fleet's log, in the order of its appends."""
    history, decoder = History(config.judging, config.deployment), EnvelopeDecoder()
    log = sorted(read_topic(config.kafka, LIFECYCLE), key=lambda one: (one.append_us, one.partition, one.offset))
    for record in log:
        history.take(decoder.decode(record.value), record.append_us)
    history.finish()
    return plain(history.final)


@pytest.mark.kafka
def test_live_and_offline_find_the_same_through_kills(topics: KafkaConfig, tmp_path: Path) -> None:
    fleet = FleetConfig(request_s=1, snapshot_s=0.3, clock_skew_s=0.1)
    config = config_of(topics, None, tmp_path).model_copy(update={"judging": SETTINGS, "fleet": fleet})
    history = list(fleet_history(7, time.time_ns() // 1000, 60))
    with Worker("detect", config, tmp_path) as detector, Worker("fleet", config, tmp_path) as worker:
        for number, start in enumerate(itertools.count(0, 120)):
            some = history[start : start + 120]
            if not some:
                break
            publish(topics, some)
            if number == 1:
                worker.kill()
                worker.start()
            if number == 2:
                until(all_judged(config), "the detector to catch up")
                detector.kill()
                detector.start()
            if number == 3:
                worker.kill()
                worker.start(wait=False)
        until(all_judged(config), "everything to be judged")
        wanted = offline(config)
        assert {one.cause for one in wanted.values()} == CAUSES
        until(lambda: plain(final(published_findings(topics))).keys() >= wanted.keys(), "the fleet's findings")
        worker.wait_for("ready: fleet")
        assert not any("is not waited for" in line["message"] for line in worker.lines())
        assert worker.stop() == 0
        assert detector.stop() == 0
    assert plain(final(published_findings(topics))) == wanted
    assert read_topic(topics, OBSERVATIONS)
