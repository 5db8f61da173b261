"""A frozen state is the state of its moment, whenever it is encoded, and a judge restored from it judges alike."""

import msgspec
import pytest
from kvtrail.judging.errors import SnapshotError
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.freezing import Frozen
from kvtrail.judging.judge import Judge
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.findings import Finding
from kvtrail.simulator.delivery import DeliverySpec
from kvtrail.simulator.faults import FAULTS
from kvtrail.simulator.fleet import FleetSpec
from kvtrail.simulator.run import Run

from .random_histories import odd_history

EVERY = 40


def history(seed: int) -> list[Fact | Batch]:
    run = Run(
        seed=seed,
        events=4_000,
        faults=len(FAULTS),
        fleet=FleetSpec(gpu=30, host=40, nvme=60, shared=120),
        delivery=DeliverySpec(duplicate=0.02, reorder=0.05),
    )
    decoder = EnvelopeDecoder()
    return [sent.fact or decoder.decode(sent.record) for sent in run.sent()]


def play(judge: Judge, records: list[Fact | Batch], start: int) -> list[Finding]:
    found: list[Finding] = []
    for index, record in enumerate(records, start):
        if isinstance(record, Fact):
            judge.facts.add(record, index)
        else:
            found += judge.batch(record, index)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_a_judge_that_goes_on_does_not_change_what_was_frozen(seed: int) -> None:
    records = history(seed)
    judge = Judge(JudgingConfig(), "d", FactBook())
    frozen: list[tuple[Frozen, bytes]] = []
    for start in range(0, len(records), EVERY):
        play(judge, records[start : start + EVERY], start)
        frozen.append((judge.freeze(), judge.dump()))
    assert all(one.encode() == then for one, then in frozen)


@pytest.mark.parametrize("seed", range(30))
def test_nothing_that_a_record_changes_shows_in_what_was_frozen_before_it(seed: int) -> None:
    judge = Judge(JudgingConfig(), "d", FactBook())
    frozen: list[tuple[Frozen, bytes]] = []
    for index, batch in enumerate(odd_history(seed)):
        frozen.append((judge.freeze(), judge.dump()))
        judge.batch(batch, index)
    assert all(one.encode() == then for one, then in frozen)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_judge_restored_on_the_way_ends_in_the_same_state(seed: int) -> None:
    records = history(seed)
    facts = FactBook()
    straight, restored = Judge(JudgingConfig(), "d", facts), Judge(JudgingConfig(), "d", facts)
    for start in range(0, len(records), EVERY):
        part = records[start : start + EVERY]
        assert play(restored, part, start) == play(straight, part, start)
        restored = Judge.load(restored.dump(), JudgingConfig(), "d", facts)
    assert restored.dump() == straight.dump()
    assert restored.stats() == straight.stats()


@pytest.mark.parametrize("seed", [1, 2])
def test_what_may_be_judged_again_comes_back_with_its_identity(seed: int) -> None:
    records = history(seed)
    judge = Judge(JudgingConfig(), "d", FactBook())
    kept = 0
    for start in range(0, len(records), EVERY):
        play(judge, records[start : start + EVERY], start)
        restored = Judge.load(judge.dump(), JudgingConfig(), "d", judge.facts)
        for name, home in judge.homes.items():
            before, after = (
                [*home.all_held(), *home.recent],
                [*restored.homes[name].all_held(), *restored.homes[name].recent],
            )
            assert [one.event for one in after] == [one.event for one in before]
            assert [restored.identities.wire(one.who) for one in after] == [
                judge.identities.wire(one.who) for one in before
            ]
            kept += sum(one.event.identity is not None for one in before)
    assert kept, "or nothing was compared"


def test_what_is_damaged_among_what_may_be_judged_again_is_refused() -> None:
    judge = Judge(JudgingConfig(), "d", FactBook())
    play(judge, history(1), 0)
    state = msgspec.msgpack.decode(judge.dump())
    home = next(home for home in state["homes"] if home["held"] or home["also"])
    [chunks] = [home[name] for name in ("held", "also") if home[name]][:1]
    columns = msgspec.msgpack.decode(chunks[0])
    for damaged in (
        columns[:-1],
        [columns[0][:-1], *columns[1:]],
        [[{}], *columns[1:]],
        [*columns[:4], [10**6], *columns[5:]],
    ):
        chunks[0] = msgspec.msgpack.encode(damaged)
        with pytest.raises(SnapshotError):
            Judge.load(msgspec.msgpack.encode(state), JudgingConfig(), "d", judge.facts)


def test_a_state_of_another_version_is_refused_and_says_which() -> None:
    state = msgspec.msgpack.decode(Judge(JudgingConfig(), "d", FactBook()).dump())
    state["v"] -= 1
    with pytest.raises(SnapshotError, match=f"is {state['v']}, and this build reads {state['v'] + 1}"):
        Judge.load(msgspec.msgpack.encode(state), JudgingConfig(), "d", FactBook())
