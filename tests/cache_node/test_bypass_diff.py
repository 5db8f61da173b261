"""A bypass diff on the incident's node, with the real model: guilty where the key is wrong, clear where it is right."""

from pathlib import Path

import pytest
from kvtrail.audit.checks.bypass import run_bypass_diff
from kvtrail.audit.checks.bypass_verdict import Outcome, Reason
from kvtrail.audit.checks.bypass_words import tell_diff
from kvtrail.audit.checks.recording import Subject, record_diff
from kvtrail.audit.checks.target import NodeTarget
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.keys import KeyFunction, name_and_model, prefix_key
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.node import CacheNode
from kvtrail.cache_node.prefix import Prefix
from kvtrail.cli.incident.recording import Recorder, Tee, read_recording
from kvtrail.cli.incident.steps import HOW_MANY_DAYS, STEPS, TEMPLATE, UNTIL_WHEN
from kvtrail.judging.offline import judge_history
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.events import Check

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]


def prefix(tenant: str) -> Prefix:
    step = next(step for step in STEPS if step.tenant == tenant)
    return Prefix(tenant, TEMPLATE, step.system_prompt)


@pytest.mark.parametrize(
    ("key_function", "outcome", "reason"),
    [
        (name_and_model, Outcome.IMPLICATED, Reason.DIVERGES),
        (prefix_key, Outcome.NOT_IMPLICATED, Reason.EQUAL),
    ],
)
def test_the_wrong_key_is_implicated_and_the_right_one_cleared(
    language_model: LanguageModel, tmp_path: Path, key_function: KeyFunction, outcome: Outcome, reason: Reason
) -> None:
    recorder = Recorder()
    publisher = LifecyclePublisher("node-1", Tee(MemoryTransport(), recorder))
    with EntryStore(tmp_path / "nvme", publisher, capacity_bytes=1 << 30) as store:
        node = CacheNode(language_model, store, publisher, key_function)
        for tenant in ("northwind", "contoso"):
            node.answer(prefix(tenant), UNTIL_WHEN, f"before-{tenant}")
        target = NodeTarget(node, prefix("contoso"), HOW_MANY_DAYS)
        made = run_bypass_diff(target)
        told = tell_diff(made, bypass=target.bypass, hidden="", declines="")
        record_diff(publisher, made, told, Subject(tenant="contoso", store=store.name, tier="nvme", owner="node-1"))
    assert publisher.close()

    assert (made.diff.outcome, made.diff.reason) == (outcome, reason), told
    assert made.diff.basis == "token ids"
    assert made.diff.noise is not None and made.diff.noise < 0.01  # the controls repeat themselves
    assert made.diff.bypass_tokens == 0
    assert made.diff.reused_tokens is not None and made.diff.reused_tokens > 100
    assert [answer.cached_tokens for answer in made.runs.bypass] == [0, 0, 0]

    recorder.write(tmp_path / "r.jsonl", deployment="d", model="m", weights_digest="", versions={})
    recording = read_recording((tmp_path / "r.jsonl").read_bytes())
    findings = judge_history(recording.records)
    found = [one for one in findings if one.cause == "BYPASS_DIFF_IMPLICATED"]
    assert len(found) == (1 if outcome is Outcome.IMPLICATED else 0)
    for one in found:
        assert one.severity == "critical"  # the entry at that key is northwind's
        assert one.creator is not None and one.creator.tenant_id == "northwind"
        assert one.key == made.runs.reuse[0].key
    assert isinstance(recording.records[-1].events[-1].body, Check)  # type: ignore[union-attr]  # the last is a batch
