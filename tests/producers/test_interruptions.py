"""Calls from where nobody expects them: signal handlers, finalisers, threads that outlive the interpreter, forks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.recording import RecordingTransport
from kvtrail.schemas.config import PublisherConfig
from kvtrail.schemas.events import Create, Hit

from .agents import Running
from .reading import TENANT, decode, events, gaps, runs
from .test_processes import run

PUBLISHERS = {
    "process": """
        from pathlib import Path
        from kvtrail.producers import LifecyclePublisher
        from kvtrail.producers.recording import RecordingTransport
        from kvtrail.schemas.config import PublisherConfig
        folder = Path(sys.argv[1])
        config = PublisherConfig(linger_s=0.005, max_events=2000, spool_directory=folder / "spool")
        publisher = LifecyclePublisher("gpu-1", RecordingTransport(folder / "history.jsonl"), config)
""",
    "agent": """
        from kvtrail.producers.agent_client import AgentPublisher
        publisher = AgentPublisher("gpu-1", sys.argv[1] + "/agent.sock", linger_s=0.005, max_events=2000)
""",
}
IMPORTS = "\n        import gc, os, signal, sys, threading, time\n"

Ran = tuple[str, list[bytes], list[Path]]


@pytest.fixture(params=["process", "agent"])
def ran(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Ran]]:
    """Runs a script behind a publisher: its output, the records that arrived, and the folders that were left."""
    with Running(tmp_path / "agent.sock", memory := MemoryTransport()):

        def work(script: str) -> Ran:
            said = run(IMPORTS + PUBLISHERS[request.param] + script, str(tmp_path))
            left = [*tmp_path.glob("agent.sock.tallies/*/*"), *tmp_path.glob("spool/*/*")]
            path = tmp_path / "history.jsonl"
            own = path.read_bytes().splitlines() if path.exists() else []
            return said, own + [record for _, record in memory.records], left

        yield work


def missing(records: list[bytes]) -> int:
    return sum(gaps(list(dict.fromkeys(lane))) for lane in runs(decode(records)).values())


def test_a_signal_handler_may_publish_in_the_middle_of_any_call(ran: Callable[[str], Ran]) -> None:
    said, records, left = ran(
        """
        handled = 0
        def on_signal(number, frame):
            global handled
            handled += 1
            publisher.hit("k", None, store="kv", tier="gpu")
            publisher.hit("k", None, store="pool", tier="shared")
            publisher.hit(5, None, store="pool", tier="shared")

        signal.signal(signal.SIGALRM, on_signal)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        made = 0
        while handled < 1000:
            publisher.hit("k", None, store="kv", tier="gpu", owner=f"gpu-{made % 5}")
            publisher.hit(5, None, store="pool", tier="shared")
            made += 1
            if made % 20 == 0:
                publisher.flush(5)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert publisher.close(30), publisher.stats()
        stats = publisher.stats()
        assert stats.sent == stats.accepted and stats.dropped == {} and list(stats.refused) == ["hit.key"], stats
        print(made, handled)
        """
    )
    made, handled = map(int, said.split())
    found = [event for event in events(decode(records)) if isinstance(event.body, Hit)]
    assert len(found) == made + 2 * handled and missing(records) == made + handled
    assert left == []


def test_finalisers_may_publish_until_the_interpreter_is_gone(ran: Callable[[str], Ran]) -> None:
    _, records, left = ran(
        """
        class Entry:
            def __init__(self):
                self.me = self
            def __del__(self):
                publisher.expire("k", "capacity", store="kv", tier="gpu")
                publisher.hit("k", None, store="pool", tier="shared")
                publisher.hit(5, None, store="pool", tier="shared")

        for _ in range(200):
            Entry()
        gc.collect()
        sys.kept = Entry()  # ends with the interpreter, after everything has been sent
        """
    )
    assert sum(event.type == "expire" for event in events(decode(records))) == 200
    assert missing(records) >= 200 and len(left) <= 1


def test_threads_that_publish_while_the_interpreter_ends_hold_nothing_up(ran: Callable[[str], Ran]) -> None:
    _, records, _ = ran(
        """
        def work():
            while True:
                publisher.hit("k", None, store="kv", tier="gpu")
                publisher.hit("k", None, store="pool", tier="shared")

        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        while publisher.stats().sent < 500:
            time.sleep(0.001)
        """
    )
    assert len(events(decode(records))) >= 500


def test_a_fork_in_the_middle_of_other_threads_calls_leaves_the_child_able_to_publish(
    ran: Callable[[str], Ran],
) -> None:
    said, records, left = ran(
        """
        over = False
        def work():
            while not over:
                publisher.hit("k", None, store="kv", tier="gpu")
                publisher.hit(5, None, store="pool", tier="shared")
                publisher.create("k", None, store="pool", tier="shared")
                time.sleep(0.0002)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                for _ in range(20):
                    publisher.expire("k", "capacity", store="kv", tier="gpu")
                os._exit(0 if publisher.close(20) and publisher.stats().sent == 21 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        over = True
        for thread in threads:
            thread.join()
        assert publisher.close(30), publisher.stats()
        print(publisher.stats().refused["hit.key"] + publisher.stats().lost)
        """
    )
    found = events(decode(records))
    assert sum(event.type == "expire" for event in found) == 200 and missing(records) == int(said)
    assert sum(isinstance(event.body, Create) for event in found) > 10 and left == []


def test_a_clock_that_goes_back_changes_no_order_and_refuses_nothing(tmp_path: Path) -> None:
    path, now = tmp_path / "history.jsonl", iter(range(2 * 10**18, 0, -(10**12)))
    with LifecyclePublisher(
        "gpu-1", RecordingTransport(path), PublisherConfig(linger_s=0.0), clock_ns=now.__next__
    ) as publisher:
        for number in range(100):
            publisher.hit(f"k{number}", TENANT, store="kv", tier="gpu")
    found = [event for event in events(decode(path.read_bytes().splitlines())) if isinstance(event.body, Hit)]
    assert [event.key for event in found] == [f"k{number}" for number in range(100)]
    times = [event.time_us for event in found]
    assert times == sorted(times, reverse=True) and publisher.stats().refused == {}
