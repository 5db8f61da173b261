"""Exit, fork and spawn: what becomes of a publisher when its process ends or multiplies."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.recording import RecordingTransport
from kvtrail.schemas.config import KafkaConfig
from kvtrail.schemas.events import Hit

from .reading import TENANT, decode, events, gaps, read_topic, runs


def run(script: str, *arguments: str, timeout_s: float = 60) -> str:
    """A script in an interpreter of its own; its stdout."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr and "Warning" not in ran.stderr, ran.stderr
    return ran.stdout


PUBLISHES_AND_ENDS = """
    import sys
    from kvtrail.producers import LifecyclePublisher
    from kvtrail.schemas.config import KafkaConfig
    from kvtrail.schemas.identity import Identity

    publisher = LifecyclePublisher.to_kafka("gpu-1", KafkaConfig(bootstrap=sys.argv[1]))
    for n in range(3000):
        publisher.hit(f"k{n}", Identity(tenant_id="northwind"), store="kv", tier="gpu")
"""


@pytest.mark.kafka
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_interpreter_that_ends_drains_its_publisher(topics: KafkaConfig, host: str) -> None:
    # A name has to be resolved while the interpreter exits, when no worker thread can be had any more.
    run(PUBLISHES_AND_ENDS, topics.bootstrap.replace("127.0.0.1", host))
    batches = decode(value for _, _, value in read_topic(topics))
    assert [event.seq for event in events(batches)] == list(range(1, 3002))


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "publisher.close()"])
def test_every_way_to_end_drains(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "history.jsonl"
    run(
        f"""
        import sys
        from kvtrail.producers import LifecyclePublisher
        from kvtrail.producers.recording import RecordingTransport
        from kvtrail.schemas.identity import Identity

        publisher = LifecyclePublisher("gpu-1", RecordingTransport(sys.argv[1]))
        for n in range(500):
            publisher.hit(f"k{{n}}", Identity(tenant_id="northwind"), store="kv", tier="gpu")
        {ending}
        """,
        str(path),
    )
    assert len(events(decode(path.read_bytes().splitlines()))) == 501


def test_an_exit_without_a_broker_still_ends() -> None:
    run(
        """
        from kvtrail.producers import LifecyclePublisher
        from kvtrail.schemas.config import KafkaConfig, PublisherConfig
        from kvtrail.schemas.identity import Identity

        import logging
        logging.disable()
        publisher = LifecyclePublisher.to_kafka(
            "gpu-1", KafkaConfig(bootstrap="127.0.0.1:1"), PublisherConfig(close_s=0.2)
        )
        publisher.hit("k", Identity(tenant_id="northwind"), store="kv", tier="gpu")
        """
    )


def test_a_forked_child_is_an_incarnation_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    run(
        """
        import os, sys
        from kvtrail.producers import LifecyclePublisher
        from kvtrail.producers.recording import RecordingTransport
        from kvtrail.schemas.config import PublisherConfig
        from kvtrail.schemas.identity import Identity

        tenant = Identity(tenant_id="northwind")
        publisher = LifecyclePublisher("gpu-1", RecordingTransport(sys.argv[1]), PublisherConfig(linger_s=5))
        for n in range(100):
            publisher.hit(f"before{n}", tenant, store="kv", tier="gpu")
        parent = publisher.incarnation
        child = os.fork()
        if child == 0:
            assert publisher.stats().accepted == 0
            for n in range(100):
                publisher.hit(f"child{n}", tenant, store="kv", tier="gpu")
            assert publisher.incarnation != parent
            assert publisher.close(), publisher.stats()
            os._exit(0)
        for n in range(100):
            publisher.hit(f"after{n}", tenant, store="kv", tier="gpu")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert publisher.close(), publisher.stats()
        assert publisher.incarnation == parent
        """,
        str(path),
    )
    batches = decode(path.read_bytes().splitlines())
    lanes = runs(batches)
    assert len(lanes) == 2
    assert {gaps(lane) for lane in lanes.values()} == {0}
    keys: dict[str, list[str]] = {}
    for event in events(batches):
        if isinstance(event.body, Hit):
            keys.setdefault(event.incarnation, []).append(event.key)
    parent, child = sorted(keys, key=lambda name: len(keys[name]), reverse=True)
    assert keys[parent] == [f"before{n}" for n in range(100)] + [f"after{n}" for n in range(100)]
    assert keys[child] == [f"child{n}" for n in range(100)]


@pytest.mark.kafka
@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_publish_to_a_broker(topics: KafkaConfig, tmp_path: Path, way: str) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, os, sys
            from kvtrail.producers import LifecyclePublisher
            from kvtrail.schemas.config import KafkaConfig
            from kvtrail.schemas.identity import Identity

            publisher = LifecyclePublisher.to_kafka("gpu-1", KafkaConfig(bootstrap=sys.argv[1]))

            def work(worker):
                for n in range(50):
                    publisher.hit(f"k{{n}}", Identity(tenant_id="northwind"), store="kv", tier="gpu")

            if __name__ == "__main__":
                work("parent")
                context = multiprocessing.get_context({way!r})
                workers = [context.Process(target=work, args=(n,)) for n in range(2)]
                for each in workers:
                    each.start()
                for each in workers:
                    each.join()
                    assert each.exitcode == 0
                work("parent again")
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, str(script), topics.bootstrap],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    batches = decode(value for _, _, value in read_topic(topics))
    lanes = runs(batches)
    assert sorted(lane[-1][1] for lane in lanes.values()) == [51, 51, 101]
    assert {gaps(lane) for lane in lanes.values()} == {0}


def test_importing_the_room_is_light() -> None:
    heavy = run(
        """
        import sys
        import kvtrail.producers
        assert "aiokafka" not in sys.modules and "pydantic" not in sys.modules
        from kvtrail.producers import LifecyclePublisher
        print([name for name in ("faust", "clickhouse_connect", "torch", "numpy", "aiokafka") if name in sys.modules])
        """
    )
    assert heavy.strip() == "[]"


def test_two_publishers_in_one_process_do_not_meet(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    publishers = [LifecyclePublisher("gpu-1", RecordingTransport(path)) for path in paths]
    for number, publisher in enumerate(publishers):
        publisher.hit(f"k{number}", TENANT, store="kv", tier="gpu")
    for number, (publisher, path) in enumerate(zip(publishers, paths, strict=True)):
        assert publisher.close()
        got = events(decode(path.read_bytes().splitlines()))
        assert [event.key for event in got] == ["", f"k{number}"]
