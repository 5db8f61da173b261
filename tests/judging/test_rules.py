"""Rules and their words; and cases that the scenario format cannot say."""

import msgspec
import pytest
from kvtrail.judging.errors import SnapshotError
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.fleet import FleetJudge
from kvtrail.judging.incidents import fold
from kvtrail.judging.judge import Judge
from kvtrail.judging.observations import Keyed, PartServed, RequestClosed
from kvtrail.judging.offline import History, as_batch, judge_history
from kvtrail.judging.rules import RULES
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder
from kvtrail.schemas.events import Create, Event, Hit, NodeStart, Resolve
from kvtrail.schemas.facts import AliasFact, Fact, InvalidationFact, PolicyFact
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.identity import DIMENSIONS, Identity

from .cases import causes, scenario


def test_every_cause_of_a_dimension_has_words() -> None:
    # An epoch that differs is never a cause by itself, and its rule is there for the bumped one.
    assert {dimension.cause for dimension in DIMENSIONS.values()} <= RULES.keys()
    for rule in RULES.values():
        assert rule.why and rule.first_steps and rule.title


def event(seq: int, body: Create | Hit | NodeStart | Resolve, *, time_s: float = 0, **fields: object) -> Event:
    given = {"node": "n1", "incarnation": "i1", "home": "n:n1", "key": "K", **fields}
    return Event(seq=seq, time_us=1_700_000_000_000_000 + round(time_s * 1e6), body=body, **given)  # type: ignore[arg-type]


ACME = Identity(tenant_id="acme", weights_digest="a" * 64)
BETA = Identity(tenant_id="beta", weights_digest="b" * 64)


def test_a_hit_is_judged_when_its_identity_is_resolved() -> None:
    history = History()
    history.take(event(1, Create(), identity=ACME))
    assert history.take(event(2, Hit(), request_id="r")) == []
    (found,) = history.take(event(3, Resolve(event_id="n1/i1/n:n1/2"), identity=BETA, request_id="r"))
    assert (found.cause, found.subject, found.severity.value) == ("WEIGHTS_MISMATCH", "n1/i1/n:n1/2", "critical")


def test_beyond_the_horizon_an_ended_entry_is_unknown() -> None:
    lines = "n1:1 create K acme t=0\nn1:2 expire K - t=10\nn1:3 hit K acme t={}"
    assert causes(lines.format(60), horizon_s=60) == ["n1:3 HIT_AFTER_EXPIRE high"]
    assert causes(lines.format(71), horizon_s=60) == ["n1:3 HIT_UNKNOWN_ENTRY high"]


def test_a_gap_is_given_up_after_the_horizon() -> None:
    lines = (
        "n1:1 create K acme t=0\nn1:3 hit K acme t=1\nn1:4 hit K acme t=90\nn1:2 expire K - t=1\nn1:5 hit K acme t=91"
    )
    assert causes(lines, horizon_s=60) == ["n1:3 STREAM_GAP medium"]
    assert causes(lines, horizon_s=600) == [
        "n1:3 HIT_AFTER_EXPIRE high",
        "n1:4 HIT_AFTER_EXPIRE high",
        "n1:5 HIT_AFTER_EXPIRE high",
    ]


def test_what_does_not_change_is_not_said_again() -> None:
    lines = "n1:1 create K acme\nn1:4 hit K acme {weights=W2}\nn1:2 commit K -\nn1:3 create K3 acme"
    history = History()
    said = [[f.cause for f in history.take(record)] for _, record in scenario(lines).steps]
    assert said == [[], [], ["WEIGHTS_MISMATCH", "STREAM_GAP"], ["STREAM_GAP"], ["STREAM_GAP", "WEIGHTS_MISMATCH"]]
    standing = {f.cause: (f.revision, f.complete) for f in history.final.values() if f.status == "open"}
    assert standing == {"WEIGHTS_MISMATCH": (2, True)}


def test_a_refused_event_makes_the_history_blind_but_leaves_no_gap() -> None:
    judge = Judge(JudgingConfig(), "d", FactBook())
    judge.batch(as_batch(event(1, NodeStart())), 1)
    raw = msgspec.json.encode(
        {
            "v": 1, "node": "n1", "incarnation": "i1", "home": "n:n1", "first": 2, "last": 3, "t0": 0,
            "strings": ["K"], "scopes": [[0, "gpu", 0, 0, "derived", "kv", 0]], "identities": [],
            "events": [["bad"], [0, 0, 0, -1, -1, {"type": "hit"}]],
        }
    )  # fmt: skip
    batch = EnvelopeDecoder().decode(raw)
    assert len(batch.rejects) == 1 and len(batch.events) == 1
    assert [found.cause for found in judge.batch(batch, 2)] == ["UNATTRIBUTED_HIT"]
    assert judge.batch(Batch(), 3) == []


def test_numbers_that_start_again_are_reported_once() -> None:
    history = History()
    history.take(event(1, Create(), identity=ACME))
    assert history.take(event(1, Create(), identity=ACME)) == []
    (found,) = history.take(event(1, Create(), identity=BETA, time_s=60))
    assert found.cause == "SEQUENCE_RESET"
    assert history.take(event(1, Create(), identity=BETA, time_s=61)) == []


