"""Epochs as the archive knows them: what holds, whom a bump reaches, what it would cost, and who has moved on."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from ..producers.epochs import Bump, Epochs, Scope
from ..schemas.epochs import CORPUS_ID, earlier
from ..schemas.errors import InvalidField
from ..schemas.facts import CorpusFact, Fact
from ..store import queries
from ..store.client import Client
from ..store.results import EpochCost, EpochNode, EpochTraffic, EpochUse

State = Literal["adopted", "earlier", "unknown"]
HISTORY_S = 7 * 86_400
HOT_S = 3_600


class Group(Struct, frozen=True, kw_only=True):
    """What one node served of one template and tenant since a bump. Times are 0 where there was none."""

    node: str
    template_id: str
    tenant_id: str
    state: State
    earlier_hits: int = 0
    earlier_tokens: int = 0
    earlier_epochs: tuple[str, ...] = ()
    last_earlier_us: int = 0
    current_uses: int = 0
    last_current_us: int = 0
    unknown_uses: int = 0
    last_unknown_us: int = 0


class NodeAdoption(Struct, frozen=True, kw_only=True):
    """A node since a bump. `heard_us`: its last event of any kind."""

    node: str
    state: State
    heard_us: int
    groups: tuple[Group, ...] = ()

    @property
    def uses(self) -> int:
        """Hits and creates of the scope since the bump."""
        return sum(one.earlier_hits + one.current_uses + one.unknown_uses for one in self.groups)


class Adoption(Struct, frozen=True, kw_only=True):
    """Who has moved on to an epoch. A node has when the last use of each of its groups was on it, entry and prompt;
    one of which nothing was heard is unknown, and counts as not having."""

    epoch: str
    scope: Scope
    why: str
    since_us: int
    nodes: tuple[NodeAdoption, ...]

    @property
    def adopted(self) -> int:
        """Nodes that have moved on."""
        return sum(node.state == "adopted" for node in self.nodes)

    @property
    def left(self) -> tuple[Group, ...]:
        """What was last served on an earlier epoch, the latest first."""
        groups = [group for node in self.nodes for group in node.groups if group.state == "earlier"]
        return tuple(sorted(groups, key=lambda group: -group.last_earlier_us))

    @property
    def complete(self) -> bool:
        """Every node that used the scope has moved on, and there is one."""
        return bool(self.nodes) and self.adopted == len(self.nodes)


def scope_parameters(scope: Scope, facts: Iterable[Fact]) -> dict[str, Any]:
    """A scope as the queries take it. A corpus is every digest that was published for it."""
    named = [(name, value) for name, value in scope if name != CORPUS_ID]
    corpus = dict(scope).get(CORPUS_ID)
    digests = sorted(
        {
            fact.body.corpus_digest
            for fact in facts
            if isinstance(fact.body, CorpusFact) and fact.body.corpus_id == corpus
        }
    )
    return {
        "names": [name for name, _ in named],
        "values": [value for _, value in named],
        # A corpus of which no digest is known agrees with nothing.
        "corpora": [] if corpus is None else digests or ["-"],
    }


def known_epochs(facts: Iterable[Fact]) -> Epochs:
    """Every bump that is stored."""
    epochs = Epochs()
    for fact in facts:
        epochs.take(fact)
    return epochs


def find_bump(epochs: Epochs, *, epoch: str = "", why: str = "") -> Bump:
    """The latest bump, of those with this epoch and whose reason holds this text. Raises `InvalidField`."""
    bumps = [bump for current in epochs.current(2**62) for bump in epochs.history(current.scope)]
    found = [bump for bump in bumps if epoch in ("", bump.epoch) and why.casefold() in bump.why.casefold()]
    if not found:
        raise InvalidField(
            "no such bump is stored.", field="epoch",
            remedy="`kvtrail epoch show` lists them; one that was published just now is stored in a moment.",
        )  # fmt: skip
    return max(found, key=lambda bump: bump.effective_at_us)


def read_adoption(client: Client, bump: Bump, facts: Sequence[Fact], *, history_s: int = HISTORY_S) -> Adoption:
    """Who has moved on to a bumped epoch, from what is stored now."""
    times = {"bump_us": bump.effective_at_us, "since_us": bump.effective_at_us - history_s * 1_000_000}
    where = scope_parameters(bump.scope, facts)
    uses = queries.EPOCH_USES.run(client, **times, **where)
    nodes = queries.EPOCH_NODES.run(client, **times, **where)
    return adoption(bump, uses, nodes)


def adoption(bump: Bump, uses: Iterable[EpochUse], nodes: Iterable[EpochNode]) -> Adoption:
    """Who has moved on, from uses since the bump and the nodes that used the scope before it."""
    by_group: dict[tuple[str, str, str], list[EpochUse]] = {}
    for use in uses:
        by_group.setdefault((use.node, use.template_id, use.tenant_id), []).append(use)
    groups: dict[str, list[Group]] = {}
    for (node, _, _), some in sorted(by_group.items()):
        groups.setdefault(node, []).append(_group(bump, some))
    heard = {node.node: node.heard_us for node in nodes}
    for node, own in groups.items():
        last = max(max(one.last_earlier_us, one.last_current_us, one.last_unknown_us) for one in own)
        heard[node] = max(heard.get(node, 0), last)
    return Adoption(
        epoch=bump.epoch, scope=bump.scope, why=bump.why, since_us=bump.effective_at_us,
        nodes=tuple(
            NodeAdoption(
                node=node, state=_state(groups.get(node, [])), heard_us=heard_us, groups=tuple(groups.get(node, ()))
            )
            for node, heard_us in sorted(heard.items())
        ),
    )  # fmt: skip


def use_state(bump: Bump, use: EpochUse) -> State:
    """Whether a use was on the bumped epoch: prompt and entry, as far as either is known."""
    names = [name for name, _ in bump.scope]
    told = [epoch for epoch, known in ((use.asked, use.asked_known), (use.served, use.served_known)) if known]
    if any(earlier(epoch, bump.epoch, names) for epoch in told):
        return "earlier"
    # A prompt of the new epoch may still have been served an entry that nobody knows.
    return "adopted" if use.served_known else "unknown"


def _group(bump: Bump, uses: list[EpochUse]) -> Group:
    of: dict[State, list[EpochUse]] = {"adopted": [], "earlier": [], "unknown": []}
    for use in uses:
        of[use_state(bump, use)].append(use)
    last = {state: max((use.last_us for use in some), default=0) for state, some in of.items()}
    state: State = "earlier" if last["earlier"] >= last["adopted"] and of["earlier"] else "adopted"
    if last["unknown"] > last["adopted"] and state == "adopted":
        state = "unknown"
    return Group(
        node=uses[0].node, template_id=uses[0].template_id, tenant_id=uses[0].tenant_id, state=state,
        earlier_hits=sum(use.uses for use in of["earlier"] if not use.created),
        earlier_tokens=sum(use.reused_tokens for use in of["earlier"]),
        earlier_epochs=tuple(sorted({use.served if use.served_known else use.asked for use in of["earlier"]})),
        last_earlier_us=last["earlier"], current_uses=sum(use.uses for use in of["adopted"]),
        last_current_us=last["adopted"], unknown_uses=sum(use.uses for use in of["unknown"]),
        last_unknown_us=last["unknown"],
    )  # fmt: skip


def _state(groups: list[Group]) -> State:
    states = {group.state for group in groups}
    if "earlier" in states:
        return "earlier"
    return "adopted" if states == {"adopted"} else "unknown"


class Cost(Struct, frozen=True, kw_only=True):
    """What a bump of a scope would cost, by what is stored. `prefill_tokens`: to be computed again soon, since their
    entries were hit in the last hour; `live`.tokens at the most, should everything that is cached be asked for once.
    `share`: of the last hour's hits; `times`: prefill tokens against what was computed for entries in that hour; None
    where there was nothing to compare with."""

    scope: Scope
    at_us: int
    live: EpochCost
    traffic: EpochTraffic

    @property
    def prefill_tokens(self) -> int:
        return self.live.hot_tokens

    @property
    def share(self) -> float | None:
        return self.traffic.scope_hits / self.traffic.hits if self.traffic.hits else None

    @property
    def times(self) -> float | None:
        computed = self.traffic.computed_tokens
        return self.prefill_tokens / computed if computed else None


ASSUMPTIONS = (
    "An entry is live when its last create is younger than its TTL and no expiry or invalidation of it followed; "
    "entries in memory end with their node's restart, scoped invalidations and lost expiries are not looked at: "
    "the counts are upper bounds.",
    "Each entry that was hit in the last hour is asked for again and computed once in each place that holds it; "
    "requests that ask for the same prefix at the same time may each compute it.",
    "Hits in the last hour stand for the traffic to come; what nobody reported is not counted.",
)
"""What the estimate takes for granted."""


def read_cost(client: Client, scope: Scope, facts: Sequence[Fact], *, history_s: int = HISTORY_S) -> Cost:
    """What a bump of a scope would cost now."""
    now_us = time.time_ns() // 1000
    where = scope_parameters(scope, facts)
    hour_ago = now_us - HOT_S * 1_000_000
    (live,) = queries.EPOCH_COST.run(
        client, since_us=now_us - history_s * 1_000_000, hot_us=hour_ago, now_us=now_us, **where
    )
    (traffic,) = queries.EPOCH_TRAFFIC.run(client, since_us=hour_ago, **where)
    return Cost(scope=scope, at_us=now_us, live=live, traffic=traffic)
