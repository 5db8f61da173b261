"""What two nodes did within the skew has no order: whoever may be innocent is, and nobody else."""

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import History, as_batch
from kvtrail.schemas.events import Event
from kvtrail.schemas.facts import Fact, InvalidationFact

from .cases import causes, scenario


def line(at: str, type_: str, key: str, tenant: str, time: float, payload: str = "") -> str:
    fields = f"tier=l3, payload={payload}" if payload else "tier=l3"
    return f"{at} {type_} {key} {tenant} {{{fields}}} t={time}"


@pytest.mark.parametrize(
    ("node", "after", "expected"),
    [
        ("n2", 0.5, []),  # another node's end, shortly before: who knows
        ("n2", 5.0, []),
        ("n2", 5.1, ["n2:1 HIT_AFTER_EXPIRE high"]),
        ("n1", 0.5, ["n1:3 HIT_AFTER_EXPIRE high"]),  # a node knows the order of what it does
    ],
)
def test_an_end_shortly_before_a_hit_of_another_node(node: str, after: float, expected: list[str]) -> None:
    at = "n2:1" if node == "n2" else "n1:3"
    history = [
        line("n1:1", "create", "K", "acme", 0),
        line("n1:2", "expire", "K", "-", 100),
        line(at, "hit", "K", "acme", 100 + after),
    ]
    assert causes("\n".join(history), skew_s=5) == expected


@pytest.mark.parametrize(("lead", "standing"), [(0.5, []), (-3.0, []), (-5.5, ["n2:1 PAYLOAD_MISMATCH high"])])
def test_a_hit_that_overtook_the_create_it_belongs_to(lead: float, standing: list[str]) -> None:
    """The alarm is raised at once and taken back when the create arrives."""
    parsed = scenario(
        "\n".join(
            (
                line("n1:1", "create", "K", "acme", 0, "P1"),
                line("n2:1", "hit", "K", "acme", 100, "P2"),
                line("n1:2", "expire", "K", "-", 100 - lead - 0.1),
                line("n1:3", "create", "K", "acme", 100 - lead, "P2"),
            )
        ),
        skew_s=5,
    )
    history = History(parsed.settings)
    raised = [finding for _, record in parsed.steps for finding in history.take(record)]
    assert (raised[0].cause, raised[0].status) == ("PAYLOAD_MISMATCH", "open")
    left = [f"{parsed.labels[one.subject]} {one.cause} {one.severity}" for one in history.final.values()
            if one.status == "open"]  # fmt: skip
    assert left == standing
    if not standing:
        assert raised[-1].status == "retracted"


@pytest.mark.parametrize(
    ("teller", "time", "expected"),
    [
        ("n1:2", 98.0, []),
        ("n1:2", 102.0, []),
        ("n1:2", 106.0, ["n3:1 HIT_AFTER_EXPIRE high"]),  # too late to be meant for the one before
        ("n2:2", 102.0, ["n3:1 HIT_AFTER_EXPIRE high"]),  # who made it knows what it ends
    ],
)
def test_an_end_that_another_node_told_about_when_the_entry_was_made_again(
    teller: str, time: float, expected: list[str]
) -> None:
    history = [
        line("n1:1", "create", "K", "acme", 0, "P1"),
        line("n2:1", "create", "K", "acme", 100, "P2"),
        line(teller, "expire", "K", "-", time),
        line("n3:1", "hit", "K", "acme", 500, "P2"),
    ]
    assert causes("\n".join(history), skew_s=5) == expected


def test_the_next_end_is_the_newer_entrys_own() -> None:
    history = [
        line("n1:1", "create", "K", "acme", 0, "P1"),
        line("n2:1", "create", "K", "acme", 100, "P2"),
        line("n1:2", "expire", "K", "-", 99),
        line("n1:3", "expire", "K", "-", 101),
        line("n3:1", "hit", "K", "acme", 500, "P2"),
    ]
    assert causes("\n".join(history), skew_s=5) == ["n3:1 HIT_AFTER_EXPIRE high"]


def test_as_many_ends_as_lives_have_ended_them_all() -> None:
    history = [
        line("n1:1", "create", "K", "acme", 97, "P1"),
        line("n2:1", "create", "K", "acme", 100, "P2"),
        line("n1:2", "expire", "K", "-", 98),
        line("n1:3", "expire", "K", "-", 101),
        line("n3:1", "hit", "K", "acme", 500, "P2"),
    ]
    assert causes("\n".join(history), skew_s=5) == ["n3:1 HIT_AFTER_EXPIRE high"]


