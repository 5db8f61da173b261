"""Deliveries over real sockets: refusals, silence, slowness, and long absences of those who are told."""

import asyncio
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.export import schemas
from kvtrail.schemas.notifications import Attempt, Entry, Kind, Notification, notification_id
from kvtrail.schemas.paging import AlertmanagerTarget, NotifyConfig, WebhookTarget
from kvtrail.streams.metrics import Registry
from kvtrail.streams.notifier_courier import Courier
from kvtrail.streams.notifier_journal import Journal
from kvtrail.streams.notifier_queue import TargetQueue
from kvtrail.streams.notifier_targets import Alertmanager, Target, Webhook, new_session, targets_of
from kvtrail.tests.streams.stub_receiver import Plan, Receiver, StubAlertmanager
from pydantic import SecretStr

NOW_US = time.time_ns() // 1000


def told(kind: Kind = "opened", revision: int = 1, cause: str = "c", episode: int = 1, **values: Any) -> Notification:
    return Notification(
        id=notification_id("test", cause, episode, revision), kind=kind, deployment="test", cause_id=cause,
        episode=episode, revision=revision, at_us=NOW_US, since_us=NOW_US, cause="CROSS_TENANT_REUSE",
        **{"severity": Severity.HIGH, "title": "this key does not cover tenant", "reason": "found", **values},
    )  # fmt: skip


