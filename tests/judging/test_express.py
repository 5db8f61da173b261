"""The fast path decides nothing that the full path would decide otherwise."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.judging.express import Express
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.ledger.home import Home
from kvtrail.judging.ledger.lanes import Lane
from kvtrail.judging.observations import Observation
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Event
from kvtrail.schemas.facts import CorpusFact, EpochFact, Fact, FactBody, InvalidationFact, PolicyFact
from kvtrail.schemas.findings import Finding
from kvtrail.simulator.delivery import DeliverySpec
from kvtrail.simulator.faults import FAULTS
from kvtrail.simulator.fleet import FleetSpec
from kvtrail.simulator.run import Run

from .random_histories import odd_history
from .test_properties import TENANTS, history

_plain = st.fixed_dictionaries(
    {},
    optional={
        "in": st.sampled_from(["I1", "I2"]),
        "iso": st.sampled_from(["sA", "pub"]),
        "payload": st.sampled_from(["P1", "P2"]),
        "tokens": st.sampled_from(["8", "9"]),
        "kind": st.sampled_from(["kv", "response"]),
        "who": st.sampled_from(["u1", "u2"]),
        "mode": st.just("semantic"),
        "finish": st.sampled_from(["none", "stop"]),
        "loc": st.sampled_from(["b1#g1", "b2#g1", "b1#g2"]),
        "state": st.just("pending"),
        "maxage": st.just("20"),
        "age": st.sampled_from(["10", "30"]),
        "upto": st.just("8"),
        "ver": st.just("2"),
        "part": st.just("attn"),
        "req": st.sampled_from(["r1", "r2"]),
        "tier": st.sampled_from(["gpu", "l3"]),
        "copy": st.just("a"),
        "reused_reported": st.just("0"),
    },
)
_line = st.tuples(
    st.sampled_from(["create", "hit", "hit", "hit", "expire", "commit"]),
    st.sampled_from(["K1", "K2", "K3", "K4"]),
    st.sampled_from(TENANTS),
    _plain,
)


def batches(records: list[Event | Fact], size: int) -> list[Batch]:
    """Runs of one lane each, at most `size` long."""
    events = [record for record in records if isinstance(record, Event)]
    encoder, decoder = EnvelopeEncoder(), EnvelopeDecoder()
    runs: list[list[Event]] = []
    for event in events:
        if runs and runs[-1][0].home == event.home and len(runs[-1]) < size:
            runs[-1].append(event)
        else:
            runs.append([event])
    return [decoder.decode(encoder.encode(run)) for run in runs]


def judged(found: list[Batch | Fact], *, fast: bool) -> tuple[list[Finding], Any, list[Observation]]:
    """Revisions, counts and observations; facts are appended where they stand."""
    book = FactBook()
    judge = Judge(JudgingConfig(), "d", book, observe=True)
    revisions: list[Finding] = []
    for index, batch in enumerate(found):
        if isinstance(batch, Fact):
            book.add(batch, index)
            continue
        if fast:
            revisions += judge.batch(batch, index)
            continue
        judge.stream.facts(index)
        home, lane = judge.open(batch)
        for event in batch.events:
            judge.take(home, lane, event, index)
        revisions += judge.revisions.drain()
    return revisions, judge.stats(), judge.observations or []


_invalidate = st.tuples(
    st.just("invalidate"),
    st.just("*"),
    st.sampled_from(["-", *TENANTS]),
    st.sampled_from([{"scope": "node"}, {"scope": "tier", "tier": "gpu"}]),
)
_order = InvalidationFact(op_id="o", where={"tenant_id": "acme"})
_private = PolicyFact(tenant_id="beta", sharing="none")
_bumps = [
    EpochFact(epoch=epoch, where=where)
    for epoch in ("6", "9")
    for where in ({}, {"tenant_id": "acme"}, {"template_id": "chat"}, {"corpus_id": "kb"})
]
_corpus = CorpusFact(corpus_id="kb", corpus_digest="")
_bodies = st.sampled_from([_order, _private, _corpus, *_bumps])


@given(
    lines=st.lists(st.one_of(_line, _line, _line, _line, _invalidate), min_size=4, max_size=40),
    size=st.integers(1, 9),
    bodies=st.lists(_bodies, max_size=3),
    at_s=st.integers(0, 30),
)
@settings(max_examples=200, deadline=None)
def test_the_fast_path_agrees_with_the_full_one(lines: list[Any], size: int, bodies: list[FactBody], at_s: int) -> None:
    found = batches(history(lines), size)
    effective_us = found[0].events[0].time_us + at_s * 1_000_000
    facts = [Fact(id=str(n), effective_at_us=effective_us, body=body) for n, body in enumerate(bodies)]
    records: list[Batch | Fact] = [*facts, *found]
    assert judged(records, fast=True) == judged(records, fast=False)


@pytest.mark.parametrize("bump", _bumps, ids=lambda bump: "-".join([bump.epoch, *bump.where]) if bump else "")
def test_a_hit_across_a_bump_is_left_to_the_full_path(bump: EpochFact) -> None:
    found = batches(history([("create", "K1", "acme", {}), *[("hit", "K1", "acme", {})] * 12]), 13)
    times = [event.time_us for batch in found for event in batch.events]
    facts = [
        Fact(id=body.__class__.__name__, effective_at_us=times[1] + 1, body=body)
        for body in (CorpusFact(corpus_id="kb", corpus_digest=""), bump)
    ]
    fast, full = (judged([*facts, *found], fast=way) for way in (True, False))
    assert fast == full
    assert {finding.cause for finding in fast[0]} == ({"STALE_EPOCH"} if bump.epoch == "9" or bump.where else set())


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_fast_path_agrees_with_the_full_one_on_a_whole_fleet(seed: int) -> None:
    """Restarts, epochs, policies, places, demotions, faults of every family; envelopes sent twice and out of order."""
    run = Run(
        seed=seed,
        events=8_000,
        faults=len(FAULTS),
        fleet=FleetSpec(gpu=30, host=40, nvme=60, shared=120, request_ms=(8.0, 0.1)[seed % 2]),
        delivery=DeliverySpec(duplicate=0.01, reorder=0.01),
    )
    decoder = EnvelopeDecoder()
    records = [sent.fact or decoder.decode(sent.record) for sent in run.sent()]
    fast, full = judged(records, fast=True), judged(records, fast=False)
    assert fast[0] and fast[2]
    assert fast == full


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_the_fast_path_agrees_with_the_full_one_where_little_is_odd(seed: int) -> None:
    for one in range(seed, seed + 20):
        policy = Fact(id="p", effective_at_us=0, body=_private)
        records: list[Batch | Fact] = [policy, *odd_history(one)]
        assert judged(records, fast=True) == judged(records, fast=False), one


def test_the_fast_path_heeds_orders_to_the_fleet() -> None:
    lines: list[Any] = [("create", "K1", "acme", {}), *[("hit", "K1", "acme", {})] * 20]
    found = batches(history(lines), 7)
    facts = FactBook()
    judge = Judge(JudgingConfig(), "d", facts)
    assert judge.batch(found[0], 0) == []
    at = found[1].events[0].time_us - 500_000  # after the create, by more than the skew
    facts.add(Fact(id="f", effective_at_us=at, body=InvalidationFact(op_id="o")), 1)
    causes = [finding.cause for batch in found[1:] for finding in judge.batch(batch, 2)]
    assert "HIT_AFTER_INVALIDATE" in causes


def test_the_fast_path_is_taken() -> None:
    lines: list[Any] = [
        ("create", f"K{n % 9}", "acme", {}) if n < 9 else ("hit", f"K{n % 9}", "acme", {}) for n in range(60)
    ]
    found = batches(history(lines), 20)
    judge = Judge(JudgingConfig(), "d", FactBook())
    judge.batch(found[0], 0)
    home, lane = judge.open(found[1])
    express, events = Express(judge, home, lane), found[1].events
    assert express.applies(found[1], events) and not express.begins(found[1])
    assert not express.applies(found[1], events[1:])
    later = msgspec.structs.replace(found[1], first=events[1].seq, events=events[1:])
    assert express.begins(later) and not express.applies(later, later.events)


def test_what_follows_the_first_event_of_a_gap_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    found = batches(history([("create", f"K{n}", "acme", {}) for n in range(60)]), 20)
    judge = Judge(JudgingConfig(), "d", FactBook())
    taken: list[int] = []
    take = judge.take

    def noted(home: Home, lane: Lane, event: Event, append_us: int) -> None:
        taken.append(event.seq)
        take(home, lane, event, append_us)

    monkeypatch.setattr(judge, "take", noted)
    for batch in (found[0], found[2]):
        judge.batch(batch, 0)
    assert taken == [1, 41]


def test_orders_of_another_time_do_not_stand_in_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    found = batches(history([("create", "K1", "acme", {}), *[("hit", "K1", "acme", {})] * 39]), 20)
    facts, start_us = FactBook(), found[0].events[0].time_us
    for n in range(40):
        facts.add(Fact(id=f"{n}", effective_at_us=start_us - n, body=EpochFact(epoch=f"{n}", where={})), 0)
    facts.add(Fact(id="later", effective_at_us=start_us + 10**12, body=EpochFact(epoch="99", where={})), 0)
    beta = EpochFact(epoch="99", where={"tenant_id": "beta"})
    facts.add(Fact(id="beta", effective_at_us=found[1].events[0].time_us - 1, body=beta), 0)
    judge = Judge(JudgingConfig(), "d", facts)
    judge.batch(found[0], 1)
    monkeypatch.setattr(judge, "take", None)
    assert judge.batch(found[1], 1) == []


def test_orders_between_two_times_come_as_they_arrived() -> None:
    facts = FactBook()
    for number, at in enumerate((5, 3, 9, 3, 7)):
        facts.add(Fact(id=str(number), effective_at_us=at, body=InvalidationFact(op_id="o")), number)
    between = {span: [fact.id for _, fact in facts.orders_between(*span)] for span in ((3, 7), (2, 3), (7, 3), (0, 99))}
    assert between == {(3, 7): ["0", "4"], (2, 3): ["1", "3"], (7, 3): [], (0, 99): ["0", "1", "2", "3", "4"]}
