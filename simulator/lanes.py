"""Emitters: nodes that number their events in lanes, as the publisher does."""

from dataclasses import dataclass, field
from typing import Any

from ..schemas.events import Body, Event, NodeStart, Tier
from ..schemas.homes import node_home, shared_home
from ..schemas.identity import Identity


@dataclass(slots=True)
class Emitter:
    """One process of one node. `skew_us`: how wrong its clock is."""

    node: str
    generation: int = 1
    skew_us: int = 0
    sequences: dict[str, int] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return f"{self.node}-i{self.generation}"

    def emit(
        self, body: Body, now_us: int, *, store: str, tier: Tier, key: str = "", identity: Identity | None = None,
        owner: str = "", home: str = "", **header: Any,
    ) -> Event:  # fmt: skip
        """The next event of the lane it belongs to."""
        if not home:
            home = shared_home(store, key) if tier == "shared" else node_home(owner or self.node)
        seq = self.sequences[home] = self.sequences.get(home, 0) + 1
        return Event(
            node=self.node, incarnation=self.incarnation, home=home, seq=seq, time_us=now_us + self.skew_us, body=body,
            store=store, tier=tier, key=key, identity=identity, **header,
        )  # fmt: skip

    def start(self, now_us: int, store: str) -> Event:
        """The first event of this process: disks survived, memory did not."""
        return self.emit(NodeStart(surviving_tiers=("nvme",)), now_us, store=store, tier="gpu")

    def restart(self) -> None:
        """A new process: a new incarnation, every lane from 1 again."""
        self.generation += 1
        self.sequences.clear()
