"""Engines that publish through an agent: the same events as without one, through restarts of either side."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import PublisherConfig
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.events import Check, Event, LookupCount
from kvtrail.schemas.homes import shared_homes
from kvtrail.schemas.identity import Identity

from .agents import Running, spooled
from .reading import TENANT, decode, events, first_arrivals, gaps, runs, until

WIDE = Identity(tenant_id="northwind", model_id="smol", template_digest="a" * 64, epoch="e1")


@pytest.fixture
def memory() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def running(tmp_path: Path, memory: MemoryTransport) -> Iterator[Running]:
    with Running(tmp_path / "agent.sock", memory) as agent:
        yield agent


def engine(path: Path, node: str = "gpu-1", **options: Any) -> AgentPublisher:
    return AgentPublisher(node, path, **({"linger_s": 0.0} | options))


def arrived(memory: MemoryTransport) -> list[Event]:
    return first_arrivals(decode(record for _, record in list(memory.records)))


def say_everything(publisher: Any, count: Any) -> None:
    """Every call, with most of its arguments."""
    at: dict[str, Any] = {"store": "kv", "tier": "nvme", "rank": 1, "copy": "c", "part": "p", "place": "f:1"}
    publisher.node_start(["nvme"], version="1.2")
    publisher.create("k1", WIDE, **at, generation=7, tokens=100, ttl_s=3.5, parts=["a", "b"], state="pending",
                     payload_digest="b" * 64, span="0-9", entry_version="v", request_id="r1", trace_id="t")  # fmt: skip
    publisher.commit("k1", **at, bytes=12, identity=WIDE)
    publisher.hit("k1", TENANT, **at, owner="gpu-9", reused_tokens=5, match_mode="semantic", similarity=0.5,
                  key_origin="client", kind="state", age_s=1.25)  # fmt: skip
    publisher.hit("schlüssel 😀", None, store="pool", tier="shared", request_id="r2")
    publisher.lookups([count], store="kv")
    publisher.check("k1", check="canary", result="fail", store="kv", tier="gpu", expected="a", observed="b")
    publisher.invalidate(store="pool", tier="shared", scope="store", where={"tenant_id": "x"}, op_id="op", cause="why")
    publisher.invalidate("k2", store="kv", tier="gpu", outcome="refused")
    publisher.expire("k1", "capacity", **at, identity=WIDE)
    publisher.request_end("r1", parts_required=["a"], store="kv", key="k1")


def test_it_says_what_the_publisher_in_the_process_says(running: Running, memory: MemoryTransport) -> None:
    own, clock = MemoryTransport(), iter(range(10**15, 10**16, 1000)).__next__
    with LifecyclePublisher("gpu-1", own, PublisherConfig(), "i1", clock) as publisher:
        say_everything(publisher, LookupCount(tenant_id="northwind", hit=3, miss=1))
    clock = iter(range(10**15, 10**16, 1000)).__next__
    with AgentPublisher("gpu-1", running.path, incarnation="i1", clock_ns=clock) as client:
        say_everything(client, {"tenant_id": "northwind", "hit": 3, "miss": 1})
    assert client.stats().refused == publisher.stats().refused == {}

    def told(transport: MemoryTransport) -> list[Event]:
        return sorted(arrived(transport), key=lambda event: event.id)

    assert len(told(memory)) == 10 + 8 and told(memory) == told(own)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tier": "disk"}, "create.tier"),
        ({"tokens": -1}, "create.tokens"),
        ({"tokens": "many"}, "create.tokens"),
        ({"payload_digest": "v7"}, "create.payload_digest"),
        ({"colour": "blue"}, "create.arguments"),
        ({"parts": object()}, "create.arguments"),
        ({"tokens": float("nan")}, "create.arguments"),
        ({"store": b"bytes"}, "create.arguments"),
        ({"key": 5}, "create.key"),
        ({"key": "a prompt " * 1000}, "create.key"),
        ({"parts": ["a prompt " * 100]}, "create.parts[0]"),
        ({"identity": {"tenant_id": ""}}, "create.identity.tenant_id"),
        ({"identity": {"tenant_id": "t", "template_digest": "v7"}}, "create.identity.template_digest"),
        ({"identity": "northwind"}, "create.arguments"),
        ({"request_id": "r" * 1025}, "create.request_id"),
        ({"identity": {"tenant_id": "kvtrail:thief"}}, "create.identity.tenant_id"),
        ({"owner": "kvtrail:thief"}, "create.owner"),
        ({"store": b"pool", "tier": "shared"}, "create.store"),
    ],
)
def test_a_cache_call_no_event_can_hold_is_counted_and_is_a_gap(
    running: Running, memory: MemoryTransport, arguments: dict[str, Any], field: str
) -> None:
    good: dict[str, Any] = {"key": "k", "identity": TENANT, "store": "kv", "tier": "nvme"}
    with engine(running.path) as publisher:
        publisher.create(**good)
        publisher.create(**(good | arguments))
        publisher.create(**good)
        assert publisher.flush(30)
        assert publisher.stats().refused == {field: 1}
    found = arrived(memory)
    assert [event.seq for event in found if event.type != "check"] == [1, 2, 4]
    assert 3 not in {event.seq for event in found} and {event.home for event in found} == {"n:gpu-1"}


@pytest.mark.parametrize("name", ["create", "hit", "commit"])
def test_a_call_wakes_a_thread_that_sleeps(
    running: Running, memory: MemoryTransport, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrail.producers.agent_link.AWAKE_S", 0.0)
    with engine(running.path) as publisher:
        publisher.expire("k", "ttl", store="kv", tier="nvme")  # a thread's first call goes another way
        assert publisher.flush(30)
        until(lambda: publisher._buffer.alarm == 1, "the thread sleeps")
        getattr(publisher, name)("k", *([] if name == "commit" else [TENANT]), store="kv", tier="nvme")
        until(lambda: name in {event.type for event in arrived(memory)}, "it is sent", 5)


@pytest.mark.parametrize(
    "bad", [{"request_id": "r" * 1025}, {"tokens": float("nan")}, {"owner": "kvtrail:x"}, {"colour": "blue"}]
)
@pytest.mark.parametrize("place", [{"store": "kv", "tier": "gpu"}, {"store": "pool", "tier": "shared"}])
def test_a_refusal_at_the_end_of_a_lane_is_made_visible_too(
    running: Running, memory: MemoryTransport, place: dict[str, Any], bad: dict[str, Any]
) -> None:
    with engine(running.path) as publisher:
        publisher.create("k", TENANT, **place, **bad)
        assert publisher.close(30)
    if bad.get("owner") and place["tier"] == "shared":
        return  # a shared store has no owner: this call is a good one
    assert sum(publisher.stats().refused.values()) == 1
    lanes = runs(decode(record for _, record in memory.records))
    assert sum(map(gaps, lanes.values())) == 1
    assert not list(running.path.parent.glob("*.tallies/*/*")), "nothing is left to declare"


def test_other_calls_no_event_can_hold_keep_their_number(running: Running, memory: MemoryTransport) -> None:
    with engine(running.path) as publisher:
        publisher.create("k", TENANT, store="kv", tier="nvme")
        publisher.request_end("r" * 1025)
        publisher.lookups([{"tenant_id": "kvtrail:x"}])
        publisher.create("k", TENANT, store="kv", tier="nvme")
        assert publisher.flush(30)
        assert publisher.stats().refused == {"request_end.request_id": 1, "lookups.counts.tenant_id": 1}
    found = arrived(memory)
    assert [event.seq for event in found] == [1, 2, 3, 4, 5]
    for event in found[2:4]:
        assert isinstance(event.body, Check) and event.body.detail.startswith("refused: ")


def test_a_mapping_that_is_used_again_is_read_again(running: Running, memory: MemoryTransport) -> None:
    who = {"tenant_id": "northwind"}
    with engine(running.path) as publisher:
        publisher.create("k1", who, store="kv", tier="nvme")
        assert publisher.flush(30)
        who["tenant_id"] = "contoso"
        publisher.hit("k1", who, store="kv", tier="nvme")
        assert publisher.flush(30)
    tenants = [event.identity.tenant_id for event in arrived(memory) if event.identity is not None]
    assert tenants == ["northwind", "contoso"]


def test_nothing_is_kept_of_owners_whose_events_are_safe(running: Running) -> None:
    with engine(running.path) as publisher:
        for n in range(200):
            publisher.hit("k", TENANT, store="kv", tier="gpu", owner=f"node-{n}")
        assert publisher.flush(30)
        assert running.agent.counts.events >= 200
        until(lambda: not running.agent._homes, "their locks to go")
        carried = [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and "_carry" in repr(one)]
        assert len(carried) < 20, "of finished work, all but the last is let go"


def test_several_engines_and_a_store_they_share(running: Running, memory: MemoryTransport) -> None:
    publishers = [engine(running.path, f"gpu-{n}") for n in range(4)]

    def work(publisher: AgentPublisher) -> None:
        for n in range(200):
            publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu", request_id=str(n))
            publisher.create(f"k{n}", {"tenant_id": "contoso"}, store="pool", tier="shared", request_id=str(n))

    threads = [threading.Thread(target=work, args=(publisher,)) for publisher in publishers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for publisher in publishers:
        assert publisher.close()
    batches = decode(record for _, record in memory.records)
    assert {gaps(lane) for lane in runs(batches).values()} == {0}
    assert len(events(batches)) == 4 * 401
    assert {event.home for event in events(batches)} >= set(shared_homes("pool"))


def test_an_agent_that_comes_late_gets_everything(tmp_path: Path, memory: MemoryTransport) -> None:
    path = tmp_path / "agent.sock"
    with engine(path) as publisher:
        for n in range(500):
            publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu")
        until(lambda: publisher.stats().failures > 1, "the agent is missed")
        assert publisher.stats().last_error == "FileNotFoundError"
        with Running(path, memory):
            assert publisher.flush(30) and publisher.stats().last_error == ""
    assert [event.seq for event in arrived(memory)] == list(range(1, 502))


def test_an_agent_that_is_restarted_under_load_loses_nothing(tmp_path: Path) -> None:
    path, memory = tmp_path / "agent.sock", MemoryTransport()
    with engine(path, envelope_events=20) as publisher:
        made = 0
        for life in range(4):
            memory.down = life % 2 == 0
            with Running(path, spooled(memory, tmp_path / "spool", f"{life}")):
                sent = publisher.stats().sent
                while publisher.stats().sent < sent + 300:
                    publisher.hit(f"k{made}", TENANT, store="kv", tier="gpu", request_id=str(made))
                    publisher.create(f"k{made}", TENANT, store="pool", tier="shared", request_id=str(made))
                    made += 1
                    publisher.flush(0.001)
        memory.down = False
        with Running(path, spooled(memory, tmp_path / "spool", "9")):
            assert publisher.close(60)
            # What an agent has taken may still wait on disk, behind what the agents before it left there.
            until(lambda: not list((tmp_path / "spool").glob("*/*/*.seg")), "the spool is empty")
    batches = decode(record for _, record in memory.records)
    found = first_arrivals(batches)
    assert len(found) == 2 * made + 1 and publisher.stats().lost == 0
    for home in {event.home for event in found}:
        mine = [event for event in found if event.home == home]
        assert [event.seq for event in mine] == list(range(1, len(mine) + 1))


def test_without_an_agent_memory_is_bounded_and_the_loss_is_a_gap(tmp_path: Path, memory: MemoryTransport) -> None:
    path = tmp_path / "agent.sock"
    publisher = engine(path, max_events=100)
    for n in range(1000):
        publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu")
    stats = publisher.stats()
    assert stats.buffered <= 102 and stats.lost >= 898
    with Running(path, memory):
        assert publisher.close(30)
    stats = publisher.stats()
    (lane,) = runs(decode(record for _, record in memory.records)).values()
    assert gaps(lane) == stats.lost and set(stats.dropped) == {"full"}


def test_a_close_without_an_agent_ends_and_counts(tmp_path: Path) -> None:
    publisher = engine(tmp_path / "agent.sock")
    publisher.hit("k", TENANT, store="kv", tier="gpu")
    assert not publisher.close(0.1)
    assert publisher.stats().dropped == {"closed": 2}


def test_who_may_not_publish_is_told_so(tmp_path: Path, memory: MemoryTransport) -> None:
    asked: list[tuple[int, int]] = []
    with Running(
        tmp_path / "agent.sock", memory, allowed=lambda uid, gid: bool(asked.append((uid, gid)))  # type: ignore[func-returns-value]  # nobody
    ) as running, engine(running.path, close_s=0.1) as publisher:  # fmt: skip
        publisher.hit("k", TENANT, store="kv", tier="gpu")
        until(lambda: publisher.stats().last_error == "agent_refused", "it is turned away")
        assert asked[0] == (os.getuid(), os.getgid()) and memory.records == []
        assert running.path.stat().st_mode & 0o777 == 0o660


def test_a_second_agent_on_the_socket_is_refused(running: Running) -> None:
    import asyncio

    from kvtrail.producers.agent import Agent

    with pytest.raises(ConfigError, match="another agent"):
        asyncio.run(Agent(running.path, MemoryTransport()).run(asyncio.Event()))


@pytest.mark.parametrize(
    "sent",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x03abc", b"\x00\x00\x00\x07{\"v\":9}", b"\x00\x00"],
)  # fmt: skip
def test_what_no_engine_sends_ends_that_connection_only(running: Running, memory: MemoryTransport, sent: bytes) -> None:
    import socket

    with engine(running.path) as publisher, socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(10)
        stranger.connect(str(running.path))
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass
        publisher.hit("k", TENANT, store="kv", tier="gpu")
        assert publisher.flush(30)


ENGINE = """
    import sys
    from kvtrail.producers.agent_client import AgentPublisher
    publisher = AgentPublisher("gpu-1", sys.argv[1], linger_s=0.005, envelope_events=32, max_events=500)
    print(publisher.incarnation, flush=True)
    n = 0
    while True:
        publisher.hit(f"k{n}", {"tenant_id": "northwind"}, store="kv", tier="gpu", request_id=str(n))
        publisher.create(f"k{n}", {"tenant_id": "northwind"}, store="pool", tier="shared", request_id=str(n))
        n += 1
        if n % 100 == 0:
            print(2 * n, flush=True)
