"""The incident's node with every active check at once, on the real model: each implicates the wrong key and clears the
right one, and one investigation of contoso's request shows all of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtrail.audit.checks.bypass import run_bypass_diff
from kvtrail.audit.checks.bypass_words import tell_diff
from kvtrail.audit.checks.recording import Subject, record_diff
from kvtrail.audit.checks.target import NodeTarget
from kvtrail.audit.history import History, Question, build_history
from kvtrail.audit.render import render_history
from kvtrail.audit.verdict import Outcome, reach_verdict
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.keys import KeyFunction, name_and_model, prefix_key
from kvtrail.cache_node.model import LanguageModel, load_model
from kvtrail.cache_node.node import CacheNode
from kvtrail.cache_node.node_canary import NodeCanary
from kvtrail.cache_node.prefix import Prefix
from kvtrail.cache_node.spot_check import SpotCheckSettings
from kvtrail.cache_node.spot_checker import SpotChecker
from kvtrail.cli.incident.steps import HOW_MANY_DAYS, STEPS, TEMPLATE, days_in
from kvtrail.judging.incidents import fold
from kvtrail.judging.offline import judge_history
from kvtrail.producers.canary import Canary
from kvtrail.producers.canary_keys import CanaryKey
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Check, Event
from kvtrail.schemas.findings import Finding

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
CANARY = Canary([CanaryKey("demo", b"k" * 32)], ["northwind", "contoso"])
OF_CHECKS = ("CANARY_MISMATCH", "SPOT_CHECK_FAILED", "BYPASS_DIFF_IMPLICATED")


def prefix(tenant: str) -> Prefix:
    step = next(step for step in STEPS if step.tenant == tenant)
    return Prefix(tenant, TEMPLATE, step.system_prompt)


class Played:
    """northwind asks, contoso asks twice; then somebody runs a bypass diff about contoso's second request."""

    def __init__(self, model: LanguageModel, folder: Path, key_function: KeyFunction) -> None:
        transport = MemoryTransport()
        with (
            LifecyclePublisher("cache-node", transport) as publisher,
            EntryStore(folder, publisher, capacity_bytes=1 << 30) as store,
        ):
            checker = SpotChecker(model, publisher, store.name, SpotCheckSettings(share=1.0, waiting=16))
            canary = NodeCanary(CANARY, publisher, store.name)
            node = CacheNode(model, store, publisher, key_function, canary=canary, spot_checker=checker)
            self.answers = [
                node.answer(prefix(tenant), HOW_MANY_DAYS, f"r{number}")
                for number, tenant in enumerate(("northwind", "contoso", "contoso"), 1)
            ]
            checker.settle()
            target = NodeTarget(node, prefix("contoso"), HOW_MANY_DAYS)
            made = run_bypass_diff(target)
            subject = Subject(request_id="r3", tenant="contoso", store=store.name, tier="nvme")
            told = tell_diff(made, bypass=target.bypass, hidden="", declines="")
            record_diff(publisher, made, told, subject)
            checker.close()
        decoder = EnvelopeDecoder()
        self.events: list[Event] = [event for _, record in transport.records for event in decoder.decode(record).events]
        self.findings: list[Finding] = judge_history(self.events)

    def result(self, kind: str, request_id: str) -> str:
        found = [
            event.body.result
            for event in self.events
            if isinstance(event.body, Check) and event.body.check == kind and event.request_id == request_id
        ]
        return found[0] if found else ""

    def history(self, request_id: str) -> History:
        return build_history(Question(kind="request", value=request_id), self.events, self.findings)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model()


@pytest.fixture(scope="module")
def wrong(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    yield Played(model, tmp_path_factory.mktemp("wrong"), name_and_model)


@pytest.fixture(scope="module")
def right(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    yield Played(model, tmp_path_factory.mktemp("right"), prefix_key)


def test_every_check_implicates_the_wrong_key(wrong: Played) -> None:
    assert set(days_in(wrong.answers[1].text)) == {90}
    assert [wrong.result(kind, "r2") for kind in ("canary", "spot_check")] == ["fail", "fail"]
    assert [wrong.result(kind, "r3") for kind in ("canary", "spot_check", "bypass_diff")] == ["fail"] * 3


def test_the_first_bad_request_is_critical_and_names_both_tenants_and_the_entry(wrong: Played) -> None:
    about = {one.cause: one for one in wrong.findings if one.requester and one.requester.request_id == "r2"}
    assert about.keys() == {"CROSS_TENANT_REUSE", "CANARY_MISMATCH", "SPOT_CHECK_FAILED"}
    for one in about.values():
        assert one.severity == "critical" and one.creator is not None and one.requester is not None
        assert (one.creator.tenant_id, one.creator.request_id) == ("northwind", "r1")
        assert one.requester.tenant_id == "contoso"
        assert one.key == f"{TEMPLATE}:SmolLM2-135M-Instruct"


def test_each_kind_of_check_is_one_incident(wrong: Played) -> None:
    incidents = {one.cause: one for one in fold(wrong.findings)}
    assert incidents.keys() == {"CROSS_TENANT_REUSE", *OF_CHECKS}
    assert incidents["CANARY_MISMATCH"].findings >= 2
    assert incidents["BYPASS_DIFF_IMPLICATED"].findings == 1
    assert all(incidents[cause].tenants == ("contoso", "northwind") for cause in OF_CHECKS)


def test_one_investigation_shows_the_hit_and_what_every_check_came_to(wrong: Played) -> None:
    history = wrong.history("r3")
    verdict = reach_verdict(history)
    assert (verdict.outcome, verdict.cause) == (Outcome.IMPLICATED, "CROSS_TENANT_REUSE")
    said = " ".join(verdict.happened)
    for kind in ("canary", "spot check", "bypass diff"):
        assert f"1 {kind}: 1 failed" in said
    text = render_history(history)
    assert "check=canary" in text and "expected=contoso" in text and "observed=northwind" in text


def test_every_check_clears_the_right_key(right: Played) -> None:
    assert [answer.hit for answer in right.answers] == [False, False, True]
    assert set(days_in(right.answers[2].text)) == {14}
    assert [right.result(kind, "r3") for kind in ("canary", "spot_check", "bypass_diff")] == ["pass"] * 3
    assert right.findings == []
    verdict = reach_verdict(right.history("r3"))
    assert verdict.outcome is Outcome.CLEARED
    assert "1 spot check: 1 passed" in " ".join(verdict.happened)