def test_what_is_not_yet_readable_has_replaced_nothing() -> None:
    history = """
    n1:1 create K acme {tier=l3, loc=a#g1, payload=P1} t=0
    n1:2 create K acme {tier=l3, loc=b#g1, state=pending} t=50
    n1:3 expire K - {tier=l3, loc=a#g1} t=99
    n2:1 hit K acme {tier=l3, payload=P1} t=100
    n2:2 hit K acme {tier=l3, payload=P1} t=105
    """
    assert causes(history, skew_s=5) == ["n2:2 HIT_UNCOMMITTED high"]


def test_a_commit_that_surely_came_later_excuses_nothing() -> None:
    history = """
    n1:1 create K acme {tier=l3, state=pending} t=99
    n2:1 hit K acme {tier=l3} t=100
    n1:2 commit K - {tier=l3} t=106
    """
    assert causes(history, skew_s=5) == ["n2:1 HIT_UNCOMMITTED high"]


def test_the_bytes_that_were_read_say_which_instance_it_was() -> None:
    history = """
    n1:1 create K acme {tier=l3, iso=sA, payload=P1} t=0
    n1:2 expire K - {tier=l3} t=99
    n3:1 create K acme {tier=l3, iso=sA, payload=P2} t=99.5
    n2:1 hit K beta {tier=l3, iso=sB, payload=P1} t=100
    """
    assert causes(history, skew_s=5) == ["n2:1 CROSS_TENANT_REUSE high"]


@pytest.mark.parametrize(("time", "expected"), [(104, []), (106, ["n2:1 HIT_UNCOMMITTED high"])])
def test_a_commit_that_came_after_the_hit_of_another_node(time: float, expected: list[str]) -> None:
    history = f"""
    n1:1 create K acme {{tier=l3, state=pending}} t=0
    n2:1 hit K acme {{tier=l3}} t=100
    n1:2 commit K - {{tier=l3}} t={time}
    """
    assert causes(history, skew_s=5) == expected


@pytest.mark.parametrize(
    ("made", "by", "expected"),
    [
        (96, "n2", []),
        (94, "n2", ["n2:2 HIT_AFTER_INVALIDATE high"]),
        (99, "n1", ["n2:1 HIT_AFTER_INVALIDATE high"]),
    ],
)
def test_an_invalidation_about_when_another_node_made_the_entry(made: float, by: str, expected: list[str]) -> None:
    hit = "n2:2" if by == "n2" else "n2:1"
    history = f"""
    {by}:1 create K acme {{tier=l3}} t={made}
    n1:2 invalidate * acme {{tier=l3, scope=store}} t=100
    {hit} hit K acme {{tier=l3}} t=500
    """
    assert causes(history, skew_s=5) == expected


def test_an_order_to_the_fleet_about_when_the_entry_was_made() -> None:
    for made, expected in ((96, []), (94, ["n1:2 HIT_AFTER_INVALIDATE high"])):
        parsed = scenario(f"n1:1 create K acme t={made}\nn1:2 hit K acme t=500", skew_s=5)
        first = parsed.steps[0][1]
        assert isinstance(first, Event)
        made_us = next(one.time_us for _, one in parsed.steps if isinstance(one, Event) and one.type == "create")
        fact = Fact(id="f", effective_at_us=made_us + (100 - made) * 1_000_000, body=InvalidationFact(op_id="o"))
        history = History(parsed.settings)
        history.take(fact)
        for _, record in parsed.steps:
            history.take(record)
        assert [
            f"{parsed.labels[one.subject]} {one.cause} {one.severity}" for one in history.final.values()
        ] == expected


@pytest.mark.parametrize(
    "history",
    [
        # what the node of the entry did a minute before the hit comes after it: records that waited in a spool
        "n1:1 create K acme {tier=l3, payload=P1} t=0\n"
        "n2:1 hit K acme {tier=l3, payload=P2} t=100\n"
        "n1:2 create K acme {tier=l3, payload=P2} t=60",
        "n1:1 create K acme {tier=l3, payload=P1} t=0\n"
        "n1:2 expire K - {tier=l3} t=50\n"
        "n2:1 hit K acme {tier=l3, payload=P2} t=100\n"
        "n1:3 create K acme {tier=l3, payload=P2} t=60",
        "n1:1 create K acme {tier=l3, state=pending} t=0\n"
        "n2:1 hit K acme {tier=l3} t=100\n"
        "n1:2 commit K - {tier=l3} t=50",
        # found to be right, then found to be wrong, then cleared
        "n1:1 create K acme {tier=l3} t=0\n"
        "n2:1 hit K acme {tier=l3} t=100\n"
        "n1:2 expire K - {tier=l3} t=50\n"
        "n1:3 create K acme {tier=l3} t=60",
        # an end is not that of an instance that was surely made after it
        "n1:1 create K acme {tier=l3, payload=P1} t=0\n"
        "n2:1 create K acme {tier=l3, payload=P2} t=100\n"
        "n1:2 expire K - {tier=l3} t=50\n"
        "n3:1 hit K acme {tier=l3, payload=P2} t=500",
        "n2:1 create K acme {tier=l3} t=100\nn1:1 expire K - {tier=l3} t=50\nn3:1 hit K acme {tier=l3} t=500",
    ],
)
def test_records_that_were_long_on_their_way_accuse_nobody(history: str) -> None:
    assert causes(history, skew_s=5) == []


