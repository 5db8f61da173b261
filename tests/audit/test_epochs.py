"""Epochs in the archive: what holds, who has moved on, what a bump would cost; on the real engine."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kvtrail.audit.epochs import Adoption, Cost, find_bump, known_epochs, read_adoption, read_cost, use_state
from kvtrail.producers.epochs import Bump
from kvtrail.producers.facts import epoch_bumped, make_fact
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.errors import InvalidField
from kvtrail.schemas.events import Body, Create, Event, Expire, Hit, Invalidate, NodeStart, Resolve, Tier
from kvtrail.schemas.facts import CorpusFact, Fact
from kvtrail.schemas.identity import Identity
from kvtrail.store.client import Client, connect
from kvtrail.store.results import EpochUse
from kvtrail.store.rows import record_rows
from kvtrail.tests.store.samples import record
from msgspec.structs import replace

BUMP_S = int(time.time()) - 1_000  # the store drops what is older than it keeps
CORPUS = ["ab" * 32, "cd" * 32, "ef" * 32]


def bump_of(epoch: str = "e2", **where: str) -> Bump:
    return Bump(tuple(sorted(where.items())), epoch, BUMP_S * 1_000_000, "INC-42", "f")


def use(**values: object) -> EpochUse:
    given = {
        "node": "n1", "template_id": "t", "tenant_id": "a", "created": 0, "asked": "", "asked_known": 0, "served": "",
        "served_known": 0, "uses": 1, "reused_tokens": 10, "first_us": 1, "last_us": 1, **values,
    }  # fmt: skip
    return EpochUse(**given)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"asked": "e2", "asked_known": 1, "served": "e2", "served_known": 1}, "adopted"),
        ({"asked": "e2", "asked_known": 1, "served": "e1", "served_known": 1}, "earlier"),
        ({"asked": "e1", "asked_known": 1, "served": "e2", "served_known": 1}, "earlier"),
        ({"asked": "e1", "asked_known": 1}, "earlier"),
        ({"asked": "", "asked_known": 1, "served": "", "served_known": 1}, "earlier"),
        # What is not known is not taken for the new one.
        ({"asked": "e2", "asked_known": 1}, "unknown"),
        ({"served": "e2", "served_known": 1}, "adopted"),
        ({}, "unknown"),
    ],
)
def test_a_use_is_on_the_new_epoch_only_when_its_entry_is(given: dict[str, object], state: str) -> None:
    assert use_state(bump_of(), use(**given)) == state


@dataclass
class Log:
    """Events of a few nodes, at seconds around the bump, and what the archive makes of them."""

    client: Client
    seqs: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def add(
        self, node: str, at_s: float, body: Body, *, key: str = "K", tenant: str = "contoso", epoch: str | None = None,
        template: str = "support_v7", tier: Tier = "nvme", corpus: str | None = None, known: bool = True,
    ) -> Event:  # fmt: skip
        seq = self.seqs[node] = self.seqs.get(node, 0) + 1
        told = Identity(tenant_id=tenant, template_id=template, epoch=epoch, corpus_digest=corpus)
        placed = not isinstance(body, NodeStart)
        event = Event(
            node=node, incarnation="i", home=f"n:{node}", seq=seq, time_us=int(at_s * 1e6), body=body,
            store="kv" if placed else "", tier=tier, key=key if placed else "", request_id=f"r{seq}",
            identity=told if known and placed else None,
        )  # fmt: skip
        self.events.append(event)
        return event

    def create(self, node: str, at_s: float, **options: object) -> None:
        tokens, ttl_s = options.pop("tokens", 100), options.pop("ttl_s", None)
        self.add(node, at_s, Create(tokens=tokens, computed_tokens=tokens, ttl_s=ttl_s), **options)  # type: ignore[arg-type]

    def hit(self, node: str, at_s: float, **options: object) -> Event:
        return self.add(node, at_s, Hit(reused_tokens=100), **options)  # type: ignore[arg-type]

    def store(self) -> None:
        by_node: dict[str, list[Event]] = {}
        for event in self.events:
            by_node.setdefault(event.node, []).append(event)
        records = [record(events, offset) for offset, events in enumerate(by_node.values())]
        self.client.insert(*record_rows(records), token="epochs")

    def adoption(self, bump: Bump | None = None, facts: tuple[Fact, ...] = ()) -> Adoption:
        return read_adoption(self.client, bump or bump_of(), facts)


@pytest.fixture
def log(database: ClickHouseConfig) -> Iterator[Log]:
    with connect(database) as client:
        yield Log(client)


def states(found: Adoption) -> dict[str, str]:
    return {node.node: node.state for node in found.nodes}


@pytest.mark.engine
def test_adoption_goes_to_everybody_and_no_further(log: Log) -> None:
    for node in ("n1", "n2", "n3"):
        log.create(node, BUMP_S - 100, epoch="e1")
        log.hit(node, BUMP_S - 90, epoch="e1")
    # n1 moves on after a hit on the old one; n2 serves the old entry to a new prompt; n3 is silent; n4 is new.
    log.hit("n1", BUMP_S + 1, epoch="e1")
    log.create("n1", BUMP_S + 5, key="K2", epoch="e2")
    log.hit("n1", BUMP_S + 6, key="K2", epoch="e2")
    log.hit("n2", BUMP_S + 7, epoch="e2")
    log.create("n4", BUMP_S + 8, key="K2", epoch="e2")
    log.store()
    found = log.adoption()
    assert states(found) == {"n1": "adopted", "n2": "earlier", "n3": "unknown", "n4": "adopted"}
    assert (found.adopted, found.complete) == (2, False)
    (left,) = found.left
    assert (left.node, left.tenant_id, left.template_id, left.earlier_hits, left.earlier_tokens) == (
        "n2", "contoso", "support_v7", 1, 100,
    )  # fmt: skip
    assert left.earlier_epochs == ("e1",) and left.last_earlier_us == (BUMP_S + 7) * 1_000_000
    one = found.nodes[0].groups[0]
    assert (one.earlier_hits, one.current_uses, found.nodes[0].uses) == (1, 2, 3)
    assert found.nodes[2].heard_us == (BUMP_S - 90) * 1_000_000


@pytest.mark.engine
def test_every_group_of_a_node_has_to_move(log: Log) -> None:
    for tenant in ("contoso", "northwind"):
        log.create("n1", BUMP_S - 100, key=tenant, tenant=tenant, epoch="e1")
        log.hit("n1", BUMP_S + 1, key=tenant, tenant=tenant, epoch="e1")
    log.create("n1", BUMP_S + 2, key="new", epoch="e2")
    log.store()
    found = log.adoption()
    assert states(found) == {"n1": "earlier"}
    assert [group.tenant_id for group in found.left] == ["northwind"]


@pytest.mark.engine
def test_a_scope_looks_at_its_own_only(log: Log) -> None:
    log.create("n1", BUMP_S - 100, epoch="7")
    log.create("n2", BUMP_S - 100, tenant="northwind", epoch="7")
    log.hit("n1", BUMP_S + 1, epoch="7")
    log.hit("n2", BUMP_S + 1, tenant="northwind", epoch="7")
    log.create("n1", BUMP_S + 2, key="K2", epoch="7+tenant_id:2")
    # An entry of the scope that another tenant is served still counts, whoever asks.
    log.hit("n3", BUMP_S + 3, tenant="northwind", epoch="7")
    log.create("n3", BUMP_S - 50, epoch="7")
    log.events.sort(key=lambda event: (event.node, event.time_us))
    log.events = [event for event in log.events if event.node != "n3"] + renumbered(log.events, "n3")
    log.store()
    found = log.adoption(bump_of("2", tenant_id="contoso"))
    assert states(found) == {"n1": "adopted", "n3": "earlier"}
    assert states(log.adoption(bump_of("8", tenant_id="adatum"))) == {}
    assert not log.adoption(bump_of("8", tenant_id="adatum")).complete


def renumbered(events: list[Event], node: str) -> list[Event]:

    own = [event for event in events if event.node == node]
    return [replace(event, seq=number) for number, event in enumerate(own, 1)]


@pytest.mark.engine
def test_a_corpus_is_every_digest_that_was_told_of_it(log: Log) -> None:
    facts = tuple(
        make_fact(CorpusFact(corpus_id=corpus, corpus_digest=digest), effective_at_us=1)
        for corpus, digest in zip(("kb", "kb", "wiki"), CORPUS, strict=True)
    )
    for node, digest in zip(("n1", "n2", "n3"), CORPUS, strict=True):
        log.create(node, BUMP_S - 100, corpus=digest, epoch="1")
        log.hit(node, BUMP_S + 1, corpus=digest, epoch="1")
    log.store()
    assert states(log.adoption(bump_of("2", corpus_id="kb"), facts)) == {"n1": "earlier", "n2": "earlier"}
    assert states(log.adoption(bump_of("2", corpus_id="other"), facts)) == {}


@pytest.mark.engine
def test_what_a_cache_does_not_know_comes_from_resolutions_or_stays_unknown(log: Log) -> None:
    log.create("n1", BUMP_S - 100, epoch="e1")
    late = log.hit("n1", BUMP_S + 1, known=False)
    log.add("n1", BUMP_S + 2, Resolve(event_id=late.id), epoch=None)
    log.hit("n2", BUMP_S + 1, key="nobody's", epoch="e2")
    log.store()
    found = log.adoption()
    assert states(found) == {"n1": "earlier", "n2": "unknown"}
    assert found.nodes[0].groups[0].tenant_id == "contoso" and found.nodes[1].uses == 1


def at(now_s: float, ago_s: float) -> float:
    return now_s - ago_s


@pytest.fixture
def costs(log: Log) -> Log:
    """Live and dead entries of two tenants, as of now."""
    now = time.time()
    log.create("n1", at(now, 7200), key="A", tokens=1000)  # hit lately
    log.hit("n1", at(now, 60), key="A")
    log.create("n1", at(now, 7200), key="B", tokens=200)  # live, not hit
    log.create("n2", at(now, 600), key="A", tokens=1000, tenant="contoso")  # the same prefix in another place
    log.hit("n2", at(now, 50), key="A")
    log.create("n1", at(now, 600), key="other", tokens=50, tenant="northwind")
    log.hit("n1", at(now, 40), key="other", tenant="northwind")
    log.create("n1", at(now, 600), key="expired", tokens=9000)
    log.add("n1", at(now, 500), Expire(reason="capacity"), key="expired")
    log.create("n1", at(now, 600), key="gone", tokens=9000)
    log.add("n1", at(now, 500), Invalidate(scope="entry"), key="gone")
    log.create("n1", at(now, 600), key="kept", tokens=5)
    log.add("n1", at(now, 500), Invalidate(scope="entry", outcome="refused"), key="kept")
    log.create("n1", at(now, 600), key="short", tokens=9000, ttl_s=300.0)
    log.create("n1", at(now, 600), key="long", tokens=30, ttl_s=3000.0)
    log.create("n3", at(now, 600), key="memory", tokens=9000, tier="gpu")
    log.add("n3", at(now, 500), NodeStart())
    log.create("n3", at(now, 400), key="memory2", tokens=7, tier="gpu")
    log.store()
    return log


@pytest.mark.engine
def test_a_bump_costs_what_is_live(costs: Log) -> None:
    found: Cost = read_cost(costs.client, (), ())
    assert (found.live.entries, found.live.prefixes, found.live.homes) == (7, 6, 3)
    assert found.live.tokens == 1000 + 200 + 1000 + 50 + 5 + 30 + 7
    assert (found.live.hot_entries, found.live.hot_prefixes, found.prefill_tokens) == (3, 2, 2050)
    assert (found.traffic.hits, found.traffic.scope_hits, found.share) == (3, 3, 1.0)
    assert found.traffic.computed_tokens == 1000 + 50 + 4 * 9000 + 5 + 30 + 7
    assert found.times is not None and found.times == pytest.approx(2050 / found.traffic.computed_tokens)


@pytest.mark.engine
def test_a_scope_costs_its_share(costs: Log) -> None:
    found = read_cost(costs.client, (("tenant_id", "northwind"),), ())
    assert (found.live.entries, found.live.tokens, found.prefill_tokens) == (1, 50, 50)
    assert (found.traffic.scope_hits, found.traffic.hits) == (1, 3)
    assert found.share == pytest.approx(1 / 3)
    nobody = read_cost(costs.client, (("tenant_id", "adatum"),), ())
    assert (nobody.live.entries, nobody.prefill_tokens, nobody.share) == (0, 0, 0.0)


def test_a_bump_is_found_by_its_epoch_or_its_reason() -> None:
    epochs = known_epochs(
        [
            epoch_bumped("1", why="INC-1", effective_at_us=10),
            epoch_bumped("2", why="inc-42 again", effective_at_us=20),
            epoch_bumped("2", {"tenant_id": "contoso"}, why="INC-42", effective_at_us=15),
            epoch_bumped("3", {"tenant_id": "contoso"}, why="later", effective_at_us=30),
        ]
    )  # fmt: skip
    assert find_bump(epochs).epoch == "3"
    assert find_bump(epochs, why="INC-42").effective_at_us == 20
    assert find_bump(epochs, epoch="1").why == "INC-1"
    with pytest.raises(InvalidField, match="no such bump"):
        find_bump(epochs, epoch="9")
    with pytest.raises(InvalidField):
        find_bump(known_epochs([]))
