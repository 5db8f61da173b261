"""Metrics, liveness and readiness: the closed list, the text format, and what two real workers say of themselves."""

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import get_args

import psutil
import pytest
from kvtrail.schemas.config import ClickHouseConfig, Config, KafkaConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.topics import FACTS, FINDINGS, LIFECYCLE
from kvtrail.streams.health import HealthServer
from kvtrail.streams.metrics import METRICS, Name, Registry, page
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import (
    Worker,
    all_judged,
    all_stored,
    answer_of,
    config_of,
    publish,
    publish_facts,
    samples_of,
    sum_of,
    until,
)

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = re.compile(r'^(\w+)(\{(?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (-?[0-9.e+-]+|\+Inf)$')


def test_the_list_is_closed_and_says_what_to_do() -> None:
    assert set(get_args(Name)) == METRICS.keys()
    for name, metric in METRICS.items():
        assert metric.meaning.endswith(".") and metric.remedy.endswith("."), name
        assert name.startswith("kvtrail_")
        assert (metric.kind == "counter") == name.endswith("_total"), name
        assert metric.kind != "histogram" or not metric.labels, name


def test_the_page_is_generated() -> None:
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text() == page(), "run python -m kvtrail.streams.metrics"


def test_a_name_outside_the_list_and_other_labels_are_refused() -> None:
    registry = Registry()
    with pytest.raises(KeyError):
        registry.add("kvtrail_of_my_own")  # type: ignore[arg-type] # mypy refuses it too, or this line fails
    with pytest.raises(ValueError, match="labels"):
        registry.set("kvtrail_worker_ready", 1, tenant="northwind")


def test_the_text_is_what_prometheus_reads() -> None:
    registry = Registry()
    registry.set("kvtrail_worker_info", 1, worker="sink", instance='a"b\\c\nd', version="1")
    registry.add("kvtrail_sink_retention_alarms_total")
    registry.add("kvtrail_sink_retention_alarms_total", 2)
    for seconds in (0.0005, 0.001, 0.2, 99):
        registry.observe("kvtrail_sink_insert_seconds", seconds)
    lines = registry.render().splitlines()
    assert all(SAMPLE.match(line) for line in lines if not line.startswith("#"))
    assert 'kvtrail_worker_info{worker="sink",instance="a\\"b\\\\c\\nd",version="1"} 1' in lines
    assert "kvtrail_sink_retention_alarms_total 3" in lines
    assert "# TYPE kvtrail_sink_insert_seconds histogram" in lines
    assert 'kvtrail_sink_insert_seconds_bucket{le="0.001"} 2' in lines
    assert 'kvtrail_sink_insert_seconds_bucket{le="0.25"} 3' in lines
    assert 'kvtrail_sink_insert_seconds_bucket{le="+Inf"} 4' in lines
    assert "kvtrail_sink_insert_seconds_count 4" in lines
    registry.clear("kvtrail_sink_retention_alarms_total")
    assert "kvtrail_sink_retention_alarms_total" not in registry.render()


def test_the_server_answers_what_it_knows_and_outlasts_bad_requests() -> None:
    async def run() -> None:
        reasons: list[str] = []

        async def nothing() -> None: ...

        async def alive() -> list[str]:
            return []

        async def ready() -> list[str]:
            return reasons

        server = HealthServer(Registry(), collect=nothing, alive=alive, ready=ready)
        await server.start("127.0.0.1", None)
        assert server.port == 0, "without a port nothing listens"
        await server.start("127.0.0.1", 0)
        try:
            assert (await _ask(server.port, b"\x00\xff\r\n\r\n"))[0] == 405
            assert (await _ask(server.port, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405
            assert (await _ask(server.port, b"GET /etc/passwd HTTP/1.1\r\n\r\n"))[0] == 404
            assert await _ask(server.port, b"A" * 100_000) == (0, b"")
            assert (await _ask(server.port, b"HEAD /metrics HTTP/1.1\r\n\r\n")) == (200, b"")
            assert (await _ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n"))[0] == 200
            assert (await _ask(server.port, b"GET /readyz?verbose HTTP/1.1\r\n\r\n"))[0] == 200
            reasons.append("partition 3 is still being recovered")
            status, body = await _ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")
            assert (status, json.loads(body)) == (503, {"ok": False, "reasons": reasons})
            other = HealthServer(Registry(), collect=nothing, alive=alive, ready=ready)
            with pytest.raises(ConfigError, match="metrics_port"):
                await other.start("127.0.0.1", server.port)
        finally:
            await server.stop()

    asyncio.run(run())


async def _ask(port: int, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def test_nothing_listens_by_default() -> None:
    config = Config()
    assert (config.detector.metrics_port, config.sink.metrics_port) == (None, None)
    assert (config.detector.metrics_host, config.sink.metrics_host) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.kafka
@pytest.mark.engine
def test_workers_tell_their_metrics_on_loopback_and_whether_they_are_ready(
    topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(topics, database, tmp_path)
    config = config.model_copy(
        update={
            "detector": config.detector.model_copy(update={"metrics_port": 0}),
            "sink": config.sink.model_copy(update={"metrics_port": 0}),
        }
    )
    with Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink:
        for worker in (detector, sink):
            listening = {found.laddr.ip for found in psutil.Process(worker.pid).net_connections() if _listens(found)}
            assert listening == {"127.0.0.1"}
        publish_facts(topics, [histories.template("answer kindly", 1)])
        publish(topics, [histories.envelope(histories.incident()), ("n:node-1", b"no envelope")])
        until(all_judged(config), "the detector")
        until(all_stored(config, LIFECYCLE, FINDINGS, FACTS), "the sink")
        for worker in (detector, sink):
            until(partial(_ready, worker), f"{worker.command} to be ready")
            assert answer_of(worker, "/livez") == (200, '{"ok": true, "reasons": []}\n')
        judged, stored = samples_of(detector), samples_of(sink)
        for samples, name in ((judged, "detector"), (stored, "sink")):
            assert sum_of(samples, "kvtrail_records_total", LIFECYCLE) == 2
            assert sum_of(samples, "kvtrail_lag_records", LIFECYCLE) == 0
            assert sum_of(samples, "kvtrail_refused_total", LIFECYCLE) == 1
            assert sum_of(samples, "kvtrail_event_age_seconds", LIFECYCLE) > 1000
            assert samples[f'kvtrail_worker_ready{{worker="{name}"}}'] == 1
            assert {SAMPLE.match(f"{each} 1").group(1) for each in samples} <= {  # type: ignore[union-attr] # all match
                f"{metric}{end}" for metric in METRICS for end in ("", "_bucket", "_sum", "_count")
            }
        found = {key: value for key, value in judged.items() if key.startswith("kvtrail_detector_findings_total")}
        assert sum(found.values()) == 2
        assert any('cause="CROSS_TENANT_REUSE"' in key for key in found)
        assert judged['kvtrail_detector_covered_hits{dimension="template_digest"}'] == 3
        assert judged["kvtrail_detector_compared_hits"] == 3
        assert judged["kvtrail_detector_batch_seconds_count"] >= 1
        until(lambda: sum_of(samples_of(detector), "kvtrail_detector_snapshot_bytes", "") > 0, "a snapshot")
        assert stored["kvtrail_sink_insert_seconds_count"] >= 3
        assert stored["kvtrail_sink_dead_letters_total"] == 1
        assert detector.stop() == 0
        assert sink.stop() == 0


def _listens(found: object) -> bool:
    return getattr(found, "status", "") == psutil.CONN_LISTEN


def _ready(worker: Worker) -> bool:
    return answer_of(worker, "/readyz")[0] == 200
