"""`kvtrail heartbeat`: a known-bad pair of events in every partition, now and then, by the way that engines use.

Whether its finding comes is what the notifier watches: the two are processes of their own, so that the death of this
one is noticed by the other.
"""

import asyncio
import logging
import time

from .. import __version__
from ..producers.publisher import LifecyclePublisher
from ..schemas.config import Config, PublisherConfig
from ..schemas.digests import digest_bytes
from ..schemas.identity import Identity
from ..schemas.reserved import CREATOR, HEARTBEAT_NODE, HEARTBEAT_STORE, REQUESTER, owners
from .health import HealthServer
from .membership import InstanceLock
from .metrics import Registry
from .process import Stopping
from .topics import ensure_topics

_WORKER = "heartbeat"
_ACKNOWLEDGED_S = 20.0

_log = logging.getLogger("kvtrail.streams.heartbeat")


def _who(tenant: str) -> Identity:
    return Identity(tenant_id=tenant, template_digest=digest_bytes(tenant.encode()))


_PAIR = _who(CREATOR), _who(REQUESTER)


def beat(publisher: LifecyclePublisher, partitions: int, name: str) -> None:
    """One tenant creates an entry, another is served from it, and the entry ends: once in every partition."""
    creator, requester = _PAIR
    for partition, owner in enumerate(owners(partitions)):
        key = f"{name}/{partition}"
        publisher.create(key, creator, store=HEARTBEAT_STORE, tier="nvme", owner=owner, key_origin="asserted")
        publisher.hit(
            key, requester, store=HEARTBEAT_STORE, tier="nvme", owner=owner, key_origin="asserted", reused_tokens=1,
            request_id=name,
        )  # fmt: skip
        publisher.expire(key, store=HEARTBEAT_STORE, tier="nvme", owner=owner, reason="capacity")


class Heartbeat:
    """One heartbeat worker, from start to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stopping = Stopping()
        self._metrics = Registry()
        self._beat_at = 0.0
        self._started_at = time.monotonic()
        self._health = HealthServer(self._metrics, collect=self._collect, alive=self._alive, ready=self._ready)
        self._metrics.set(
            "kvtrail_worker_info", 1, worker=_WORKER, instance=config.heartbeat.instance, version=__version__
        )  # fmt: skip

    async def run(self) -> None:
        """Until a signal asks for the stop."""
        settings, kafka = self._config.heartbeat, self._config.kafka
        self._stopping.install()
        await ensure_topics(kafka)
        await self._health.start(settings.metrics_host, settings.metrics_port)
        # Not the configured publisher: what waits in a spool for hours is no heartbeat.
        publisher = LifecyclePublisher.to_kafka(HEARTBEAT_NODE, kafka, PublisherConfig(linger_s=0.0))
        _log.info("ready: heartbeat", extra={"every_s": settings.every_s, "partitions": kafka.partitions})
        try:
            while not self._stopping.requested:
                started = time.monotonic()
                await self._beat(publisher)
                pause_s = max(settings.every_s - (time.monotonic() - started), 0.0)
                try:
                    await asyncio.wait_for(self._stopping.wait(), pause_s)
                except TimeoutError:
                    continue
        finally:
            await self._health.stop()
            await asyncio.to_thread(publisher.close, 2.0)
        _log.info("stopped")

    async def _beat(self, publisher: LifecyclePublisher) -> None:
        beat(publisher, self._config.kafka.partitions, f"beat-{time.time_ns() // 1_000_000}")
        patience_s = min(_ACKNOWLEDGED_S, self._config.heartbeat.every_s)
        sent = await asyncio.to_thread(publisher.flush, patience_s)
        self._metrics.add("kvtrail_heartbeat_beats_total", outcome="sent" if sent else "late")
        if sent:
            self._beat_at = time.monotonic()
        else:
            _log.warning("a heartbeat is not acknowledged yet", extra={"error": publisher.stats().last_error})

    async def _alive(self) -> list[str]:
        return []

    async def _ready(self) -> list[str]:
        still_s = time.monotonic() - max(self._beat_at, self._started_at)
        if not self._beat_at or still_s > self._config.heartbeat.deadline_s:
            return [f"no heartbeat has been acknowledged for {still_s:.0f} s"]
        return []

    async def _collect(self) -> None:
        self._metrics.set("kvtrail_worker_ready", not await self._ready(), worker=_WORKER)


def run_heartbeat(config: Config) -> None:
    """Send heartbeats from this process until it is told to stop. Raises `KvtrailError` where it cannot start."""
    with InstanceLock(config, config.heartbeat.instance):
        asyncio.run(_main(config))


async def _main(config: Config) -> None:
    await Heartbeat(config).run()
