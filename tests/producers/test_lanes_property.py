"""Any interleaving of calls from several threads over several homes keeps each lane's order and every number."""

import threading
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import PublisherConfig

from .reading import TENANT, decode, events, first_arrivals, gaps, runs

Act = tuple[Literal["hit", "far", "pool", "bad", "sweep", "outage", "back", "flush"], int]

ACTS: st.SearchStrategy[Act] = st.tuples(
    st.sampled_from(["hit", "hit", "hit", "far", "pool", "pool", "bad", "sweep", "outage", "back", "flush"]),
    st.integers(0, 3),
)
SLOTS = 3


def play(publisher: LifecyclePublisher, memory: MemoryTransport, thread: int, acts: list[Act]) -> int:
    """One thread's calls, numbered in its request ids; returns how many events they are."""
    made = 0
    for act, n in acts:
        request = f"{thread}:{made}"
        if act == "hit":
            publisher.hit("k", TENANT, store="kv", tier="gpu", request_id=request)
        elif act == "far":
            publisher.hit("k", TENANT, store="kv", tier="nvme", owner=f"node-{n}", request_id=request)
        elif act == "pool":
            publisher.create(f"k{n}", TENANT, store="pool", tier="shared", request_id=request)
        elif act == "bad":
            publisher.create("k", TENANT, store="kv", tier="gpu", tokens=-1, request_id=request)
        elif act == "sweep":
            publisher.invalidate(store="pool", tier="shared", scope="store", request_id=request)
            made += SLOTS
            continue
        else:
            if act == "flush":
                publisher.flush(0.01)
            else:
                memory.down = act == "outage"
            continue
        made += 1
    return made


@settings(max_examples=60, deadline=None)
@given(
    scripts=st.lists(st.lists(ACTS, max_size=30), min_size=1, max_size=4),
    limit=st.sampled_from([1, 3, 17, 1000]),
    size=st.sampled_from([1, 2, 7, 256]),
    linger=st.sampled_from([0.0, 0.002]),
)
def test_every_event_arrives_in_order_or_is_a_counted_gap(
    scripts: list[list[Act]], limit: int, size: int, linger: float
) -> None:
    memory = MemoryTransport()
    config = PublisherConfig(max_events=limit, envelope_events=size, linger_s=linger, slots=SLOTS)
    publisher = LifecyclePublisher("gpu-1", memory, config)
    made = [0] * len(scripts)

    def work(thread: int) -> None:
        made[thread] = play(publisher, memory, thread, scripts[thread])

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(len(scripts))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    memory.down = False
    assert publisher.close(60)

    batches = decode(record for _, record in memory.records)
    lanes = runs(batches)
    missing = sum(gaps(lane) for lane in lanes.values())
    stats = publisher.stats()
    arrived = [event for event in first_arrivals(batches) if event.request_id]
    # A bad call is refused, or dropped at the bound before anybody looked at it.
    assert len(arrived) + stats.lost + sum(stats.refused.values()) == sum(made)
    assert missing == stats.dropped.get("full", 0) + sum(stats.refused.values())
    assert stats.accepted == stats.sent + stats.lost
    assert stats.sent == len(events(batches))
    # In a lane, each thread's events keep the order in which it made them.
    for home in {event.home for event in arrived}:
        for thread in range(len(scripts)):
            mine = [
                int(event.request_id.split(":")[1])
                for event in arrived
                if event.home == home and event.request_id.startswith(f"{thread}:")
            ]
            assert mine == sorted(mine) and len(mine) == len(set(mine))
