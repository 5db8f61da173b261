"""One root cause pages once: what is told of incidents, and when."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.findings import Finding, Party
from kvtrail.schemas.notifications import Notification
from kvtrail.schemas.paging import HeartbeatConfig, NotifyConfig
from kvtrail.streams.heartbeat_watch import HeartbeatWatch
from kvtrail.streams.notifier_policy import Pager

S = 1_000_000
NOW = 1_760_000_000 * S


def finding(name: str, revision: int = 1, **values: Any) -> Finding:
    tenant = values.pop("tenant", "contoso")
    given_values = {
        "status": "open", "rule": "R", "cause": "CROSS_TENANT_REUSE", "severity": Severity.HIGH, "title": "t",
        "cause_id": "c", "dimension": "tenant_id", "store": "kv", "subject": name, "event_time_us": NOW,
        "creator": Party(tenant_id="northwind"), "requester": Party(tenant_id=tenant, event_id=name),
    }  # fmt: skip
    return Finding(id=name, revision=revision, **{**given_values, **values})


class Clock:
    """A pager and a time that only moves when told to."""

    def __init__(self, **settings: Any) -> None:
        self.settings = NotifyConfig(**{"growth_interval_s": 600, "group_wait_s": 2, **settings})
        self.pager = Pager(self.settings, "test")
        self.now = NOW

    def take(self, *findings: Finding) -> None:
        for one in findings:
            self.pager.take(one, self.now, self.now)

    def after(self, seconds: float) -> list[Notification]:
        self.now += round(seconds * S)
        return self.pager.decide(self.now)

    def restart(self) -> None:
        """A new process that restores a snapshot."""
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(self.pager.dump()))
        self.pager = Pager(self.settings, "test")
        self.pager.load(state)


def kinds(told: list[Notification]) -> list[tuple[str, int, int]]:
    return [(one.kind, one.episode, one.revision) for one in told]


def test_a_thousand_findings_of_one_cause_are_one_page_and_one_of_growth() -> None:
    clock = Clock()
    told: list[Notification] = []
    for number in range(1000):
        clock.take(finding(f"f{number}"))
        told += clock.after(1)
    assert kinds(told) == [("opened", 1, 1), ("grown", 1, 2)]
    assert told[0].findings == 2, "what came while it was waited for is told with it"
    assert told[1].reason == "602 findings instead of 2", "ten times as many, but not at once"
    assert told[0].title == "CROSS_TENANT_REUSE in kv: the key does not cover tenant, 2 findings, 2 tenants"
    assert told[0].example == "f0" and told[0].tenants == ("contoso", "northwind")


def test_what_is_saved_does_not_change_while_it_is_written() -> None:
    pager = Pager(NotifyConfig(), "test")
    pager.take(finding("one"), S, S)
    dumped = pager.dump()
    before = msgspec.msgpack.encode(dumped)
    pager.take(finding("two", cause_id="another"), 2 * S, 2 * S)
    assert msgspec.msgpack.encode(dumped) == before


def test_a_raised_severity_is_told_at_once_and_once() -> None:
    clock = Clock()
    clock.take(finding("f"))
    (opened,) = clock.after(3)
    clock.take(finding("f", 2, severity=Severity.CRITICAL))
    (grown,) = clock.after(0)
    assert (grown.kind, grown.severity, grown.previous_severity) == ("grown", Severity.CRITICAL, Severity.HIGH)
    assert grown.since_us == opened.since_us
    assert clock.after(10_000) == []


def test_another_tenant_is_told_when_the_interval_is_over() -> None:
    clock = Clock()
    clock.take(finding("f"))
    assert kinds(clock.after(3)) == [("opened", 1, 1)]
    clock.take(finding("g", tenant="fabrikam"))
    assert clock.after(1) == []
    (grown,) = clock.after(600)
    assert grown.reason == "3 tenants instead of 2"
    clock.take(finding("h", tenant="fabrikam"))
    assert clock.after(6000) == [], "nobody new"


def test_an_incident_is_over_when_every_finding_is_retracted_and_comes_back_as_another_episode() -> None:
    clock = Clock()
    clock.take(finding("f"), finding("g"))
    clock.after(3)
    clock.take(finding("f", 2, status="retracted"))
    assert clock.after(1) == []
    clock.take(finding("g", 2, status="retracted"))
    (resolved,) = clock.after(0)
    assert (resolved.kind, resolved.reason, resolved.findings) == ("resolved", "every finding was retracted", 0)
    assert resolved.title == "CROSS_TENANT_REUSE in kv: the key does not cover tenant, over"
    clock.take(finding("h"))
    assert kinds(clock.after(3)) == [("opened", 2, 1)]


def test_what_is_taken_back_before_it_is_told_is_never_told() -> None:
    clock = Clock()
    clock.take(finding("f"))
    clock.after(1)
    clock.take(finding("f", 2, status="retracted"))
    assert clock.after(100) == []


def test_what_is_too_little_severe_pages_nobody_until_it_is_raised() -> None:
    clock = Clock()
    clock.take(finding("f", severity=Severity.MEDIUM))
    assert clock.after(100) == []
    clock.take(finding("f", 2, severity=Severity.HIGH))
    assert kinds(clock.after(3)) == [("opened", 1, 1)]
    clock.take(finding("f", 3, severity=Severity.LOW))
    assert kinds(clock.after(3)) == [("resolved", 1, 2)]


def test_a_quiet_incident_is_over_and_what_comes_later_pages_again() -> None:
    clock = Clock(quiet_s=3600)
    clock.take(finding("f"))
    clock.after(3)
    assert clock.after(3500) == []
    clock.take(finding("g"))
    assert clock.after(3500) == [], "not quiet yet"
    assert kinds(clock.after(200)) == [("resolved", 1, 2)]
    assert clock.after(100_000) == []
    clock.take(finding("h", event_time_us=clock.now))
    (opened,) = clock.after(3)
    assert (opened.episode, opened.findings) == (2, 1), "what was over does not count again"


def test_what_was_told_before_the_state_was_lost_is_over_in_the_end_although_its_findings_are_history() -> None:
    clock = Clock(quiet_s=3600, max_age_s=3600)
    silence = HeartbeatWatch(HeartbeatConfig(), 1, 0).incident("test", [0])
    told = [clock.pager.tell("opened", silence, "no worker", clock.now, "silent")]
    clock.take(finding("over", cause_id="d"))
    told += clock.after(3)
    clock.take(finding("over", 2, cause_id="d", status="retracted"))
    clock.take(finding("f"))
    told += clock.after(3)
    clock.take(finding("g", severity=Severity.CRITICAL))
    told += clock.after(1000)
    clock.pager = Pager(clock.settings, "test", since_us=clock.now)
    for one in told:
        clock.pager.know(one)
    assert clock.after(3500) == [], "last told of less than an hour ago"
    (resolved,) = clock.after(200)
    assert (resolved.kind, resolved.cause_id, resolved.revision) == ("resolved", "c", 3)
    assert clock.after(100_000) == []
    assert [one.cause for one in clock.pager.told.values() if one.is_open] == ["PIPELINE_SILENT"]


def test_history_pages_nobody() -> None:
    clock = Clock(max_age_s=3600)
    day = 86400 * S
    clock.take(finding("backfilled", event_time_us=NOW - day))
    clock.take(finding("late", event_time_us=NOW - 3000 * S, cause_id="d"))
    # A gap carries the time at which its lane began, which says nothing about when it was found.
    clock.take(finding("gap", event_time_us=NOW - day, cause_id="e", subject="lane:x", creator=None, requester=None))
    assert [one.cause_id for one in clock.after(3)] == ["d", "e"]
    assert clock.pager.historical == 1


def test_what_was_there_long_before_the_first_notifier_pages_nobody() -> None:
    clock = Clock()
    clock.pager.since_us = NOW - 3600 * S
    clock.pager.take(finding("old", event_time_us=NOW - 4000 * S), NOW - 4000 * S, NOW)
    clock.pager.take(finding("new", event_time_us=NOW - 3000 * S), NOW - 3000 * S, NOW)
    (opened,) = clock.after(3)
    assert opened.findings == 1


def test_ids_are_stable_and_differ() -> None:
    def run() -> list[str]:
        clock = Clock(growth_interval_s=0)
        told = []
        for name in "fgh":
            clock.take(finding(name, tenant=name))
            told += clock.after(3)
        return [one.id for one in told]

    assert run() == run()
    assert len(set(run())) == 3


steps = st.lists(
    st.tuples(
        st.sampled_from("fgh"), st.integers(1, 5), st.sampled_from(["open", "retracted"]),
        st.sampled_from([Severity.MEDIUM, Severity.HIGH, Severity.CRITICAL]), st.sampled_from("abc"),
        st.sampled_from([0, 1, 5, 700]),
    ),
    max_size=25,
)  # fmt: skip


@given(steps, st.sets(st.integers(0, 25)), st.booleans())
def test_no_restart_changes_what_is_told(found: list[Any], restarts: set[int], twice: bool) -> None:
    """A new process restores an older snapshot, knows what was told since, and is given the same findings again."""

    def run(restarting: bool) -> list[str]:
        clock, told = Clock(), []
        saved, since = clock.pager.dump(), list[Finding]()
        for number, (name, revision, status, severity, tenant, pause) in enumerate(found):
            one = finding(name, revision, status=status, severity=severity, tenant=tenant)
            since.append(one)
            clock.take(one)
            told += clock.after(pause)
            if restarting and number in restarts:
                if twice:
                    clock.restart()
                    continue
                known = dict(clock.pager.told)
                fresh = Pager(clock.settings, "test")
                fresh.load(msgspec.msgpack.decode(msgspec.msgpack.encode(saved)))
                for each in known.values():
                    fresh.know(each)
                changed = dict(clock.pager._changed)
                clock.pager = fresh
                clock.take(*since)
                # When something began to differ is the only thing that a restart may tell otherwise: it waits anew.
                fresh._changed.update({cause: at for cause, at in changed.items() if cause in fresh._changed})
        told += clock.after(10_000)
        return [one.id + one.kind + one.severity for one in told]

    assert run(True) == run(False)


def test_a_producers_clock_that_is_off_neither_hides_an_incident_nor_dates_it() -> None:
    clock = Clock()
    clock.take(
        finding("f1"), finding("f2", event_time_us=4_949_683_200 * S), finding("f3", event_time_us=0),
        finding("f4", event_time_us=-S),
    )  # fmt: skip
    (opened,) = clock.after(3)
    assert opened.findings == 4
    assert opened.first_us == opened.last_us == NOW


def test_an_incident_that_begins_with_a_clock_that_is_off_is_dated_by_the_broker() -> None:
    clock = Clock()
    clock.take(finding("f1", event_time_us=4_949_683_200 * S))
    (opened,) = clock.after(3)
    assert opened.first_us == opened.last_us == NOW
