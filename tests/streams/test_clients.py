"""A worker that cannot start leaves nothing open: no client of it is found by the garbage collector later."""

import asyncio
import gc
import warnings
from types import ModuleType
from typing import Any

import pytest
from kvtrail.schemas.config import Config, KafkaConfig
from kvtrail.schemas.errors import BrokerError
from kvtrail.streams import detector, fleet, notifier, resolver, sink
from kvtrail.streams.clients import reaching

NOBODY = Config(kafka=KafkaConfig(bootstrap="127.0.0.1:1"))
WORKERS = [
    (detector, "Detector"),
    (fleet, "FleetWorker"),
    (notifier, "Notifier"),
    (resolver, "Resolver"),
    (sink, "Sink"),
]


async def _nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize("topics", ["refused", "there"])
@pytest.mark.parametrize(("module", "name"), WORKERS)
def test_a_worker_whose_broker_refuses_leaves_no_client_open(
    module: ModuleType, name: str, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "calm_collector", lambda *young: None, raising=False)  # it is for a whole process
    if topics == "there":
        monkeypatch.setattr(module, "ensure_topics", _nothing)
    for name_of_store in ("connect_wait", "migrate"):
        monkeypatch.setattr(module, name_of_store, lambda *_: None, raising=False)

    async def work() -> None:
        with pytest.raises(BrokerError, match=r"kafka\.bootstrap"):
            await getattr(module, name)(NOBODY).run()
        gc.collect()

    gc.collect()  # what other tests have left is not this worker's
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(work())
        gc.collect()
    assert [str(one.message) for one in caught if "Unclosed" in str(one.message)] == []


def test_every_client_is_closed_even_where_one_cannot_be() -> None:
    closed: list[str] = []

    async def closes() -> None:
        closed.append("well")

    async def fails() -> None:
        closed.append("badly")
        raise OSError

    async def work(error: BaseException) -> Any:
        async with reaching(NOBODY.kafka, fails, closes):
            raise error

    with pytest.raises(ValueError, match="why"):
        asyncio.run(work(ValueError("why")))
    assert closed == ["badly", "well"]