def test_an_end_that_was_long_on_its_way_still_accuses() -> None:
    history = """
    n1:1 create K acme {tier=l3} t=0
    n2:1 hit K acme {tier=l3} t=100
    n1:2 expire K - {tier=l3} t=50
    n1:3 create K acme {tier=l3} t=160
    """
    assert causes(history, skew_s=5) == ["n2:1 HIT_AFTER_EXPIRE high"]


@pytest.mark.parametrize(("time", "expected"), [(53, []), (58, ["d1:1 STALE_HANDLE high"])])
def test_a_place_that_changed_hands_about_when_another_node_read_it(time: float, expected: list[str]) -> None:
    history = f"""
    p1:1 create KA acme {{loc=b1#g1}} t=0
    p1:2 expire KA - t=51
    p1:3 create KB acme {{loc=b1#g2}} t=52
    d1:1 hit KA acme {{loc=b1#g1}} t={time}
    """
    assert causes(history, skew_s=5) == expected


def test_two_creates_under_one_key_are_none_when_the_first_had_ended() -> None:
    made = "n1:1 create K acme {tier=l3} t=0\nn2:1 create K acme {tier=l3, in=I2} t=100\n"
    assert causes(made, skew_s=5) == ["n2:1 KEY_UNDERSPECIFIED medium"]
    assert causes(made + "n1:2 expire K - {tier=l3} t=99", skew_s=5) == []
    assert causes(made + "n1:2 expire K - {tier=l3} t=104", skew_s=5) == []
    assert causes(made + "n1:2 expire K - {tier=l3} t=120", skew_s=5) == ["n2:1 KEY_UNDERSPECIFIED medium"]


def test_a_snapshot_remembers_what_is_disputed() -> None:
    parsed = scenario(
        "\n".join(
            (
                line("n1:1", "create", "K", "acme", 0, "P1"),
                line("n2:1", "hit", "K", "acme", 100, "P2"),
                line("n1:2", "create", "K", "acme", 99, "P2"),
            )
        ),
        skew_s=5,
    )
    facts = FactBook()
    judge = Judge(parsed.settings, "d", facts)
    for index, (_, record) in enumerate(parsed.steps):
        assert isinstance(record, Event)
        judge = Judge.load(judge.dump(), parsed.settings, "d", facts)
        found = judge.batch(as_batch(record), index)
    assert [(one.cause, one.status) for one in found] == [("PAYLOAD_MISMATCH", "retracted")]


def test_a_tail_that_comes_when_the_next_incarnation_has_begun_is_no_lie() -> None:
    """What it speaks of may have been forgotten since; what came in time stays what it was found to be."""
    late = "n1:1 create K acme t=0\nn1/i2:1 node_start t=10\nn1:2 hit K9 acme t=1"
    assert causes(late) == ["n1:2 UNATTRIBUTED_HIT low"]
    timely = "n1:1 create K acme t=0\nn1:2 hit K9 acme t=1\nn1/i2:1 node_start t=10\nn2:1 hit K9 acme {tier=l3} t=11\n"
    gap = "n1/i2:3 hit K acme {tier=disk} t=12\nn1/i2:2 create K8 acme t=11"
    assert causes(timely + gap)[0] == "n1:2 HIT_UNKNOWN_ENTRY high"


def test_what_was_lost_after_a_hit_excuses_nothing() -> None:
    """A gap behind a hit cannot have held its create, even when it is given up."""
    history = "n1:1 create K1 acme t=0\nn1:2 hit K9 acme t=1\nn1:5 hit K1 acme t=2\nn1:6 hit K1 acme t=200000"
    assert causes(history) == ["n1:2 HIT_UNKNOWN_ENTRY high", "n1:5 STREAM_GAP medium"]
    before = "n1:1 create K1 acme t=0\nn1:5 hit K9 acme t=2\nn1:6 hit K1 acme t=200000"
    assert causes(before) == ["n1:5 UNATTRIBUTED_HIT low", "n1:5 STREAM_GAP medium"]