class Deliveries:
    """Couriers in a loop of their own thread's, and what they wrote down."""

    def __init__(self, *targets: Target, standing: Iterable[Notification] = (), retry_cap_s: float = 0.05) -> None:
        self.entries: list[Entry] = []
        self.registry = Registry()
        self._targets, self._standing, self._cap = targets, standing, retry_cap_s

    async def __aenter__(self) -> "Deliveries":
        self._session = new_session()
        self.couriers = [
            Courier(
                target, self.entries.append, lambda: self._standing, retry_cap_s=self._cap, metrics=self.registry,
                session=self._open,
            )
            for target in self._targets
        ]  # fmt: skip
        self._tasks = [asyncio.create_task(one.run()) for one in self.couriers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        return self._session

    def put(self, *notifications: Notification) -> None:
        for one in notifications:
            for courier in self.couriers:
                courier.put(one)

    def statuses(self, target: str = "hook") -> list[str]:
        return [one.status for one in self.entries if isinstance(one, Attempt) and one.target == target]

    async def until(self, condition: Callable[[], object], deadline_s: float = 30) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, self.entries
            await asyncio.sleep(0.01)


def webhook(receiver: Receiver, name: str = "hook", **settings: Any) -> Webhook:
    return Webhook(name, WebhookTarget(url=SecretStr(f"{receiver.url}/hook?key=hush"), **settings))


def test_a_webhook_gets_the_documented_json_signed() -> None:
    async def run() -> None:
        with Receiver() as receiver:
            async with Deliveries(webhook(receiver, secret=SecretStr("hush"))) as deliveries:
                deliveries.put(told(tenants=("a", "b"), tenant_count=2))
                await deliveries.until(lambda: deliveries.statuses() == ["delivered"])
            (request,) = receiver.requests
            jsonschema.validate(request.body, schemas()["notification"])
            assert request.path == "/hook?key=hush"
            assert request.headers["X-Kvtrail-Id"] == request.body["id"]
            signed = f"{request.headers['X-Kvtrail-Timestamp']}.".encode() + request.raw
            wanted = "sha256=" + hmac.new(b"hush", signed, hashlib.sha256).hexdigest()
            assert request.headers["X-Kvtrail-Signature"] == wanted
            assert abs(int(request.headers["X-Kvtrail-Timestamp"]) - time.time()) < 60

    asyncio.run(run())


@pytest.mark.parametrize("status", [500, 503, 404, 401, 302, 0])
def test_what_is_not_taken_is_sent_again_in_order_under_the_same_id(status: int) -> None:
    async def run() -> None:
        with Receiver() as receiver:
            receiver.plan(Plan(status), Plan(status), Plan(status))
            async with Deliveries(webhook(receiver)) as deliveries:
                deliveries.put(told(), told(cause="d"))
                await deliveries.until(lambda: deliveries.statuses().count("delivered") == 2)
            ids = [request.headers["X-Kvtrail-Id"] for request in receiver.requests]
            assert ids == [told().id] * 4 + [told(cause="d").id]
            assert deliveries.statuses() == ["failed"] * 3 + ["delivered"] * 2
            failed = [one for one in deliveries.entries if isinstance(one, Attempt) and one.status == "failed"]
            assert [one.attempt for one in failed] == [1, 2, 3] and failed[0].code == status
            assert not any("hush" in one.detail or "/hook" in one.detail for one in failed)

    asyncio.run(run())


def test_what_will_never_be_taken_is_given_up_and_the_next_goes_on() -> None:
    async def run() -> None:
        with Receiver() as receiver:
            receiver.plan(Plan(400))
            async with Deliveries(webhook(receiver)) as deliveries:
                deliveries.put(told(), told(cause="d"))
                await deliveries.until(lambda: deliveries.statuses() == ["gave_up", "delivered"])

    asyncio.run(run())


def test_retry_after_is_kept() -> None:
    async def run() -> None:
        with Receiver() as receiver:
            receiver.plan(Plan(429, (("Retry-After", "1"),)))
            async with Deliveries(webhook(receiver)) as deliveries:
                deliveries.put(told())
                await deliveries.until(lambda: deliveries.statuses() == ["failed", "delivered"])
            first, second = receiver.requests
            assert second.at - first.at >= 1

    asyncio.run(run())


def test_a_target_that_hangs_is_left_after_its_timeout_and_nobody_else_waits_for_it() -> None:
    async def run() -> None:
        with Receiver() as slow, Receiver() as quick:
            release = threading.Event()
            slow.plan(Plan(wait=release))
            async with Deliveries(webhook(slow, timeout_s=0.5), webhook(quick, "quick")) as deliveries:
                deliveries.put(told(), told(cause="d"), told(cause="e"))
                await deliveries.until(lambda: deliveries.statuses("quick") == ["delivered"] * 3)
                assert deliveries.statuses() == []
                await deliveries.until(lambda: deliveries.statuses() == ["failed"] + ["delivered"] * 3)
            release.set()

    asyncio.run(run())


def test_a_target_that_was_away_for_long_hears_what_stands_and_not_every_step_to_it() -> None:
    async def run() -> None:
        with Receiver() as receiver:
            receiver.stop()
            async with Deliveries(webhook(receiver)) as deliveries:
                deliveries.put(told())
                await deliveries.until(lambda: deliveries.statuses().count("failed") >= 3)
                deliveries.put(*(told("grown", revision, findings=10**revision) for revision in range(2, 8)))
                deliveries.put(told(cause="d"), told("resolved", 2, cause="d"))
                deliveries.put(told(cause="e"), told("grown", 2, cause="e", findings=99))
                receiver.start()
                await deliveries.until(lambda: deliveries.statuses().count("delivered") == 3)
                assert [(body["kind"], body["cause_id"], body["findings"]) for body in receiver.bodies()] == [
                    ("opened", "c", 0), ("grown", "c", 10**7), ("opened", "e", 99),
                ]  # fmt: skip
                assert deliveries.statuses().count("superseded") == 5 + 2 + 1

    asyncio.run(run())


def test_an_alertmanager_is_told_what_stands_until_it_is_over() -> None:
    async def run() -> None:
        with StubAlertmanager() as manager:
            target = Alertmanager(
                "am", AlertmanagerTarget(url=manager.url, token=SecretStr("hush"), resend_s=0.2, hold_s=60),
                "https://console/",
            )  # fmt: skip
            standing: list[Notification] = []
            async with Deliveries(target, standing=standing) as deliveries:
                standing[:] = [told()]
                deliveries.put(told())
                await deliveries.until(lambda: len(manager.requests) >= 4)
                (firing,) = manager.firing(time.time() + 30)
                assert firing == {
                    "alertname": "KvtrailIncident", "severity": "high", "deployment": "test", "cause_id": "c",
                    "cause": "CROSS_TENANT_REUSE",
                }  # fmt: skip
                assert manager.firing(time.time() + 90) == [], "it ends by itself where nobody says it again"
                assert manager.requests[0].headers["Authorization"] == "Bearer hush"
                assert manager.bodies()[0][0]["generatorURL"] == "https://console/incidents/c"
                louder = told("grown", 2, severity=Severity.CRITICAL, previous_severity=Severity.HIGH)
                standing[:] = [louder]
                deliveries.put(louder)
                await deliveries.until(lambda: deliveries.statuses("am").count("delivered") == 2)
                assert [each["severity"] for each in manager.firing(time.time() + 30)] == ["critical"]
                standing.clear()
                deliveries.put(told("resolved", 3, severity=Severity.CRITICAL))
                await deliveries.until(lambda: deliveries.statuses("am").count("delivered") == 3)
                assert manager.firing(time.time() + 1) == []

    asyncio.run(run())


def test_what_stands_is_said_again_although_one_notification_is_not_taken() -> None:
    async def run() -> None:
        with StubAlertmanager() as manager:
            target = Alertmanager("am", AlertmanagerTarget(url=manager.url, resend_s=0.1, hold_s=60))
            async with Deliveries(target, standing=[told()], retry_cap_s=30) as deliveries:
                await deliveries.until(lambda: manager.requests)
                manager.plan(Plan(500))
                deliveries.put(told(cause="d"))
                await deliveries.until(lambda: len(manager.requests) >= 5)
                assert {each["cause_id"] for each in manager.firing(time.time() + 30)} >= {"c"}

    asyncio.run(run())


def test_targets_without_a_url_are_none_and_urls_never_show() -> None:
    config = NotifyConfig(
        webhooks={"ops": WebhookTarget(url=SecretStr("https://x/hush")), "unset": WebhookTarget()},
        alertmanagers={"am": AlertmanagerTarget()},
    )
    assert [target.name for target in targets_of(config)] == ["ops"]
    assert "hush" not in repr(config)


kinds = st.sampled_from(["opened", "grown", "resolved", "delivered", "failed"])


@given(st.lists(st.tuples(st.sampled_from("cd"), kinds), max_size=30), st.integers(0, 30))
@example([("c", "opened"), ("c", "grown")], 1)
@example([("d", "opened"), ("c", "opened"), ("c", "grown"), ("c", "grown")], 2)
@example([("c", step) for step in ("opened", "failed", "resolved", "opened", "resolved")], 9)
def test_the_queue_told_twice_is_the_queue(steps: list[tuple[str, str]], restored_at: int) -> None:
    """Entries that are read back after a restart, into a state that has some of them, change nothing."""
    queue, history = TargetQueue(), list[Notification | Attempt]()
    at: dict[str, tuple[int, int, bool]] = {}
    heard: dict[str, bool] = {}
    for number, (cause, step) in enumerate(steps):
        episode, revision, stands = at.get(cause, (0, 0, False))
        if step in ("delivered", "failed"):
            if not queue.waiting:
                continue
            attempt = became(queue, "delivered" if step == "delivered" else "failed")
            if step == "delivered":
                heard[attempt.cause_id] = queue.waiting[0].notification.is_open
            queue.note(attempt)
            history.append(attempt)
        else:
            if stands is (step == "opened"):
                continue
            at[cause] = (episode + 1, 1, True) if step == "opened" else (episode, revision + 1, step == "grown")
            notification = told(step, at[cause][1], cause, at[cause][0])  # type: ignore[arg-type]  # one of its values
            history += [notification, *decide(queue, notification)]
        if number == restored_at:
            restore(queue, history)
    again = TargetQueue()
    restore(again, history)
    for cause in "cd":
        mine = [one.notification for one in queue.waiting if one.notification.cause_id == cause]
        assert mine == [one.notification for one in again.waiting if one.notification.cause_id == cause]
        assert [one.order for one in mine] == sorted({one.order for one in mine})
        assert len(mine) <= 4
        if mine:
            heard[cause] = mine[-1].is_open
        assert heard.get(cause, False) == (cause in at and at[cause][2]), "what it hears last is what is"


@pytest.mark.parametrize("after", ["grown", "resolved"])
def test_what_was_on_its_way_when_a_life_ended_is_told_again_as_itself(after: Kind) -> None:
    """It was taken, perhaps: it must neither be told under another id nor stand for ever."""
    queue, history = TargetQueue(), list[Notification | Attempt]([told()])
    assert decide(queue, told()) == []
    queue.waiting[0].attempts += 1  # on its way, and nobody will write down what became of it
    history += [told(after, 2), *decide(queue, told(after, 2))]
    again = TargetQueue()
    restore(again, history)
    assert [(one.notification.id, one.notification.kind) for one in again.waiting] == [
        (told().id, "opened"), (told(after, 2).id, after),
    ]  # fmt: skip


@pytest.mark.parametrize("after", ["grown", "resolved"])
def test_what_an_earlier_life_may_have_told_is_not_left_out_by_the_next(after: Kind) -> None:
    """More than one may have been taken without a record, where the broker was away."""
    again = TargetQueue()
    restore(again, [told(cause="d"), told()])
    assert decide(again, told(after, 2)) == []
    assert [one.notification.id for one in again.waiting] == [told(cause="d").id, told().id, told(after, 2).id]


def decide(queue: TargetQueue, notification: Notification) -> list[Attempt]:
    """As a courier does: what is superfluous now is written down."""
    superfluous = [superseded(one) for one in queue.put(notification)]
    for attempt in superfluous:
        queue.note(attempt)
    return superfluous


def superseded(one: Notification) -> Attempt:
    return Attempt(
        id=one.id, target="t", attempt=0, at_us=0, status="superseded", cause_id=one.cause_id, episode=one.episode,
        revision=one.revision,
    )  # fmt: skip


def became(queue: TargetQueue, status: Literal["delivered", "failed"]) -> Attempt:
    """Of the first in line."""
    one = queue.waiting[0].notification
    return Attempt(
        id=one.id, target="t", attempt=queue.waiting[0].attempts + 1, at_us=0, status=status, cause_id=one.cause_id,
        episode=one.episode, revision=one.revision,
    )  # fmt: skip


def restore(queue: TargetQueue, history: list[Notification | Attempt]) -> None:
    """As the next life does."""
    for entry in history:
        if isinstance(entry, Attempt):
            queue.note(entry)
        else:
            queue.recall(entry)


def test_what_another_one_wrote_meanwhile_is_to_be_read() -> None:
    """A notifier that was taken for dead may write once more; so may the one that took its place."""

    class Producer:
        offsets = iter((5, 6, 9, 10))

        async def send_and_wait(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(offset=next(self.offsets))

    async def run() -> int:
        journal = Journal(Producer())
        journal.next = 5
        writing = asyncio.create_task(journal.run())
        await asyncio.gather(*[journal.put(superseded(told())) for _ in range(4)])
        writing.cancel()
        return journal.next

    assert asyncio.run(run()) == 7
