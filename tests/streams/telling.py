"""What a notifier told somebody unreliable, held against what the findings ask for at the end."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from kvtrail.judging.incidents import fold
from kvtrail.schemas.config import Config, KafkaConfig
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.notifications import Attempt, Decided, Entry, decode_entry, notification_id
from kvtrail.schemas.paging import HeartbeatConfig, NotifyConfig, WebhookTarget
from kvtrail.schemas.topics import FINDINGS, NOTIFICATIONS
from kvtrail.tests.streams.comparison import Difference, difference
from kvtrail.tests.streams.harness import committed, end_offsets, final, read_topic
from kvtrail.tests.streams.stub_receiver import Receiver, Request
from pydantic import SecretStr

TARGET = "hook"


class Hook(Receiver):
    """A webhook that refuses, hangs up before or after it took something, answers late, and, with `absent`, is away now
    and then. `taken` is every body it took, again and again where it was told again."""

    def __init__(self, seed: int, *, absent: bool = False) -> None:
        self.taken: list[dict[str, Any]] = []
        self._chance = Random(seed)
        self._lock = threading.Lock()
        self._over = threading.Event()
        super().__init__()
        if absent:
            threading.Thread(target=self._come_and_go, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        super().__exit__()

    def took(self, request: Request) -> int:
        with self._lock:
            mood, late_s = self._chance.random(), self._chance.uniform(0.2, 2)
            if mood < 0.1:
                return self._chance.choice((500, 503))
            if mood < 0.16:
                return 0
            self.taken.append(request.body)
        if mood < 0.25:
            return 0
        if mood < 0.5:
            self._over.wait(late_s)
        return 200

    def _come_and_go(self) -> None:
        chance = Random(self._chance.random())
        while not self._over.wait(chance.uniform(4, 15)):
            self.stop()
            self._over.wait(chance.uniform(1, 5))
            self.start()


def telling(config: Config, hook: Hook) -> Config:
    """Every incident is told, soon, however old its events are; growth too."""
    notify = NotifyConfig(
        min_severity=Severity.INFO, group_wait_s=0.2, growth_interval_s=0.2, retry_cap_s=0.5, snapshot_s=0.5,
        max_age_s=10 * 365 * 86400, webhooks={TARGET: WebhookTarget(url=SecretStr(hook.url), timeout_s=5)},
    )  # fmt: skip
    return config.model_copy(update={"notify": notify, "heartbeat": HeartbeatConfig(enabled=False)})


class Told(NamedTuple):
    """`notifications`: different ones that were taken; `repeats`: how often one was taken again; `incidents`: that
    stand at the end and of which the target was told; `missing`: of which it was not."""

    notifications: int
    repeats: int
    incidents: int
    missing: int
    differences: list[Difference]


def entries(kafka: KafkaConfig) -> list[Entry]:
    """Everything on `kvtrail.notifications`."""
    return [decode_entry(record.value) for record in read_topic(kafka, NOTIFICATIONS)]


def all_told(config: Config) -> bool:
    """Whether the notifier has read every finding, and its target has taken everything that was decided."""
    done = committed(config.kafka, "kvtrail-notify", FINDINGS)
    ends = end_offsets(config.kafka, FINDINGS)
    read = all(done.get(partition, (0, ""))[0] >= end for partition, end in ends.items())
    return read and not _unsettled(entries(config.kafka))


def told(config: Config, revisions: Iterable[Finding], taken: Sequence[dict[str, Any]]) -> Told:
    """What was taken against what `revisions`, in order, ask for, and against what the notifier wrote down."""
    revisions = list(revisions)
    last: dict[str, dict[str, Any]] = {}
    for body in taken:
        known = last.get(body["cause_id"])
        last[body["cause_id"]] = body if known is None else max(known, body, key=_order)
    stands = [_incident(body["cause_id"], body["cause"]) for body in last.values() if body["kind"] != "resolved"]
    wanted = [_incident(one.cause_id, one.cause) for one in fold(final(revisions).values())]
    [*missing] = set(wanted).difference(stands)
    first = {body["id"]: body for body in reversed(taken)}
    differences = difference("incidents told", stands, wanted)
    differences += [*_differences(config.deployment, revisions, taken, first, last)]
    differences += _written(entries(config.kafka), first)
    return Told(len(first), len(taken) - len(first), len(wanted) - len(missing), len(missing), differences)


def _differences(
    deployment: str, revisions: list[Finding], taken: Sequence[dict[str, Any]], first: dict[str, dict[str, Any]],
    last: dict[str, dict[str, Any]],
) -> Iterator[Difference]:  # fmt: skip
    steps = {(body["id"], body["cause_id"], *_order(body)) for body in taken}
    yield from difference(
        "ids told",
        [f"{name} {cause_id} {episode}.{revision}" for name, cause_id, episode, revision in steps],
        [
            f"{notification_id(deployment, *step)} {step[0]} {step[1]}.{step[2]}"
            for step in {each[1:] for each in steps}
        ],
    )
    kinds = {(body["id"], body["kind"]) for body in taken}
    yield from difference("ids that say two things", _more_than_once(name for name, _ in kinds), [])
    for kind in ("opened", "resolved"):
        found = [f"{body['cause_id']} {body['episode']}" for body in first.values() if body["kind"] == kind]
        yield from difference(f"{kind} twice", _more_than_once(found), [])
    begun = {f"{body['cause_id']} {body['episode']}" for body in taken}
    opened = {f"{body['cause_id']} {body['episode']}" for body in taken if body["kind"] == "opened"}
    yield from difference("never opened", sorted(begun - opened), [])
    yield from difference("out of order", [*_out_of_order(taken)], [])
    asked = {finding.cause_id for finding in revisions}
    yield from difference("told of nothing", sorted(last.keys() - asked), [])
    for incident in fold(final(revisions).values()):
        body = last.get(incident.cause_id)
        if body is not None:
            yield from difference("severity told", *_severity(body, incident.severity.rank))


def _severity(body: dict[str, Any], rank: int) -> tuple[list[str], list[str]]:
    said = Severity(body["severity"])
    return ([] if said.rank >= rank else [f"{body['cause_id']} {said}"], [])


def _out_of_order(taken: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Notifications that were taken for the first time after a later one of their incident."""
    seen: set[str] = set()
    reached: dict[str, tuple[int, int]] = {}
    for body in taken:
        if body["id"] not in seen and _order(body) < reached.get(body["cause_id"], (0, 0)):
            yield f"{body['cause_id']} {_order(body)} after {reached[body['cause_id']]}"
        seen.add(body["id"])
        reached[body["cause_id"]] = max(_order(body), reached.get(body["cause_id"], (0, 0)))


