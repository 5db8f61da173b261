"""The Kafka client's log: quiet where it is ours, untouched where it is the host's."""

import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from kvtrail.producers import client_logs
from kvtrail.producers.client_logs import RateLimit, quieten, unquieten

CLIENT = logging.getLogger("aiokafka.conn")


@pytest.fixture
def ours() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Runs something in a thread that has been quietened."""

    def run(work: Callable[[], None]) -> None:
        def quietly() -> None:
            quieten()
            try:
                work()
            finally:
                unquieten()

        thread = threading.Thread(target=quietly)
        thread.start()
        thread.join()

    yield run
    for logger in map(logging.getLogger, list(logging.root.manager.loggerDict)):
        logger.removeFilter(client_logs._limit)
    client_logs._limit._seen.clear()


def flood() -> None:
    for n in range(500):
        CLIENT.error("cannot connect to %s", n)
        CLIENT.error("cannot connect to %s: second kind", n)


def test_our_threads_say_each_thing_once(
    ours: Callable[[Callable[[], None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    ours(flood)
    assert len(caplog.records) == 2


def test_the_hosts_own_client_keeps_its_log(
    ours: Callable[[Callable[[], None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    handlers, level = list(logging.root.handlers), CLIENT.level
    ours(lambda: None)
    flood()
    assert len(caplog.records) == 1000
    assert (logging.root.handlers, CLIENT.level, CLIENT.propagate, CLIENT.disabled) == (handlers, level, True, False)


def test_what_was_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("kvtrail.producers.client_logs.time.monotonic", lambda: now[0])
    limit = RateLimit(every_s=10)
    limit.threads.add(threading.get_ident())

    def say() -> str | None:
        record = logging.LogRecord("aiokafka", logging.ERROR, __file__, 1, "gone %s", ("x",), None)
        return record.getMessage() if limit.filter(record) else None

    assert say() == "gone x"
    assert say() is None and say() is None
    now[0] = 111.0
    assert (say() or "").startswith("gone x (and 2 more")
    now[0] = 122.0
    assert say() == "gone x"
