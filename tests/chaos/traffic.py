"""What the fleet sends meanwhile: a simulated one with faults, what only several homes together show, an engine that
knows only request ids, and rubbish."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from random import Random

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from kvtrail.producers.context import ContextPublisher
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import KafkaConfig, PublisherConfig
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.events import Create, Event, Hit, Invalidate
from kvtrail.schemas.facts import encode_fact
from kvtrail.schemas.topics import CONTEXT, FACTS, FINDINGS, LIFECYCLE
from kvtrail.simulator.fleet import START_US
from kvtrail.simulator.run import Run
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.fleet_histories import fleet_history, last_request
from msgspec.structs import replace

Message = tuple[str, str, bytes]
"""Topic, key, value."""

_AT_ONCE = 20
_EVENTS_A_CONTENT = 100
_LATE_STORES, _LATE_BY = 12, 6
_POLL_S = 0.05
_AGAIN_S = 0.5
_FLUSH_S = 120.0


class Traffic:
    """Sends its whole history while `progress` goes from 0 to 1. `run` in a thread of its own."""

    def __init__(
        self, kafka: KafkaConfig, progress: Callable[[], float], *, seed: int, events: int, faults: int
    ) -> None:
        self.sent_again = 0
        """Groups of records that were sent again, since the broker did not say that it had them."""
        self.ids: set[str] = set()
        """Of every event that the broker must hold, but the engine's and those about it."""
        self.engine_events = 0
        self.whole = False
        self._kafka = kafka
        self._progress = progress
        self._chance = Random(seed)
        self._messages = [*self._history(Run(seed=seed, events=events, faults=faults))]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has come to its end, well (`whole`) or not."""
        return not self._thread.is_alive()

    def _history(self, run: Run) -> Iterator[Message]:
        odd, late, sent = self._odd(), self._late(), [*run.sent()]
        shared = [*fleet_history(run.seed, START_US, max(24, run.events // _EVENTS_A_CONTENT))]
        for number, item in enumerate(sent):
            done, end = (len(shared) * each // len(sent) for each in (number, number + 1))
            yield from self._planted(shared[done:end])
            if item.fact is not None:
                yield FACTS, item.fact.id, encode_fact(item.fact)
            else:
                self.ids.update(event.id for event in item.events)
                yield LIFECYCLE, item.home, item.record
            if number % 40 == 7:
                yield next(odd)
            if number % 10 == 3:
                yield from next(late)

    def last(self) -> list[tuple[str, bytes]]:
        """Home and record of what is to be sent after all else."""
        return [(home, record) for _, home, record in self._planted(last_request(START_US + 10**9))]

    def _planted(self, records: Iterable[tuple[str, bytes]]) -> Iterator[Message]:
        for home, record in records:
            self.ids.update(event.id for event in EnvelopeDecoder().decode(record).events)
            yield LIFECYCLE, home, record

    def _odd(self) -> Iterator[Message]:
        """Records that are none, single bad events beside good ones, and findings that several partitions raise."""
        bad, number = histories.Lane("node-bad"), 0
        lanes = [histories.Lane(f"node-odd-{n}") for n in range(8)]
        while True:
            number += 1
            yield LIFECYCLE, bad.home, b"\xffrubbish %d" % number
            good = [bad.event(Create(tokens=n + 1), histories.identity("northwind", "w"), f"k{n}") for n in range(3)]
            self.ids.update((good[0].id, good[2].id))
            yield LIFECYCLE, bad.home, histories.envelope(good)[1].replace(b'"tokens":2', b'"tokens":"2"')
            yield CONTEXT, f"bad-{number}", b'{"request_id":"bad-%d","tenant_id":""}' % number
            yield FACTS, f"bad-{number}", b"{}"
            yield FINDINGS, bad.home, b"no finding %d" % number
            for lane in lanes:
                refused = Invalidate(scope="store", outcome="refused", cause="drill", op_id=f"drill-{number}")
                chosen = Create(tokens=9)
                events = [
                    lane.event(refused, key=""),
                    replace(lane.event(chosen, histories.identity("northwind", "w"), lane.node), key_origin="client"),
                ]
                self.ids.update(event.id for event in events)
                yield LIFECYCLE, lane.home, histories.envelope(events)[1]

    def _late(self) -> Iterator[list[Message]]:
        """Incidents that come and go: hits on entries whose creation is told later, or, in some stores, never."""
        owner, reader = histories.Lane("node-late"), histories.Lane("node-reader")
        reader.home = owner.home
        asked, hits = histories.identity("northwind", "w"), list[Event]()
        while True:
            number = len(hits)
            hit = reader.event(Hit(reused_tokens=9), asked, f"late-{number}")
            hits.append(replace(hit, store=f"late-{number % _LATE_STORES}"))
            told = [hits[-1]]
            if number >= _LATE_BY and (number - _LATE_BY) % _LATE_STORES > 2:
                missing = hits[number - _LATE_BY]
                create = owner.event(Create(tokens=9), asked, missing.key)
                told.append(replace(create, store=missing.store, time_us=missing.time_us - 1000))
            self.ids.update(event.id for event in told)
            yield [(LIFECYCLE, event.home, histories.envelope([event])[1]) for event in told]

    async def _run(self) -> None:
        with (
            ContextPublisher.to_kafka(self._kafka) as gateway,
            LifecyclePublisher.to_kafka("engine", self._kafka, PublisherConfig(linger_s=0.05)) as engine,
        ):
            sent = asked = 0
            producer: AIOKafkaProducer | None = None
            while sent < len(self._messages):
                due = int(self._progress() * len(self._messages)) + 1
                group = self._messages[sent : min(due, sent + _AT_ONCE)]
                if not group:
                    await asyncio.sleep(_POLL_S)
                    continue
                try:
                    producer = producer or await self._producer()
                    await asyncio.gather(*[await producer.send(t, v, key=k.encode()) for t, k, v in group])
                except (KafkaError, OSError, TimeoutError):
                    self.sent_again += 1
                    if producer is not None:
                        with suppress(Exception):
                            await asyncio.wait_for(producer.stop(), 5)
                    producer = None
                    await asyncio.sleep(_AGAIN_S)
                    continue
                sent += len(group)
                asked = self._ask(engine, gateway, asked, sent // 2)
            if producer is not None:
                await producer.stop()
            whole = await asyncio.to_thread(engine.flush, _FLUSH_S) and await asyncio.to_thread(gateway.flush, _FLUSH_S)
            self.engine_events = engine.stats().sent
            self.whole = whole and not engine.stats().dropped

    async def _producer(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._kafka.bootstrap, acks="all", enable_idempotence=True, request_timeout_ms=10_000
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def _ask(self, engine: LifecyclePublisher, gateway: ContextPublisher, first: int, end: int) -> int:
        """Requests of which the engine knows the id only; some are told before, some after, some twice, some never."""
        for number in range(first, end):
            request, key = f"asked-{number}", f"K{number % 50}"
            tenant = self._chance.choice(("northwind", "northwind", "northwind", "contoso"))
            told = self._chance.random()
            if told < 0.4:
                gateway.publish(request, tenant)
            if number < 50:
                engine.create(key, None, store="kv", tier="nvme", tokens=9, request_id=request, key_origin="asserted")
            else:
                engine.hit(key, None, store="kv", tier="nvme", reused_tokens=9, request_id=request)
            if 0.4 <= told < 0.9:
                gateway.publish(request, tenant)
            elif told > 0.95:
                gateway.publish(request, "northwind")
                gateway.publish(request, "contoso")
        return end
