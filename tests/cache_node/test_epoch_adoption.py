"""The incident's node across an epoch bump: adoption goes to 100 %, and a tenant that has not moved on is named."""

from pathlib import Path

import pytest
from kvtrail.audit.epochs import Adoption, find_bump, known_epochs, read_adoption
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.keys import name_and_model
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.node import Answer, CacheNode
from kvtrail.cache_node.prefix import Prefix
from kvtrail.producers.epochs import Epochs
from kvtrail.producers.facts import epoch_bumped
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.facts import Fact
from kvtrail.store.client import Client, connect
from kvtrail.store.rows import Record, Source, record_rows

pytestmark = [pytest.mark.model, pytest.mark.engine, pytest.mark.timeout(600)]
RULES = "You are a support assistant. Returns are accepted within 14 days."
QUESTION = "How many days do I have to return an item?"


class Fleet:
    """One node, an assembler that follows `epochs`, and one that an operator forgot."""

    def __init__(self, model: LanguageModel, folder: Path, client: Client) -> None:
        self.transport, self.client = MemoryTransport(), client
        self.publisher = LifecyclePublisher("cache-node", self.transport)
        self.store = EntryStore(folder, self.publisher, capacity_bytes=1 << 30)
        self.node = CacheNode(model, self.store, self.publisher, name_and_model)
        self.epochs = Epochs()
        self.facts: list[Fact] = [epoch_bumped("e1", why="first")]
        self.epochs.take(self.facts[0])
        self.stored = self.asked = 0

    def ask(self, tenant: str, *, forgot: bool = False) -> Answer:
        self.asked += 1
        epoch = "e1" if forgot else self.epochs.of(tenant_id=tenant, template_id="support_v7")
        prefix = Prefix(tenant, f"support_{tenant}", RULES, epoch)
        return self.node.answer(prefix, QUESTION, f"r{self.asked}", limit=2)

    def bump(self) -> None:
        assert self.publisher.flush(30)
        self.facts.append(epoch_bumped("e2", why="INC-42"))
        self.epochs.take(self.facts[-1])

    def adoption(self) -> Adoption:
        assert self.publisher.flush(30)
        decoder = EnvelopeDecoder()
        records = []
        for offset, (_, raw) in enumerate(self.transport.records):
            if offset >= self.stored:
                batch = decoder.decode(raw)
                records.append(Record(Source("kvtrail.lifecycle", 0, offset, batch.events[-1].time_us), raw, batch))
        self.client.insert(*record_rows(records), token=f"{self.stored}")
        self.stored = len(self.transport.records)
        bump = find_bump(known_epochs(self.facts), why="INC-42")
        return read_adoption(self.client, bump, self.facts)


def test_adoption_goes_to_everybody(language_model: LanguageModel, database: ClickHouseConfig, tmp_path: Path) -> None:
    with connect(database) as client:
        fleet = Fleet(language_model, tmp_path / "nvme", client)
        for tenant in ("northwind", "contoso"):
            fleet.ask(tenant)
        fleet.bump()
        unheard = fleet.adoption()
        assert [(node.node, node.state) for node in unheard.nodes] == [("cache-node", "unknown")]
        # An assembler that was forgotten still finds what was cached before.
        assert fleet.ask("contoso", forgot=True).hit and not fleet.ask("northwind").hit
        halfway = fleet.adoption()
        assert (halfway.adopted, halfway.complete) == (0, False)
        assert [(one.tenant_id, one.earlier_hits, one.earlier_epochs) for one in halfway.left] == [
            ("contoso", 1, ("e1",))
        ]
        assert not fleet.ask("contoso").hit and fleet.ask("contoso").hit and fleet.ask("northwind").hit
        done = fleet.adoption()
        assert (done.adopted, done.complete, done.left) == (1, True, ())
        fleet.publisher.close()
        fleet.store.close()
