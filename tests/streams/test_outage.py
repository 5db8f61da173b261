"""While the broker is away, workers answer whoever asks how they are: they live, and say that they do not do their
work."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError
from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.streams.health import HealthServer
from kvtrail.streams.metrics import Registry
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import Worker, all_judged, answer_of, config_of, publish, until
from kvtrail.tests.streams.test_metrics import _ask

AWAY = "the broker does not answer"


@pytest.mark.kafka
@pytest.mark.engine
def test_workers_say_that_the_broker_is_away_and_that_it_came_back(
    broker: KafkaBroker, database: ClickHouseConfig, tmp_path: Path
) -> None:
    config = config_of(broker.config, database, tmp_path)
    given = {
        name: getattr(config, name).model_copy(update={"metrics_port": 0})
        for name in ("detector", "sink", "resolver", "fleet", "notify")
    }
    config = config.model_copy(update=given)
    with (
        Worker("detect", config, tmp_path) as detector, Worker("sink", config, tmp_path) as sink,
        Worker("resolve", config, tmp_path) as resolver, Worker("fleet", config, tmp_path) as fleet,
        Worker("notify", config, tmp_path) as notifier,
    ):  # fmt: skip
        workers = (detector, sink, resolver, fleet, notifier)
        publish(broker.config, [histories.envelope(histories.incident())])
        until(all_judged(config), "the detector")
        for worker in workers:
            until(partial(_says, worker, "/readyz", 200, ""), f"{worker.command} to be ready")
        broker.kill()
        for worker in workers:
            until(partial(_says, worker, "/readyz", 503, AWAY), f"{worker.command} to notice")
            assert answer_of(worker, "/metrics")[0] == 200
            assert answer_of(worker, "/livez")[0] == 200, "a restart would not help"
        broker.restart()
        for worker in workers:
            if not worker.ended:
                until(partial(_says, worker, "/readyz", 200, ""), f"{worker.command} to go on")


def _says(worker: Worker, path: str, status: int, reason: str) -> bool:
    found, body = answer_of(worker, path)
    return found == status and (not reason or reason in json.loads(body)["reasons"])


def test_a_question_that_fails_is_answered() -> None:
    """It used to close the connection without a word, and a scrape without samples looks like a worker that is gone."""

    async def fails() -> None:
        raise KafkaConnectionError

    async def cannot_tell() -> list[str]:
        raise KafkaConnectionError

    async def run() -> None:
        registry = Registry()
        registry.set("kvtrail_worker_ready", 1, worker="sink")
        server = HealthServer(registry, collect=fails, alive=cannot_tell, ready=cannot_tell)
        await server.start("127.0.0.1", 0)
        try:
            status, body = await _ask(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")
            assert status == 200 and b'kvtrail_worker_ready{worker="sink"} 1' in body
            status, body = await _ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")
            assert (status, json.loads(body)["reasons"]) == (503, ["it cannot be told (KafkaConnectionError)"])
        finally:
            await server.stop()

    asyncio.run(run())
