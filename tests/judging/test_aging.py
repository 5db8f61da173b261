"""A long history of a fleet that stays as large as it is: the state does too, and no verdict changes for it."""

from collections.abc import Iterator

import pytest
from kvtrail.judging.aging import Aging
from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import as_batch
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.events import Body, Commit, Create, Event, Expire, Hit, Invalidate, NodeStart
from kvtrail.schemas.facts import Fact, Tick
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.homes import node_home, shared_home
from kvtrail.schemas.identity import Identity

HOUR_US = 3_600_000_000
START_US = 1_700_000_000_000_000
SETTINGS = JudgingConfig(horizon_s=3600)


class Fleet:
    """One node lives on, one pod an hour takes the place of another; templates, places and lanes change with them."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.seqs: dict[tuple[str, str, str], int] = {}

    def emit(
        self, node: str, incarnation: str, body: Body, key: str = "", tier: str = "gpu", **fields: object
    ) -> Event:
        home = shared_home("pool", key) if tier == "shared" else node_home(node)
        lane = (node, incarnation, home)
        self.seqs[lane] = self.seqs.get(lane, 0) + 1
        self.now_us += 1_000_000
        return Event(
            node=node, incarnation=incarnation, home=home, seq=self.seqs[lane], time_us=self.now_us, body=body,
            store="pool", tier=tier, key=key, **fields,  # type: ignore[arg-type]  # of an event, by name
        )  # fmt: skip

    def hour(self, number: int) -> Iterator[Event]:
        """What happens in an hour: everything that leaves something behind."""
        pod, life = f"pod-{number}", f"i{number}"
        identity = Identity(
            tenant_id="acme",
            template_id="chat",
            template_digest=f"{number:064x}",
            token_ids_digest=f"{number + 1:064x}",
        )
        kept = Identity(tenant_id="acme", template_id="kept", token_ids_digest=f"{7:064x}")
        if not number:
            yield self.emit("stays", "i0", NodeStart())
            yield self.emit("stays", "i0", Create(tokens=64, payload_digest="ab" * 32), "kept", identity=kept)
        for node, incarnation in ((pod, "i0"), ("restarts", life)):
            yield self.emit(node, incarnation, NodeStart())
            for n in range(8):
                key, place = f"{number}-{n}", f"{incarnation}-{number}-{n}"
                yield self.emit(node, incarnation, Create(tokens=64), key, identity=identity, place=place)
                yield self.emit(node, incarnation, Hit(reused_tokens=64), key, identity=identity)
            yield self.emit(node, incarnation, Expire(reason="capacity"), f"{number}-1")
            yield self.emit(node, incarnation, Invalidate(scope="node", where={"template_digest": f"{number:064x}"}))
            for part in ("self", "cross"):  # of a request whose end is never told
                key, request, reused = f"{number}-{part}", f"{node}-{number}", Hit(reused_tokens=64)
                yield self.emit(node, incarnation, Create(tokens=64), key, identity=identity, part=part)
                yield self.emit(node, incarnation, reused, key, identity=identity, part=part, request_id=request)
            yield self.emit(node, incarnation, Create(tokens=64, state="pending"), f"{number}-p", identity=identity)
            yield self.emit(node, incarnation, Commit(), f"{number}-p")
            yield self.emit(node, incarnation, Create(tokens=64), f"{number}-s", "shared", identity=identity)
            yield self.emit("stays", "i0", Hit(reused_tokens=64), f"{number}-s", "shared", identity=identity)
            yield self.emit(node, incarnation, Expire(reason="ttl"), f"{number}-s", "shared")
            yield self.emit("stays", "i0", Hit(reused_tokens=64), f"unknown-{number}", "shared", identity=identity)
        self.seqs["stays", "i0", "n:stays"] += 1  # lost
        wrong = Hit(reused_tokens=64, payload_digest="cd" * 32)
        yield self.emit("stays", "i0", wrong, "kept", identity=kept)
        self.now_us = START_US + (number + 1) * HOUR_US


def play(judge: Judge, fleet: Fleet, hours: range) -> list[Finding]:
    found: list[Finding] = []
    for number in hours:
        for event in fleet.hour(number):
            found += judge.batch(as_batch(event), event.time_us)
    return found


def sizes(judge: Judge) -> dict[str, int]:
    """How much there is of everything that a judge keeps."""
    found = {
        "identities": len(judge.identities.values), "lanes": len(judge.lanes), "homes": len(judge.homes),
        "pairs": len(judge.comparator.memo), "express": len(judge._express), "stated": len(judge.stream.stated),
        "bytes": len(judge.dump()),
    }  # fmt: skip
    for home in judge.homes.values():
        for name, count in (
            ("rows", sum(1 for _ in home.addresses)), ("ended", len(home.addresses.ended)),
            ("orphans", len(home.addresses.orphans)), ("doubts", len(home.addresses.doubts)),
            ("places", len(home.places.owners)), ("barriers", len(home.barriers.all)),
            ("memo", len(home.barriers.memo)), ("recent", len(home.recent)),
            ("held", len(home.held_order)), ("requests", len(home.requests)),
            ("parts", sum(map(len, home.requests.values()))), ("gapped", len(home.gapped)),
            ("payloads", len(home.payloads._rows or ())), ("nodes", len(home.nodes)),
        ):  # fmt: skip
            found[name] = found.get(name, 0) + count
    return found


def test_the_state_is_as_large_as_what_lives() -> None:
    """Past the longest that anything is kept, a fleet of a hundred days takes no more than one of fifty."""
    judge, fleet = Judge(SETTINGS, "d", FactBook()), Fleet()
    play(judge, fleet, range(45))
    before = sizes(judge)
    play(judge, fleet, range(45, 120))
    after = sizes(judge)
    # A gap that is given up stays reported: two numbers each, for as long as its lane lives.
    assert {name: (count, after[name]) for name, count in before.items() if after[name] > count * 1.25 + 8} == {}


def test_what_lives_is_never_let_go() -> None:
    judge, fleet = Judge(SETTINGS, "d", FactBook()), Fleet()
    play(judge, fleet, range(60))
    (row,) = [row for row in judge.homes["n:stays"].addresses if row.key_text == "kept"]
    assert row.end is None


def test_what_an_incarnation_that_is_forgotten_left_on_disk_stays_unknown() -> None:
    judge, fleet = Judge(SETTINGS, "d", FactBook()), Fleet()
    events = [
        fleet.emit("n", "i1", NodeStart()),
        fleet.emit("n", "i2", NodeStart(surviving_tiers=("nvme",))),
    ]
    for hour in range(5):
        fleet.now_us = START_US + hour * HOUR_US
        events.append(fleet.emit("n", "i2", Expire(reason="ttl"), "other", tier="nvme"))
    identity = Identity(tenant_id="acme", token_ids_digest=f"{1:064x}")
    events.append(fleet.emit("n", "i2", Hit(reused_tokens=64), "K", tier="nvme", identity=identity))
    found = [finding for event in events for finding in judge.batch(as_batch(event), event.time_us)]
    assert [lane.incarnation for lane in judge.lanes.values()] == ["i2"]
    assert [finding.cause for finding in found] == ["UNATTRIBUTED_HIT"]


def test_letting_go_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = play(Judge(SETTINGS, "d", FactBook()), Fleet(), range(12))
    monkeypatch.setattr(Aging, "due", lambda *_: False)
    kept = play(Judge(SETTINGS, "d", FactBook()), Fleet(), range(12))
    assert swept == kept
    assert {finding.cause for finding in swept} >= {"PAYLOAD_MISMATCH", "STREAM_GAP", "UNATTRIBUTED_HIT"}


def test_a_restored_judge_lets_go_of_the_same() -> None:
    facts = FactBook()
    straight, restored = Judge(SETTINGS, "d", facts), Judge(SETTINGS, "d", facts)
    one, other = Fleet(), Fleet()
    for number in range(40):
        hours = range(number, number + 1)
        assert play(straight, one, hours) == play(restored, other, hours)
        restored = Judge.load(restored.dump(), SETTINGS, "d", facts)
    assert restored.dump() == straight.dump()


def test_ticks_leave_nothing_behind() -> None:
    facts = FactBook()
    before = {name: len(value) for name, value in vars(facts).items() if hasattr(value, "__len__")}
    for n in range(100):
        assert facts.add(Fact(id=f"tick-{n}", effective_at_us=n, body=Tick()), n)
    assert {name: len(value) for name, value in vars(facts).items() if hasattr(value, "__len__")} == before


def test_a_life_that_is_forgotten_is_not_what_comes_after_the_one_before_it() -> None:
    """As in a judge that is made from a snapshot."""
    judge, fleet = Judge(SETTINGS, "d", FactBook()), Fleet()
    identity = Identity(tenant_id="acme", template_digest="ab" * 32)
    events = [
        fleet.emit("gone", "i1", Create(tokens=64), "k", "shared", identity=identity),
        fleet.emit("gone", "i2", Hit(reused_tokens=64), "k", "shared", identity=identity),
    ]
    for _ in range(40):
        fleet.now_us += HOUR_US
        events.append(fleet.emit("stays", "i0", Hit(reused_tokens=64), "k", "shared", identity=identity))
    for event in events:
        judge.batch(as_batch(event), event.time_us)
    (home,) = judge.homes.values()
    assert [(lane.incarnation, lane.next) for lane in home.nodes["gone"].lanes] == [("i1", None)]