def _written(written: list[Entry], first: dict[str, dict[str, Any]]) -> Iterator[Difference]:
    """The notifier's own account against the target's."""
    decided = {one.notification.id for one in written if isinstance(one, Decided)}
    delivered = {one.id for one in written if isinstance(one, Attempt) and one.status == "delivered"}
    gave_up = [one.id for one in written if isinstance(one, Attempt) and one.status == "gave_up"]
    yield from difference("written down as delivered", sorted(delivered), sorted(first.keys() & delivered))
    yield from difference("told and not written down", sorted(first.keys() - decided), [])
    yield from difference("taken and not known to be", sorted(first.keys() - delivered), [])
    yield from difference("decided and never told", sorted(_unsettled(written)), [])
    yield from difference("given up", gave_up, [])


def _unsettled(written: Iterable[Entry]) -> set[str]:
    decided: set[str] = set()
    settled: set[str] = set()
    for entry in written:
        if isinstance(entry, Decided):
            decided.add(entry.notification.id)
        elif entry.status != "failed":
            settled.add(entry.id)
    return decided - settled


def _order(body: dict[str, Any]) -> tuple[int, int]:
    return int(body["episode"]), int(body["revision"])


def _incident(cause_id: str, cause: str) -> str:
    return f"{cause} {cause_id}"


def _more_than_once(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
