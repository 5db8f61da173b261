"""Identities that come after their events: judged as if they had been there, in whatever order they come."""

from itertools import permutations

import pytest
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import History, as_batch
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.context import RequestContext, resolution
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Body, Create, Event, Hit, NodeStart
from kvtrail.schemas.findings import Finding

SECOND = 1_000_000


def at(seq: int, body: Body, request_id: str = "", key: str = "K") -> Event:
    """An event of a healthy lane that knows no more than its request."""
    return Event(
        node="gpu-1", incarnation="i1", home="n:gpu-1", seq=seq, time_us=seq * SECOND, body=body, store="kv",
        tier="nvme", key=key, request_id=request_id,
    )  # fmt: skip


START, CREATE, HIT, OWN = at(1, NodeStart()), at(2, Create(), "r1"), at(3, Hit(), "r2"), at(4, Hit(), "r3")
CONTEXTS = [
    (CREATE, RequestContext(request_id="r1", tenant_id="northwind", at_us=0, template_digest="a" * 64)),
    (HIT, RequestContext(request_id="r2", tenant_id="contoso", at_us=0, template_digest="b" * 64)),
    (OWN, RequestContext(request_id="r3", tenant_id="northwind", at_us=0, template_digest="a" * 64)),
]
RESOLVED = [resolution(event, context) for event, context in CONTEXTS]


def standing(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(one.subject, one.cause, one.severity.value) for one in found if one.status == "open"]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_every_order_of_resolutions_leads_to_the_same_findings(order: tuple[int, ...]) -> None:
    history = History()
    for event in (START, CREATE, HIT, OWN):
        assert history.take(event) == []
    for number in order:
        history.take(RESOLVED[number])
    assert standing([*history.final.values()]) == [(HIT.id, "TEMPLATE_MISMATCH", "critical")]
    # Once more: they were sent again after a crash.
    for resolve in RESOLVED:
        assert history.take(resolve) == []


def test_its_numbers_have_holes_and_that_is_no_gap() -> None:
    history = History()
    for event in (START, at(2, Create(), "r1"), *(at(n, Hit(), f"q{n}") for n in range(3, 9)), at(9, Hit(), "r2")):
        history.take(event)
    history.take(resolution(at(9, Hit(), "r2"), CONTEXTS[1][1]))
    assert history.final == {}
    history.take(RESOLVED[0])
    (finding,) = history.final.values()
    assert (finding.subject, finding.complete) == (at(9, Hit()).id, True)


def test_what_waits_for_its_creator_survives_a_snapshot() -> None:
    settings, facts = JudgingConfig(), History().facts
    judge = Judge(settings, "default", facts)
    for event in (START, CREATE, HIT, RESOLVED[1]):
        assert judge.batch(as_batch(event), event.time_us) == []
    again = Judge.load(judge.dump(), settings, "default", facts)
    found = again.batch(as_batch(RESOLVED[0]), 9 * SECOND)
    assert standing(found) == [(HIT.id, "TEMPLATE_MISMATCH", "critical")]


def test_a_run_of_resolutions_is_one_record() -> None:
    history = History()
    for event in (START, CREATE, HIT):
        history.take(event)
    history.take(EnvelopeDecoder().decode(EnvelopeEncoder().encode(RESOLVED[:2])))
    assert standing([*history.final.values()]) == [(HIT.id, "TEMPLATE_MISMATCH", "critical")]


def test_a_home_nobody_has_heard_of_and_an_event_nobody_has_seen_change_nothing() -> None:
    history = History()
    assert history.take(RESOLVED[0]) == []
    history.take(START)
    assert history.take(RESOLVED[1]) == [] and history.final == {}


def test_another_event_under_the_resolvers_name_is_judged_like_any() -> None:
    history = History()
    named = Event(
        node="kvtrail-resolver", incarnation="i", home="n:kvtrail-resolver", seq=2, time_us=1, body=Hit(), store="kv"
    )
    assert [found.cause for found in history.take(named)] == ["UNATTRIBUTED_HIT", "STREAM_GAP"]
