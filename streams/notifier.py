"""`kvtrail notify`: incidents to webhooks and Alertmanagers, so that one root cause pages once; and silence, too.

Findings topic, all partitions in one process: fold -> decide -> write down -> hand to each target's courier, who waits
for nobody. The state is saved now and then; what was decided and delivered since stands on `kvtrail.notifications`.
Another notifier of the group stands by.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

import aiohttp
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetOutOfRangeError

from ..schemas.config import Config
from ..schemas.errors import BadInput
from ..schemas.findings import decode_finding
from ..schemas.notifications import Decided, Notification
from ..schemas.reserved import is_own
from ..schemas.topics import FINDINGS
from .clients import commit, member, reaching
from .clients import producer as make_producer
from .health import HealthServer
from .heartbeat_watch import HeartbeatWatch
from .membership import FencingWatch, InstanceLock, Rebalance, leave_group
from .metrics import Registry
from .notifier_courier import Courier
from .notifier_journal import Journal, read_journal
from .notifier_policy import Pager
from .notifier_queue import TargetQueue
from .notifier_report import NotifierReport
from .notifier_saving import NotifierSaving
from .notifier_state import State
from .notifier_targets import new_session, targets_of
from .process import Stopping, die, report
from .records import Record, from_kafka
from .silence import diagnose
from .sole import SoleAssignor
from .statetopic import StateTopic
from .topics import ensure_topics

GROUP = "kvtrail-notify"
OWNER = "notify/"
IDLE_S = 0.5
WRITTEN_S = 5.0
"""How long the broker may take to write down what is to be told: then it is told all the same."""
_STOP_S = 5.0

_log = logging.getLogger("kvtrail.streams.notifier")


class Notifier:
    """One notifier, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instance = config.notify.instance
        self._stopping = Stopping()
        self._assigned = asyncio.Event()
        self._producer = make_producer(config.kafka, f"kvtrail-{self._instance}")
        self._consumer = member(config.kafka, GROUP, self._instance, SoleAssignor)
        shelf = StateTopic(config.kafka, self._producer, self._instance, OWNER)
        self._saving = NotifierSaving(shelf, config.notify.snapshot_s)
        self._journal = Journal(self._producer)
        self._metrics = Registry()
        self._targets = targets_of(config.notify)
        self._session: aiohttp.ClientSession | None = None
        self._couriers: dict[str, Courier] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._expect_after = 0.0
        self._catch_up: dict[TopicPartition, int] = {}
        self._mine = self._moved = self._uncommitted = False
        self._counts = {"findings": 0, "refused": 0, "notifications": 0}
        self.state: State | None = None
        """None while another notifier has the partitions."""
        self.moved_at = time.monotonic()
        self._report = NotifierReport(config, self._metrics, self)
        self._health = HealthServer(
            self._metrics, collect=self._report.collect, alive=self._report.alive, ready=self._report.ready
        )

    @property
    def couriers(self) -> Iterable[Courier]:
        """One for each target, while this notifier is the one who tells."""
        return self._couriers.values()

    @property
    def was_assigned(self) -> bool:
        """Whether the group has ever answered."""
        return self._assigned.is_set()

    async def ends(self) -> dict[TopicPartition, int]:
        """The offset that the next record of each owned partition will get."""
        found: dict[TopicPartition, int] = await self._consumer.end_offsets([*self._consumer.assignment()])
        return found

    def counts(self) -> dict[str, int]:
        """What was done so far."""
        return dict(self._counts)

    async def run(self) -> None:
        """Until a signal asks for the stop. Raises before it is ready; afterwards it stops cleanly or dies."""
        self._stopping.install()
        async with reaching(self._config.kafka, self._consumer.stop, self._producer.stop):
            await ensure_topics(self._config.kafka)
            if not self._targets:
                _log.warning("no target is configured: incidents are written down and nobody is told")
            await self._producer.start()
            self._consumer.subscribe([FINDINGS], listener=Rebalance(self))
            await self._consumer.start()
            await self._health.start(self._config.notify.metrics_host, self._config.notify.metrics_port)
        FencingWatch(die).install()
        self._session = new_session()
        loop = asyncio.create_task(self._loop(), name="notifier")
        others = [
            asyncio.create_task(self._journal.run(), name="journal"), asyncio.create_task(report(self.counts, _log)),
        ]  # fmt: skip
        others[0].add_done_callback(_died)
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({loop, stop}, return_when=asyncio.FIRST_COMPLETED)
        await self._health.stop()
        await asyncio.wait({loop})
        failure = loop.exception()
        if failure is not None:
            die(f"the notifier failed: {failure}", failure)
        await self._stand_by()
        await self._journal.drain(_STOP_S)
        for other in others:
            other.cancel()
        await self._session.close()
        await self._consumer.stop()
        if not self._stopping.restart:
            await leave_group(self._config, GROUP, self._instance)
        await self._producer.stop()
        _log.info("stopped", extra=self.counts())

    async def _loop(self) -> None:
        while not self._stopping.requested:
            self.moved_at = time.monotonic()
            try:
                if self.state is not None and (self._moved or not self._mine):
                    await self._stand_by()
                self._moved = False
                if self._mine and self.state is None:
                    await self._take_over(self._consumer.assignment())
                fetched = await self._consumer.getmany(timeout_ms=int(IDLE_S * 1000), max_records=2000)
            except (IllegalStateError, KafkaError) as error:
                if isinstance(error, OffsetOutOfRangeError):
                    raise
                _log.warning("the broker is asked again: %r", error)
                await asyncio.sleep(IDLE_S)
                continue
            if self.state is None or self._moved:  # moved: it may begin where another one has come to
                continue
            for tp, records in fetched.items():
                self._fold(self.state, tp.partition, [from_kafka(record) for record in records])
            if not self._behind(self.state):
                await self._tell(self.state, self.state.pager.decide(_now_us()))
            if self._saving.is_due:
                await self._save(self.state)
        if self.state is not None:
            await self._save(self.state)

    def _fold(self, state: State, partition: int, records: list[Record]) -> None:
        now_us = _now_us()
        for record in records:
            if record.offset < state.offsets.get(partition, 0):
                continue
            state.offsets[partition] = record.offset + 1
            self._counts["findings"] += 1
            try:
                finding = decode_finding(record.value)
            except BadInput as error:
                self._counts["refused"] += 1
                _log.warning("a finding cannot be read: %s", error, extra={"offset": record.offset})
                continue
            if is_own(finding):
                latency_s = state.watch.seen(finding, record.append_us)
                if latency_s is not None:
                    self._metrics.observe("kvtrail_heartbeat_latency_seconds", latency_s)
            else:
                state.pager.take(finding, record.append_us, now_us)

    async def _tell(self, state: State, decided: list[Notification]) -> None:
        """Write down, then hand over: who is killed in between finds it again."""
        written = [
            self._journal.put(Decided(notification=one, targets=tuple(target.name for target in self._targets)))
            for one in decided
        ]
        if not written:
            return
        await asyncio.wait(written, timeout=WRITTEN_S)
        for one in decided:
            _log.warning("%s: %s", one.kind, one.title, extra={"cause_id": one.cause_id, "reason": one.reason})
            self._counts["notifications"] += 1
            self._metrics.add("kvtrail_notify_notifications_total", kind=one.kind)
            if self.state is state:
                for courier in self._couriers.values():
                    courier.put(one)

    async def _take_over(self, owned: set[TopicPartition]) -> None:
        """The saved state, what was told since, and the place in each partition to go on from."""
        state = await self._saving.restore(self._fresh)
        entries, self._journal.next = await read_journal(self._config.kafka, self._instance, state.journal)
        state.replay(entries)
        firsts = await self._consumer.beginning_offsets([*owned])
        self._catch_up = await self._consumer.end_offsets([*owned])
        for tp in owned:
            saved = state.offsets.get(tp.partition, 0)
            if saved < firsts[tp]:
                if saved:
                    _log.error(
                        "findings are gone from the log that nobody was told of",
                        extra={"partition": tp.partition, "first": saved, "last": firsts[tp] - 1},
                    )
                state.offsets[tp.partition] = firsts[tp]
            elif saved > self._catch_up[tp]:  # another log: the topic was made anew
                state.offsets[tp.partition] = firsts[tp]
            self._consumer.seek(tp, state.offsets.setdefault(tp.partition, firsts[tp]))
        if self._moved:
            return
        self._begin(state)
        _log.info("ready: notifier", extra={"open": len(state.standing()), "targets": [*self._couriers]})

    def _fresh(self) -> State:
        notify, now_us = self._config.notify, _now_us()
        return State(
            pager=Pager(notify, self._config.deployment, now_us - round(notify.max_age_s * 1e6)),
            watch=HeartbeatWatch(self._config.heartbeat, self._config.kafka.partitions, now_us),
        )

    def _begin(self, state: State) -> None:
        for target in self._targets:
            courier = Courier(
                target, self._journal.put, state.standing, retry_cap_s=self._config.notify.retry_cap_s,
                metrics=self._metrics, session=self._open_session,
            )  # fmt: skip
            courier.queue = state.queues.setdefault(target.name, TargetQueue())
            self._couriers[target.name] = courier
            self._tasks.append(asyncio.create_task(courier.run(), name=f"courier-{target.name}"))
        heartbeat = self._config.heartbeat
        self._expect_after = time.monotonic() + min(heartbeat.deadline_s, 2 * heartbeat.every_s)
        self._tasks.append(asyncio.create_task(self._watch(state), name="heartbeat-watch"))
        for task in self._tasks:
            task.add_done_callback(_died)
        self.state = state

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def _stand_by(self) -> None:
        """Another one tells from here on."""
        self.state = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._couriers.clear()

    async def _watch(self, state: State) -> None:
        """Is the heartbeat found? Asked beside the loop, since the broker may be what is silent."""
        while True:
            await asyncio.sleep(IDLE_S)
            silent = state.watch.silent(_now_us())
            incident = state.watch.incident(self._config.deployment, silent)
            told = state.pager.told.get(incident.cause_id)
            stands = told is not None and told.is_open
            if not silent:
                if stands:
                    await self._tell(state, [
                        state.pager.tell("resolved", incident, "heartbeats are found again", _now_us(), "alive again")
                    ])  # fmt: skip
                continue
            if stands or time.monotonic() < self._expect_after or self._behind(state):
                continue
            why = await diagnose(self._config, silent)
            partitions = len(state.watch.last)
            where = "" if len(silent) == partitions else f" in {len(silent)} of {partitions} partitions"
            if silent == state.watch.silent(_now_us()):
                title = f"pipeline silent{where}: {why}"
                await self._tell(state, [state.pager.tell("opened", incident, why, _now_us(), title)])

    def _behind(self, state: State) -> bool:
        """What was found before this notifier took over has not all been read: less than was told may be known, and
        a heartbeat may be among the rest."""
        return any(state.offsets.get(tp.partition, 0) < end for tp, end in self._catch_up.items())

    async def _save(self, state: State) -> None:
        """A snapshot, if anything is new and nobody else may have gone on; then the offsets, for whoever looks at the
        group's lag."""
        if self._moved:
            return
        state.journal = self._journal.next
        offsets = {TopicPartition(FINDINGS, partition): offset for partition, offset in state.offsets.items()}
        try:
            self._uncommitted = await self._saving.save(state) or self._uncommitted
            if self._uncommitted:
                await commit(self._consumer, offsets)
                self._uncommitted = False
        except (CommitFailedError, IllegalStateError) as error:
            _log.info("not committed: %r", error)  # revoked: the next owner goes on from the snapshot
        except KafkaError as error:
            _log.warning("no snapshot was written: %r", error)

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Another one may tell something meanwhile: what is known is read again, once these are ours anew."""
        self._mine, self._moved = False, True

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The loop takes over; doing it here would cost the worker its membership."""
        self._mine, self._moved = bool([*partitions]), True
        if not self._mine:
            _log.info("ready: notifier, standing by")
        self._assigned.set()


def _died(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        die(f"{task.get_name()} failed", task.exception())


def _now_us() -> int:
    return time.time_ns() // 1000


def run_notifier(config: Config) -> None:
    """Run one notifier in this process until it is told to stop. Raises `KvtrailError` where it cannot start."""
    with InstanceLock(config, config.notify.instance):
        asyncio.run(_main(config))


async def _main(config: Config) -> None:
    await Notifier(config).run()