def test_a_fact_that_comes_late_names_what_to_judge_again() -> None:
    history = History()
    history.take(event(1, Create(), identity=ACME, time_s=0))
    policy = PolicyFact(tenant_id="acme", sharing="none")
    history.take(Fact(id="f1", effective_at_us=1_700_000_000_000_000 - 60_000_000, body=policy))
    (found,) = history.take(event(2, Hit(), identity=ACME, time_s=1))
    assert (found.cause, found.severity.value, found.facts) == ("LATE_FACT", "info", ("f1",))


def test_facts_hold_from_their_append_and_their_effective_time() -> None:
    book = FactBook()
    one = Fact(id="1", effective_at_us=100, body=AliasFact(alias="best", weights_digest="a" * 64))
    two = Fact(id="2", effective_at_us=50, body=AliasFact(alias="best", weights_digest="b" * 64))
    assert book.add(one, 10) and book.add(two, 20)
    assert not book.add(two, 30)

    def current(append_us: int, time_us: int) -> str | None:
        fact = book.current(AliasFact, "best", append_us, time_us)
        return fact.id if fact is not None else None

    assert current(append_us=10, time_us=99) is None
    assert current(append_us=10, time_us=100) == "1"
    assert current(append_us=20, time_us=99) == "2"
    assert current(append_us=20, time_us=100) == "1"
    assert [fact.id for fact in book.appended(10, 20)] == ["2"]


def test_an_order_to_the_fleet_holds_beyond_the_skew() -> None:
    def judged(hit_s: float) -> list[str]:
        order = InvalidationFact(op_id="o", where={"tenant_id": "acme"})
        records: list[Fact | Event] = [
            event(1, NodeStart()),
            event(2, Create(), identity=ACME, time_s=0),
            Fact(id="f", effective_at_us=1_700_000_000_000_000 + 10_000_000, body=order),
            event(3, Hit(), identity=ACME, time_s=hit_s),
        ]
        return [found.cause for found in judge_history(records)]

    assert judged(9) == judged(14) == []
    assert judged(16) == ["HIT_AFTER_INVALIDATE"]


def test_keyed_digests_of_different_secrets_are_unknown() -> None:
    one, two = (Identity(tenant_id="acme", template_digest=f"hmac-{n}:{'c' * 64}") for n in (1, 2))
    history = [event(1, NodeStart()), event(2, Create(), identity=one), event(3, Hit(), identity=two)]
    assert judge_history(history) == []


def test_coverage_counts_what_could_be_compared() -> None:
    judge = Judge(JudgingConfig(), "d", FactBook())
    for index, one in enumerate([event(1, Create(), identity=ACME), *(event(n, Hit(), identity=ACME) for n in (2, 3))]):
        judge.batch(as_batch(one), index)
    stats = judge.stats()
    assert stats["compared"] == 2 and stats["hit"] == 2
    assert stats["coverage"] == {"weights_digest": 2, "model_id": 2, "resolved_model": 2}


def test_a_damaged_snapshot_is_refused() -> None:
    config, facts = JudgingConfig(), FactBook()
    for raw in (b"", b"\x81\xa1v\x63", b"\x81\xa1v\x01", b"nonsense"):
        with pytest.raises(SnapshotError):
            Judge.load(raw, config, "d", facts)


def test_drift_needs_more_difference_than_agreement() -> None:
    fleet = FleetJudge(JudgingConfig(drift_threshold=2), "d")
    found: list[Finding] = []
    for n, (one, two) in enumerate([("a", "a"), ("b", "b"), ("c", "x"), ("d", "y"), ("e", "z")]):
        for node, key in (("n1", one), ("n2", two)):
            found += fleet.take(Keyed(f"{node}/{n}", n, node, "gpu", f"s{n}", key))
        assert len(found) == (n == 4)  # two agree, so two that differ are not enough
    assert [(finding.cause, finding.status) for finding in found] == [("KEY_DRIFT", "open")]
    assert fleet.take(Keyed("n1/9", 9, "n1", "gpu", "s9", "k")) == []


def test_a_missing_part_that_comes_after_all_closes_the_finding() -> None:
    fleet = FleetJudge(JudgingConfig(), "d")
    assert fleet.take(PartServed("e1", 1, "r", "acme", "attn")) == []
    (found,) = fleet.take(RequestClosed("e2", 2, "r", ("attn", "state")))
    assert (found.cause, found.status, found.evidence) == ("COMPONENT_MISSING", "open", ("e2", "e1"))
    (found,) = fleet.take(PartServed("e3", 3, "r", "acme", "state"))
    assert found.status == "retracted"


def test_incidents_fold_by_root_cause() -> None:
    lines = ["n1:1 create K acme {keysrc=asserted, in=I1}"]
    lines += [f"n1:{n} hit K {tenant} {{keysrc=asserted, in=I{n}}}" for n, tenant in ((2, "beta"), (3, "gamma"))]
    lines += ["n1:4 hit K acme {keysrc=asserted, weights=W2}"]
    findings = judge_history(record for _, record in scenario("\n".join(lines)).steps)
    incidents = fold(findings)
    assert [(one.cause, one.findings, one.tenants) for one in incidents] == [
        ("CROSS_TENANT_REUSE", 2, ("acme", "beta", "gamma")),
        ("WEIGHTS_MISMATCH", 1, ("acme",)),
    ]
    assert incidents[0].title == "does not cover tenant: 2 finding(s), 3 tenant(s)"
