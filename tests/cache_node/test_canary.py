"""The incident's wrong key, with canaries in the prompts: the first bad answer tells on it. On the real model."""

from pathlib import Path

import pytest
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.keys import KeyFunction, name_and_model, prefix_key
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.node import Answer, CacheNode
from kvtrail.cache_node.node_canary import NodeCanary
from kvtrail.cache_node.prefix import Prefix
from kvtrail.cli.incident.steps import HOW_MANY_DAYS, SYSTEM_PROMPT, days_in
from kvtrail.judging.offline import judge_history
from kvtrail.producers.canary import Canary
from kvtrail.producers.canary_keys import CanaryKey
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Check, Event
from kvtrail.schemas.findings import Finding

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
CANARY = Canary([CanaryKey("demo", b"k" * 32)], ["northwind", "contoso"])
DAYS = {"northwind": 90, "contoso": 14}


def prefix(tenant: str) -> Prefix:
    return Prefix(tenant, "support_v7", SYSTEM_PROMPT.format(shop=tenant.capitalize(), days=DAYS[tenant]))


class Asked:
    """Requests of both tenants in turn on a node with canaries, and what came of them."""

    def __init__(self, model: LanguageModel, folder: Path, key_function: KeyFunction) -> None:
        self.transport = MemoryTransport()
        self.answers: list[Answer] = []
        with (
            LifecyclePublisher("cache-node", self.transport) as publisher,
            EntryStore(folder, publisher, capacity_bytes=1 << 30) as store,
        ):
            canary = NodeCanary(CANARY, publisher, store.name)
            node = CacheNode(model, store, publisher, key_function, canary=canary)
            for number, tenant in enumerate(("northwind", "northwind", "contoso"), 1):
                self.answers.append(node.answer(prefix(tenant), HOW_MANY_DAYS, f"r{number}"))
            assert canary.failed == 0

    def checks(self) -> list[Event]:
        decoder = EnvelopeDecoder()
        events = [event for _, record in self.transport.records for event in decoder.decode(record).events]
        return [event for event in events if isinstance(event.body, Check)]

    def findings(self) -> list[Finding]:
        decoder = EnvelopeDecoder()
        return list(judge_history([decoder.decode(record) for _, record in self.transport.records]))


def test_the_wrong_key_is_told_by_the_first_bad_request(language_model: LanguageModel, tmp_path: Path) -> None:
    asked = Asked(language_model, tmp_path / "nvme", name_and_model)
    assert [answer.hit for answer in asked.answers] == [False, True, True]
    results = [answer.canary for answer in asked.answers]
    assert [(one.result, one.expected, one.observed) for one in results if one is not None] == [
        ("pass", "northwind", "northwind"), ("pass", "northwind", "northwind"), ("fail", "contoso", "northwind"),
    ]  # fmt: skip
    # The marker is not in what the client sees, and the answer is as wrong as ever.
    assert all(CANARY.marker("northwind") not in answer.text for answer in asked.answers)
    assert set(days_in(asked.answers[2].text)) == {90}
    event = asked.checks()[2]
    assert (event.request_id, event.key, event.store, event.tier, event.key_origin) == (
        "r3", "support_v7:SmolLM2-135M-Instruct", "kv", "nvme", "asserted",
    )  # fmt: skip
    assert event.identity is not None and event.identity.tenant_id == "contoso"
    (finding,) = [one for one in asked.findings() if one.cause == "CANARY_MISMATCH"]
    assert finding.severity is Severity.CRITICAL and finding.key == event.key
    assert finding.requester is not None and finding.creator is not None
    assert (finding.requester.tenant_id, finding.creator.tenant_id) == ("contoso", "northwind")
    assert finding.requester.request_id == "r3" and finding.creator.request_id == "r1"


def test_the_right_key_passes(language_model: LanguageModel, tmp_path: Path) -> None:
    asked = Asked(language_model, tmp_path / "nvme", prefix_key)
    assert [answer.hit for answer in asked.answers] == [False, True, False]
    assert [event.body.result for event in asked.checks() if isinstance(event.body, Check)] == ["pass"] * 3
    assert set(days_in(asked.answers[2].text)) == {14}
    assert asked.findings() == []
