"""Failed checks judged against the ledger, and what the scenario format cannot say about them."""

from itertools import permutations

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.incidents import fold
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import History, as_batch
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.events import Check, Event
from kvtrail.schemas.facts import Fact, StoreFact
from kvtrail.schemas.findings import Finding

from .cases import causes, scenario

CROSSED = """
n1:1 create K1 beta {in=I2, req=r1}
n1:2 check  K1 acme {req=r2, check=canary, result=fail, expected=acme, observed=beta}
"""


def found(history: str, **settings: object) -> list[Finding]:
    parsed = scenario(history, **settings)
    judged = History(parsed.settings)
    for _, record in parsed.steps:
        judged.take(record)
    return list(judged.final.values())


def test_a_canary_names_both_tenants_and_the_entry() -> None:
    (finding,) = found(CROSSED)
    assert finding.requester is not None and finding.creator is not None
    assert (finding.requester.tenant_id, finding.requester.request_id) == ("acme", "r2")
    assert (finding.creator.tenant_id, finding.creator.request_id) == ("beta", "r1")
    assert finding.key == "K1" and finding.creator.event_id in finding.evidence


def test_a_canary_that_knows_only_its_request_names_both_tenants() -> None:
    (finding,) = found("g1:1 check - - {req=r2, check=canary, result=fail, expected=acme, observed=beta}")
    assert finding.requester is not None and finding.creator is not None
    assert (finding.requester.tenant_id, finding.creator.tenant_id) == ("acme", "beta")
    assert (finding.severity.value, finding.complete) == ("critical", True)


def test_the_marker_names_the_other_tenant_where_the_ledger_knows_a_later_entry() -> None:
    (finding,) = found(CROSSED.replace("create K1 beta {in=I2", "create K1 acme {in=I1"))
    assert finding.creator is not None and finding.creator.tenant_id == "beta"
    assert finding.severity.value == "critical"


def test_no_title_names_a_tenant() -> None:
    # Whoever may read only one tenant sees the other party as another, and the title as it is.
    kinds = ("canary", "spot_check", "bypass_diff", "isolation_probe")
    for kind in kinds:
        (finding,) = found(CROSSED.replace("check=canary", f"check={kind}"))
        assert "acme" not in finding.title and "beta" not in finding.title


def test_a_check_is_judged_again_when_the_create_arrives() -> None:
    history = "n1:1 create K1 beta {in=I2}\nn1:2 check K1 acme {check=spot_check, result=fail}"
    records = [record for _, record in scenario(history).steps]
    judged = History()
    for record in (records[0], records[2], records[1]):
        judged.take(record)
    checked = next(one for one in judged.final.values() if one.cause == "SPOT_CHECK_FAILED")
    assert (checked.severity.value, checked.revision, checked.complete) == ("critical", 2, True)
    assert judged.judge.stats()["held"] == 0


def test_passing_and_beating_say_nothing() -> None:
    assert found("n1:1 create K1 beta\nn1:2 check K1 acme {check=spot_check, result=pass}") == []
    judge = Judge(JudgingConfig(inconclusive_threshold=1), "d", FactBook())
    beat = Check(check="heartbeat", result="inconclusive")
    assert judge.batch(as_batch(Event(node="n", incarnation="i", home="n:n", seq=1, time_us=1, body=beat)), 1) == []


def test_a_declared_barrier_makes_a_probe_high() -> None:
    history = "n1:1 check - acme {check=isolation_probe, result=fail}"
    start, probe = [record for _, record in scenario(history).steps]
    judged = History()
    assert isinstance(probe, Event)
    judged.take(Fact(id="f", effective_at_us=0, body=StoreFact(store=probe.store, partitioned=True)))
    judged.take(start)
    (finding,) = judged.take(probe)
    assert (finding.cause, finding.severity.value) == ("ISOLATION_NOT_ENFORCED", "high")


def test_failures_of_one_kind_and_store_are_one_incident() -> None:
    lines = "n1:1 create K1 beta {in=I2}\n" + "".join(
        f"n1:{number} check K1 acme {{req=r{number}, check=spot_check, result=fail}}\n" for number in range(2, 7)
    )
    (incident,) = fold(found(lines))
    assert (incident.findings, incident.severity.value, incident.tenants) == (5, "critical", ("acme", "beta"))


@pytest.mark.parametrize("order", list(permutations(range(2, 6))))
def test_a_row_without_result_does_not_depend_on_the_order_of_arrival(order: tuple[int, ...]) -> None:
    results = {2: "inconclusive", 3: "pass", 4: "inconclusive", 5: "inconclusive"}
    lines = "".join(f"n1:{n} check - acme {{check=canary, result={results[n]}}} t={n}\n" for n in order)
    settings = {"inconclusive_threshold": 2}
    standing = [cause for cause in causes("n1:1 create K acme t=1\n" + lines, **settings) if "GAP" not in cause]
    assert standing == ["n1:4 CHECK_INCONCLUSIVE low"]


def test_a_result_ends_the_row() -> None:
    lines = "n1:1 check - acme {check=canary, result=inconclusive}\nn1:2 check - acme {check=canary, result=pass}"
    (finding,) = found(lines, inconclusive_threshold=1)
    assert (finding.status, finding.reason) == ("retracted", "a check came to a result")


def test_a_snapshot_keeps_the_row_and_the_held() -> None:
    lines = (
        "n1:1 check - acme {check=canary, result=inconclusive}\n"
        "n1:2 check K1 acme {check=spot_check, result=fail}\n"
        "n1:3 check - acme {check=canary, result=inconclusive}\n"
        "n1:4 create K2 acme"
    )
    parsed = scenario(lines, inconclusive_threshold=2)
    records = [as_batch(record) for _, record in parsed.steps if isinstance(record, Event)]
    facts = FactBook()
    judge = Judge(parsed.settings, "d", facts)
    for at, record in enumerate(records[:3]):
        judge.batch(record, at)
    restored = Judge.load(judge.dump(), parsed.settings, "d", facts)
    assert restored.dump() == judge.dump()
    (finding,) = restored.batch(records[3], 3)
    assert finding.cause == "CHECK_INCONCLUSIVE"