"""


@pytest.mark.parametrize("agent_restarts", [False, True])
def test_what_a_killed_engine_had_accepted_is_there_or_declared(
    tmp_path: Path, memory: MemoryTransport, agent_restarts: bool
) -> None:
    agent = Running(tmp_path / "agent.sock", memory)
    victim = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENGINE), str(agent.path)], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    incarnation = victim.stdout.readline().strip()
    reported = 0
    while reported < 2000:
        reported = int(victim.stdout.readline())
    if agent_restarts:
        agent.stop()
        while reported < 5000:
            reported = int(victim.stdout.readline())
    victim.send_signal(signal.SIGKILL)
    rest = victim.stdout.read().split()
    victim.wait(10)
    victim.stdout.close()
    reported = int(rest[-1]) if rest else reported
    if agent_restarts:
        agent = Running(tmp_path / "agent.sock", memory)
    until(lambda: not list((tmp_path / "agent.sock.tallies").glob("*/*")), "its end is declared")
    agent.stop()
    batches = [batch for batch in decode(record for _, record in memory.records) if batch.incarnation == incarnation]
    received = sum(bool(event.request_id) for event in first_arrivals(batches))
    missing = sum(gaps(list(dict.fromkeys(lane))) for lane in runs(batches).values())
    assert reported <= received + missing <= reported + 300
    assert missing > 0 or not agent_restarts


def test_a_forked_child_is_an_incarnation_of_its_own(running: Running, memory: MemoryTransport) -> None:
    script = """
        import os, sys
        from kvtrail.producers.agent_client import AgentPublisher
        publisher = AgentPublisher("gpu-1", sys.argv[1])
        for n in range(100):
            publisher.hit(f"k{n}", {"tenant_id": "t"}, store="kv", tier="gpu")
        child = os.fork()
        for n in range(100):
            publisher.hit(f"k{n}", {"tenant_id": "t"}, store="kv", tier="gpu")
        assert publisher.close(), publisher.stats()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        else:
            os._exit(0)
    """
    subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(running.path)], check=True, timeout=60
    )
    lanes = runs(decode(record for _, record in memory.records))
    assert sorted(lane[-1][1] for lane in lanes.values()) == [101, 201]
    assert {gaps(lane) for lane in lanes.values()} == {0}


def test_the_engines_side_is_the_standard_library_alone() -> None:
    script = """
        import sys
        before = set(sys.modules)
        from kvtrail.producers.agent_client import AgentPublisher
        tops = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(tops - set(sys.stdlib_module_names)), "asyncio" in sys.modules)
    """
    ran = subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(script)],
        env={"PYTHONPATH": _importable()}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert ran.stdout.split() == ["['kvtrail']", "False"]


def _importable() -> str:
    """A folder in which this checkout is called kvtrail: without site-packages nothing else would find it."""
    import tempfile

    import kvtrail

    assert kvtrail.__file__ is not None
    folder = Path(tempfile.mkdtemp())
    (folder / "kvtrail").symlink_to(Path(kvtrail.__file__).parent)
    return str(folder)


def test_metrics_and_health_tell_what_waits(tmp_path: Path) -> None:
    import asyncio
    import json

    from kvtrail.producers.agent import Agent
    from kvtrail.producers.agent_metrics import AgentMetrics

    memory = MemoryTransport(down=True)

    async def ask(port: int, path: str) -> tuple[str, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return head.split()[1], body

    async def work() -> None:
        line = spooled(memory, tmp_path / "spool", "1")
        agent = Agent(tmp_path / "agent.sock", line)
        metrics = AgentMetrics(agent, line)
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(agent.run(stop, ready.set))
        await ready.wait()
        server = await metrics.serve("127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with engine(agent.path) as publisher:
            publisher.hit("k", TENANT, store="kv", tier="gpu")
            assert await asyncio.to_thread(publisher.flush, 30)
            status, body = await ask(port, "/health")
            assert status == "200" and json.loads(body)["status"] == "degraded"
            assert json.loads(body)["engines"] == 1 and json.loads(body)["spooled_records"] >= 1
            while json.loads((await ask(port, "/health"))[1])["lag_s"] < 0.05:  # it grows
                await asyncio.sleep(0.01)
            memory.down = False
            while json.loads((await ask(port, "/health"))[1])["status"] != "ok":  # another loop's state
                await asyncio.sleep(0.01)
        status, body = await ask(port, "/metrics")
        values = dict(line.split() for line in body.splitlines() if not line.startswith("#"))
        assert status == "200" and values["kvtrail_agent_events_total"] == "2"
        assert values["kvtrail_agent_spooled_records"] == "0" and values["kvtrail_agent_broker_up"] == "1"
        assert values["kvtrail_agent_lag_seconds"] == "0.0"
        assert (await ask(port, "/secret"))[0] == "404"
        server.close()
        stop.set()
        await running

    asyncio.run(work())


@pytest.mark.kafka
def test_the_command_serves_engines_and_hands_over_to_the_next(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    from .reading import read_topic

    topics = request.getfixturevalue("topics")
    environ = os.environ | {
        "KVTRAIL_AGENT__SOCKET": str(tmp_path / "agent.sock"),
        "KVTRAIL_PUBLISHER__SPOOL_DIRECTORY": str(tmp_path / "spool"),
    }

    def start(bootstrap: str) -> subprocess.Popen[str]:
        agent = subprocess.Popen(
            [sys.executable, "-m", "kvtrail.cli", "agent"],
            env=environ | {"KVTRAIL_KAFKA__BOOTSTRAP": bootstrap},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert agent.stdout is not None and "ready" in agent.stdout.readline()
        return agent

    with engine(tmp_path / "agent.sock") as publisher:
        agent = start("127.0.0.1:1")
        for n in range(50):
            publisher.hit(f"k{n}", TENANT, store="kv", tier="gpu", request_id=str(n))
        assert publisher.flush(30), "on disk"
        agent.send_signal(signal.SIGKILL)
        agent.communicate()
        agent = start(topics.bootstrap)
        publisher.hit("last", TENANT, store="kv", tier="gpu", request_id="50")
        assert publisher.flush(30)

        def there() -> bool:
            return len(first_arrivals(decode(value for _, _, value in read_topic(topics)))) == 52

        until(there, "the spool of the killed agent is sent")
    agent.send_signal(signal.SIGTERM)
    agent.communicate()
    assert agent.returncode == 0
    found = first_arrivals(decode(value for _, _, value in read_topic(topics)))
    assert [event.seq for event in found] == list(range(1, 53))
