"""Faust leaves a partition whose buffer was full out for a second; ours asks again at once."""

import asyncio
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import Consumer
from faust.types import TP
from kvtrail.schemas.config import Config, KafkaConfig
from kvtrail.streams.clients import FETCH_WAIT_MS, member
from kvtrail.streams.detector import build_app
from kvtrail.streams.fetching import SOON_S, PromptConsumer

FULL, IDLE = TP("kvtrail.lifecycle", 0), TP("kvtrail.lifecycle", 1)


def asked(monkeypatch: pytest.MonkeyPatch, *, buffered: set[TP], active: set[TP]) -> list[float]:
    """For how long the broker is asked, where Faust would ask for a second."""
    waits: list[float] = []

    async def wait_next_records(self: Any, timeout: float) -> tuple[dict[TP, Any], set[TP]]:  # noqa: ASYNC109 - Faust's
        waits.append(timeout)
        return {}, active

    monkeypatch.setattr(Consumer, "_wait_next_records", wait_next_records)
    consumer: Any = object.__new__(PromptConsumer)
    vars(consumer).update(_buffered_partitions=buffered, _get_active_partitions=lambda: active, flow_active=True)
    records, asked_for = asyncio.run(consumer._wait_next_records(1.0))
    assert records == {} and asked_for == active
    return waits


def test_faust_buffer_full_a_partition_with_a_backlog_does_not_wait_for_idle_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert asked(monkeypatch, buffered={FULL}, active={IDLE}) == [SOON_S]
    assert asked(monkeypatch, buffered=set(), active={FULL, IDLE}) == [1.0], "nobody waits: the broker is left alone"


def test_faust_buffer_full_a_worker_all_of_whose_partitions_are_full_does_not_sleep_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert asked(monkeypatch, buffered={FULL, IDLE}, active=set()) == []


def test_the_detector_fetches_with_it() -> None:
    app: Any = build_app(Config())
    assert app.transport.Consumer is PromptConsumer
    assert isinstance(app.consumer, PromptConsumer)


def test_a_broker_keeps_a_fetch_for_a_moment_only() -> None:
    """Busy partitions wait until the fetch of the idle ones is back: Faust said 1.5 s, aiokafka says 0.5 s."""

    async def run() -> None:
        app: Any = build_app(Config())
        thread: Any = app.consumer._new_consumer_thread()
        ours, sinks = thread._create_worker_consumer(app.transport), member(KafkaConfig(), "kvtrail-sink", "sink-0")
        assert ours._fetch_max_wait_ms == sinks._fetch_max_wait_ms == FETCH_WAIT_MS <= 100

    asyncio.run(run())
