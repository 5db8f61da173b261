"""Any sequence of operations, against a dict: the store serves what it should, and its events tell the same story."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.schemas.events import Event

from .rig import Rig, identity, same, tensors

KEYS = st.sampled_from("abcd")
TENANTS = st.sampled_from(["northwind", "contoso"])
CAPACITY = 3 * 20_480


class StoreMachine(RuleBasedStateMachine):
    """The store beside a model of it: key -> (content, tenant, wall second at which its TTL ends), in order of use."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.rig = Rig(Path(self.folder.name) / "nvme")
        self.store: EntryStore = self.rig.open(capacity_bytes=CAPACITY)
        self.model: dict[str, tuple[str, str, float]] = {}
        self.served: list[str] = []
        self.written = 0

    def now(self) -> float:
        return self.rig.clock.wall / 1e9

    def alive(self) -> None:
        self.model = {key: row for key, row in self.model.items() if row[2] > self.now()}

    @rule(key=KEYS, tenant=TENANTS, ttl_s=st.sampled_from([10.0, 60.0, 1e6]))
    def put(self, key: str, tenant: str, ttl_s: float) -> None:
        self.written += 1
        seed = f"{key}{self.written}"
        assert self.store.put(key, tensors(seed), identity(tenant), tokens=self.written, ttl_s=ttl_s)
        # Room is made before anything is replaced, oldest first, whether its TTL has passed or not.
        while len(self.model) >= 3:
            del self.model[next(iter(self.model))]
        self.model.pop(key, None)
        self.model[key] = (seed, tenant, self.now() + ttl_s)

    @rule(key=KEYS, tenant=TENANTS)
    def get(self, key: str, tenant: str) -> None:
        entry = self.store.get(key, identity(tenant))
        row = self.model.get(key)
        if row is None or row[2] <= self.now():
            assert entry is None
            self.model.pop(key, None)
            return
        assert same(entry, row[0])
        self.served.append(f"{tenant} {key} {row[0]}")
        self.model[key] = self.model.pop(key)

    @rule(seconds=st.sampled_from([1.0, 9.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        self.store.sweep()
        self.alive()

    @rule(key=KEYS)
    def invalidate(self, key: str) -> None:
        row = self.model.pop(key, None)
        assert self.store.invalidate(key) == (row is not None and row[2] > self.now())

    @rule(tenant=TENANTS)
    def invalidate_tenant(self, tenant: str) -> None:
        count = self.store.invalidate_where({"tenant_id": tenant})
        assert count == sum(row[1] == tenant for row in self.model.values())
        self.model = {key: row for key, row in self.model.items() if row[1] != tenant}

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.rig.open(capacity_bytes=CAPACITY)
        self.alive()
        # The order of use is kept by the minute only: after a restart the model takes the store's.
        self.model = {slot.key: self.model[slot.key] for slot in self.store._index}

    @invariant()
    def bytes_are_within_capacity(self) -> None:
        stats = self.store.stats()
        assert stats.used_bytes == 20_480 * stats.entries <= CAPACITY
        assert stats.entries == len(self.model)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.close()
        self.folder.cleanup()
        assert live_by_events(self.rig.drain()) == {key: row[1] for key, row in self.model.items()}
        assert sum(event.type == "hit" for event in self.rig.events) == len(self.served)


def live_by_events(events: list[Event]) -> dict[str, str]:
    """Which keys are live, and whose they are, by the events alone."""
    live: dict[str, str] = {}
    for event in events:
        body = event.body
        if event.type == "create" and event.identity is not None:
            live[event.key] = event.identity.tenant_id
        elif event.type == "expire":
            del live[event.key]
        elif event.type == "invalidate":
            where = getattr(body, "where", {})
            ended = [event.key] if event.key else [k for k, t in live.items() if t == where["tenant_id"]]
            for key in ended:
                del live[key]
        elif event.type == "hit":
            assert event.key in live
    return live


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
