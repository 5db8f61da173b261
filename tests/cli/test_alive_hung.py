"""`kvtrail alive` against a broker that takes connections and answers nothing, as one that was stopped does."""

import gc
import logging
import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from kvtrail.cli.alive import alive
from kvtrail.schemas.errors import BrokerError

pytestmark = pytest.mark.timeout(25)  # the clients' own patience is 40 s


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", f"127.0.0.1:{listening.getsockname()[1]}")
        yield


@pytest.mark.parametrize("worker", ["heartbeat", "detect", "sink"])
def test_one_deadline_bounds_the_whole_answer(worker: str, hung: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        result = CliRunner().invoke(alive, [worker, "--timeout", "0.3"])
        gc.collect()
    assert isinstance(result.exception, BrokerError), result.output
    assert "within 0.3 s" in str(result.exception) and "--timeout" in str(result.exception)
    assert "Unclosed" not in caplog.text  # a health check that runs every few seconds must leave nothing behind
