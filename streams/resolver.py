"""`kvtrail resolve`: events that know only a request id get their identity from the request's context.

Context topic, one partition after the other: fetch -> join -> send the resolutions, awaited -> commit.

What is committed is the offset of the oldest record that may still matter, so that a new process reads the window
again; beside it stands how far everything had been sent, so that only what is newer is sent again. A resolution's id
follows from its event's: one that is sent twice is dropped by whoever reads it.
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from ..producers.kafka_client import connection
from ..schemas.config import Config
from ..schemas.context import RequestContext, decode_record
from ..schemas.dead_letters import DeadLetter
from ..schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from ..schemas.errors import BadInput
from ..schemas.events import Event
from ..schemas.topics import CONTEXT, LIFECYCLE
from .clients import commit, member, reaching
from .clients import producer as make_producer
from .deadletters import DeadLetterTopic
from .health import HealthServer
from .joining import Window
from .membership import FencingWatch, InstanceLock, Rebalance, leave_group
from .metrics import Registry
from .process import Stopping, die, report
from .records import Record, from_kafka
from .refusals import RefusalLimit
from .resolutions import Place, refusal_letter, runs_of
from .resolver_report import ResolverReport
from .topics import ensure_topics

GROUP = "kvtrail-resolve"
IDLE_S = 0.5
COMMIT_S = 1.0
_METADATA = re.compile(r"1 (\d+)")

_log = logging.getLogger("kvtrail.streams.resolver")


class Resolver:
    """One resolver worker, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._instance = config.resolver.instance
        self.places: dict[TopicPartition, Place] = {}
        self.moved_at = time.monotonic()
        """When the loop last came round, by the monotonic clock."""
        self._totals = {"joined": 0, "torn": 0, "expired": 0, "refused": 0}
        self._assigned = asyncio.Event()
        self._stopping = Stopping()
        self._decoder, self._encoder = EnvelopeDecoder(), EnvelopeEncoder()
        self._producer = make_producer(config.kafka, f"kvtrail-{self._instance}-resolutions")
        self._letters = DeadLetterTopic(self._producer)
        self._admin = AIOKafkaAdminClient(**connection(config.kafka))
        self._consumer = member(config.kafka, GROUP, self._instance)
        metrics = Registry()
        self._report = ResolverReport(config, metrics, self)
        self._health = HealthServer(
            metrics, collect=self._report.collect, alive=self._report.alive, ready=self._report.ready
        )

    @property
    def was_assigned(self) -> bool:
        """Whether the group has ever answered."""
        return self._assigned.is_set()

    def owned(self) -> set[TopicPartition]:
        """The partitions that the group has given to this worker."""
        owned: set[TopicPartition] = self._consumer.assignment()
        return owned

    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that each partition's next record will get."""
        found: dict[TopicPartition, int] = await self._consumer.end_offsets(partitions)
        return found

    async def run(self) -> None:
        """Until a signal asks for the stop. Raises before it is ready; afterwards it stops cleanly or dies."""
        self._stopping.install()
        async with reaching(self._config.kafka, self._consumer.stop, self._producer.stop, self._admin.close):
            await ensure_topics(self._config.kafka)
            await self._producer.start()
            await self._admin.start()
            self._consumer.subscribe([CONTEXT], listener=Rebalance(self))
            await self._consumer.start()
            await self._health.start(self._config.resolver.metrics_host, self._config.resolver.metrics_port)
        FencingWatch(die).install()
        loop = asyncio.create_task(self._loop(), name="resolver")
        stop = asyncio.create_task(self._stopping.wait())
        others = [asyncio.create_task(self._announce()), asyncio.create_task(report(self.counts, _log))]
        await asyncio.wait({loop, stop}, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        await self._health.stop()
        await asyncio.wait({loop})
        failure = loop.exception()
        if failure is not None:
            die(f"the resolver failed: {failure}", failure)
        await self._consumer.stop()
        if not self._stopping.restart:
            await leave_group(self._config, GROUP, self._instance)
        await self._producer.stop()
        await self._admin.close()
        _log.info("stopped", extra=self.counts())

    def counts(self) -> dict[str, int]:
        """What was done so far."""
        windows = [place.window for place in self.places.values()]
        return {
            "joined": self._totals["joined"] + sum(window.joined for window in windows),
            "torn": self._totals["torn"] + sum(window.torn for window in windows),
            "expired": self._totals["expired"] + sum(window.expired for window in windows),
            "refused": self._totals["refused"],
        }

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The loop takes the partitions over; doing it here would cost the worker its membership."""
        _log.info("assigned", extra={"partitions": sorted(tp.partition for tp in partitions)})
        self._assigned.set()

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Whoever owns the partitions next reads their windows again."""
        for place in self.places.values():
            for name in ("joined", "torn", "expired"):
                self._totals[name] += getattr(place.window, name)
        self.places.clear()

    async def _announce(self) -> None:
        await self._assigned.wait()
        partitions = sorted(tp.partition for tp in self._consumer.assignment())
        _log.info("ready: resolver", extra={"partitions": partitions})

    async def _loop(self) -> None:
        committed_at = time.monotonic()
        while not self._stopping.requested:
            self.moved_at = time.monotonic()
            for tp in self._consumer.assignment() - self.places.keys():
                try:
                    await self._take_over(tp)
                except IllegalStateError:
                    continue  # revoked in the meantime
                except KafkaError as error:
                    _log.warning("taking a partition over is tried again: %r", error)
                    await asyncio.sleep(IDLE_S)
                    break
            fetched = await self._consumer.getmany(timeout_ms=int(IDLE_S * 1000), max_records=2000)
            for tp, records in fetched.items():
                place = self.places.get(tp)
                if place is not None:
                    await self._resolve(place, [from_kafka(record) for record in records])
            if time.monotonic() - committed_at >= COMMIT_S:
                await self._commit()
                committed_at = time.monotonic()
        await self._commit()

    async def _take_over(self, tp: TopicPartition) -> None:
        found = (await self._admin.list_consumer_group_offsets(GROUP, partitions=[tp])).get(tp)
        first = (await self._consumer.beginning_offsets([tp]))[tp]
        known = found is not None and found.offset >= 0
        start = max(first, found.offset) if known else first
        match = _METADATA.fullmatch(found.metadata or "") if known else None
        window = Window(round(self._config.resolver.window_s * 1e6), self._config.resolver.limit)
        window.low = start
        self._consumer.seek(tp, start)
        section = self._config.resolver
        limit = RefusalLimit(
            f"{tp.topic}/{tp.partition}", "resolver", in_a_row=section.refused_in_a_row, share=section.refused_share
        )
        self.places[tp] = Place(window, start, int(match[1]) if match else start, limit)

    async def _resolve(self, place: Place, records: list[Record]) -> None:
        """Join some records and send what comes of it. Raises `TooManyRefused`. A window that has taken a record sends
        its resolutions, or the process dies: nothing else may be committed after it."""
        made: list[Event] = []
        letters: list[DeadLetter] = []
        for record in records:
            if record.offset < place.position:
                continue
            place.position = record.offset + 1
            content: RequestContext | Event | None = None
            refusal: BadInput | None = None
            try:
                content = decode_record(record.value, self._decoder)
            except BadInput as error:
                refusal = error
            if record.offset < place.sent:
                place.limit.recall([refusal is not None])
            else:
                place.limit.take(refusal is not None)
                if refusal is not None:
                    letters.append(refusal_letter(refusal, record))
            for resolve in place.window.take(record.offset, record.append_us, content):
                if record.offset >= place.sent:
                    made.append(resolve)
        await self._send(made, letters)
        self._totals["refused"] += len(letters)
        place.records += len(records)
        place.refused += len(letters)
        place.sent = max(place.sent, place.position)

    async def _send(self, made: list[Event], letters: list[DeadLetter]) -> None:
        runs = [(run[0].home, self._encoder.encode(run)) for run in runs_of(made)]
        pause = 0.1
        while True:
            try:
                sent = [await self._producer.send(LIFECYCLE, record, key=home.encode()) for home, record in runs]
                await asyncio.gather(*sent)
                await self._letters.publish(letters)
            except KafkaError as error:
                if self._stopping.requested:
                    die("the broker is away while stopping; the next life sends it", error)
                self.moved_at = time.monotonic()
                _log.warning("resolutions are sent again: %r", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                return

    async def _commit(self) -> None:
        changed = {tp: place for tp, place in self.places.items() if place.state != place.committed}
        if not changed:
            return
        states = {tp: place.state for tp, place in changed.items()}
        try:
            await commit(self._consumer, {tp: (low, f"1 {sent}") for tp, (low, sent) in states.items()})
        except (CommitFailedError, IllegalStateError) as error:
            _log.info("not committed: %r", error)  # revoked: the next owner sends again what it does not know of
        except KafkaError as error:
            _log.warning("a commit is tried again: %r", error)
        else:
            for tp, place in changed.items():
                place.committed = states[tp]


def run_resolver(config: Config) -> None:
    """Run one resolver in this process until it is told to stop. Raises `KvtrailError` where it cannot start."""
    with InstanceLock(config, config.resolver.instance):
        asyncio.run(_main(config))


async def _main(config: Config) -> None:
    await Resolver(config).run()
