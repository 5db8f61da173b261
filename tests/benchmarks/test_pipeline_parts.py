"""What the pipeline's benchmark rests on: its log in parts, and the arithmetic of docs/capacity.md."""

import json
from pathlib import Path

import pytest
from kvtrail.benchmarks import traffic
from kvtrail.benchmarks.capacity import Costs, Fleet, costs, needs
from kvtrail.schemas.envelope import EnvelopeDecoder


def test_the_parts_of_a_log_hold_every_event_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    parts = traffic.write(path, events=2_000, faults=5, seed=3, envelope=64, shares=(0.5, 1.0))
    assert [part.first for part in parts] == [0, parts[0].end]
    decoder, seen, again = EnvelopeDecoder(), set[str](), 0
    for part in parts:
        before = len(seen)
        for frame in traffic.read(path, part.first, part.end):
            if frame.fact:
                continue
            ids = {event.id for event in decoder.decode(frame.value).events}
            assert frame.events == len(ids)
            again += len(ids & seen)
            seen |= ids
        assert part.events == len(seen) - before
    assert len(seen) >= 2_000
    assert abs(parts[0].events - parts[1].events) < 200


def test_what_a_fleet_needs_follows_from_what_an_event_costs() -> None:
    fleet = Fleet(
        nodes=1_000, events_per_node=10, peak=2, busy=0.5, entries_per_node=4_000, replication=3, kafka_days=7
    )  # fmt: skip
    need = needs(fleet, Costs(detector=50, sink=25, store=100, broker=10, kafka_bytes=200, store_bytes=300))
    assert (need.rate, need.peak_rate) == (10_000, 20_000)
    assert (need.detectors, need.sinks, need.store_cores, need.broker_cores) == (2, 1, 4, 2)
    assert need.partitions == 8, "four times the workers, and at most a million of the four million entries each"
    assert (need.inserts, need.insert_rows) == (8 / 5, 20_000 / (8 / 5))
    assert need.detector_mb == pytest.approx(1_000)
    assert need.kafka_mb_s == pytest.approx(12)
    assert need.kafka_tb == pytest.approx(10_000 * 200 * 3 * 7 * 86_400 / 1e12)
    assert need.store_gb_day == pytest.approx(10_000 * 300 * 86_400 / 1e9)


def test_costs_are_those_of_every_detector_together(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    used = {"detector-0": 10.0, "detector-1": 12.0, "sink": 20.0, "store": 30.0, "broker": 5.0, "floor": 9.0}
    tiers = {name: {"cpu_us": cost} for name, cost in used.items()}
    path.write_text(json.dumps({"tiers": tiers, "disk": {"kafka": 140.0, "events": 100.0, "evidence": 90.0}}))
    assert costs(path) == Costs(22.0, 20.0, 30.0, 5.0, 140.0, 190.0)
