"""What a fault is: events that make a fleet misbehave once, and the verdict they deserve."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..schemas.events import Event, Hit, Tier
from ..schemas.facts import Fact
from ..schemas.identity import Identity
from .fleet import Entry, Fleet, Node


@dataclass(frozen=True, slots=True)
class Expected:
    """One line of the answer key: this event deserves a finding with this cause."""

    family: str
    cause: str
    subject: str
    differing: tuple[str, ...] = ()


class Injected(NamedTuple):
    """What a fault adds to the history, and its answer."""

    events: list[Event | Fact]
    expected: Expected


Fault = Callable[[Fleet], Injected | None]
"""Returns None where the fleet has nothing it could befall just then."""


def planted(
    fleet: Fleet, key: str, identity: Identity, *, kind: str = "kv", tier: Tier = "nvme", tokens: int = 64,
    size: int = 4096, place: str = "", generation: int | None = None, max_age_s: float | None = None,
    committed: bool = True,
) -> Entry:  # fmt: skip
    """An entry made now for a fault alone: no node holds it, so nothing else happens to it."""
    return Entry(
        key=key, identity=identity, kind=kind, tier=tier, created_us=fleet.now_us, tokens=tokens, size=size,
        payload=fleet.payload(), place=place, generation=generation, max_age_s=max_age_s, committed=committed,
    )  # fmt: skip


def pick(fleet: Fleet, kind: str = "kv", tier: Tier = "gpu") -> tuple[Node, Entry] | None:
    """A live, committed entry of the current epoch and not asked for by an alias, so that one fault has one cause;
    the oldest third is left alone, since it may be evicted on the next step."""
    node = fleet.random.choice(fleet.nodes)
    held = list(fleet.shared.values()) if tier == "shared" else list(node.tier(tier).values())
    epoch = str(fleet.registry.epoch)
    live = [
        entry
        for entry in held[len(held) // 3 :]
        if entry.committed
        and entry.kind == kind
        and entry.identity.epoch == epoch
        and entry.identity.model_id not in fleet.registry.aliases
    ]
    return (node, fleet.random.choice(live)) if live else None


def hit_on(fleet: Fleet, node: Node, entry: Entry, identity: Identity, **changed: object) -> Event:
    fields: dict[str, object] = {
        "reused_tokens": entry.tokens,
        "reported_tokens": entry.tokens,
        "bytes_read": entry.size,
        "payload_digest": entry.payload,
        "age_s": (fleet.now_us - entry.created_us) / 1e6,
    }
    return fleet.emit(node, entry, Hit(**{**fields, **changed}), identity, fleet.rid())  # type: ignore[arg-type] # a hit's own fields, by name
