"""Publishing under load, and whether all of it arrived."""

import threading
from collections.abc import Mapping

from kvtrail.producers.agent_client import AgentPublisher
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import KafkaConfig

from .reading import TENANT, decode, first_arrivals, read_topic


class Load:
    """Two threads that publish until told to stop, and the number of their calls."""

    def __init__(self, publisher: LifecyclePublisher | AgentPublisher) -> None:
        self.made = 0
        self._over = threading.Event()
        self._publisher = publisher
        self._counts = [0, 0]
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(2)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.made = sum(self._counts)

    def _work(self, thread: int) -> None:
        while not self._over.wait(0.001):
            n = self._counts[thread]
            request = f"{thread}:{n}"
            if n % 3:
                self._publisher.hit(f"k{n % 50}", TENANT, store="kv", tier="nvme", request_id=request)
            else:
                self._publisher.create(f"k{n % 50}", TENANT, store="pool", tier="shared", request_id=request)
            self._counts[thread] += 1


def complete(kafka: KafkaConfig, made: Mapping[str, int]) -> None:
    """Every event of these nodes is there, each lane in order and without a gap."""
    arrived = first_arrivals(decode(value for _, _, value in read_topic(kafka)))
    for node, count in made.items():
        mine = [event for event in arrived if event.node == node]
        assert len(mine) == count
        for home in {event.home for event in mine}:
            lane = [event.seq for event in mine if event.home == home]
            assert lane == list(range(1, len(lane) + 1))


def nothing_lost(kafka: KafkaConfig, *loaded: tuple[LifecyclePublisher | AgentPublisher, Load]) -> None:
    """Every call that was made, and each publisher's start, was sent and is there, in order."""
    for publisher, load in loaded:
        stats = publisher.stats()
        assert stats.lost == 0 and stats.sent == stats.accepted == load.made + 1
    complete(kafka, {publisher.node: load.made + 1 for publisher, load in loaded})
