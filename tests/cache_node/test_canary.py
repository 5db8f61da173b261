"""The incident's wrong key, with canaries in the prompts: the first bad answer tells on it. On the real model."""

from pathlib import Path

import pytest
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.node_canary import NodeCanary
from kvtrail.cli.incident.scenario import play
from kvtrail.cli.incident.steps import STEPS, days_in
from kvtrail.judging.offline import judge_history
from kvtrail.producers.canary import Canary
from kvtrail.producers.canary_keys import CanaryKey
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Check, Event
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.findings import Finding

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
TENANTS = ("northwind", "contoso")
CANARY = Canary([CanaryKey("demo", b"k" * 32)], TENANTS)


class Asked:
    """A chapter of the incident on a node with canaries, and what came of it."""

    def __init__(self, model: LanguageModel, folder: Path, chapter: str) -> None:
        self.transport = MemoryTransport()
        with (
            LifecyclePublisher("cache-node", self.transport) as publisher,
            EntryStore(folder, publisher, capacity_bytes=1 << 30) as store,
        ):
            canary = NodeCanary(CANARY, publisher, store.name)
            steps = [step for step in STEPS if step.chapter == chapter]
            facts: list[Fact] = []
            self.played = list(play(model, store, publisher, facts.append, run="r", steps=steps, canary=canary))
            assert canary.failed == 0

    def checks(self) -> list[Event]:
        decoder = EnvelopeDecoder()
        events = [event for _, record in self.transport.records for event in decoder.decode(record).events]
        return [event for event in events if isinstance(event.body, Check)]

    def results(self) -> list[tuple[str, str, str]]:
        return [(c.result, c.expected, c.observed) for event in self.checks() if isinstance(c := event.body, Check)]

    def findings(self) -> list[Finding]:
        decoder = EnvelopeDecoder()
        return judge_history([decoder.decode(record) for _, record in self.transport.records])


def test_the_wrong_key_is_told_by_the_first_bad_request(language_model: LanguageModel, tmp_path: Path) -> None:
    asked = Asked(language_model, tmp_path / "nvme", "wrong key")
    bad = [played.step.name for played in asked.played].index("other tenant")
    results = asked.results()
    assert [result for result, _, _ in results[:bad]] == ["pass"] * bad
    assert results[bad] == ("fail", "contoso", "northwind")
    # The marker is not in what the client sees, and the answer is as wrong as ever.
    assert all(CANARY.marker(tenant) not in played.answer for played in asked.played for tenant in TENANTS)
    played, event = asked.played[bad], asked.checks()[bad]
    assert played.hit and set(days_in(played.answer)) == {90}
    assert (event.request_id, event.key, event.store, event.tier, event.key_origin) == (
        played.request_id, "support_v7:SmolLM2-135M-Instruct", "kv", "nvme", "asserted",
    )  # fmt: skip
    assert event.identity is not None and event.identity.tenant_id == "contoso"
    finding = next(one for one in asked.findings() if one.cause == "CANARY_MISMATCH")
    assert finding.severity is Severity.CRITICAL and finding.key == event.key and finding.subject == event.id
    assert finding.requester is not None and finding.creator is not None
    assert (finding.requester.tenant_id, finding.creator.tenant_id) == ("contoso", "northwind")
    assert (finding.requester.request_id, finding.creator.request_id) == (
        played.request_id, asked.played[0].request_id,
    )  # fmt: skip


def test_the_right_key_passes(language_model: LanguageModel, tmp_path: Path) -> None:
    asked = Asked(language_model, tmp_path / "nvme", "right key")
    assert any(played.hit for played in asked.played)
    assert {result for result, _, _ in asked.results()} == {"pass"}
    assert asked.findings() == []
