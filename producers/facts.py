"""Facts: what the fleet knows outside the cache, published by whoever makes it true.

A fact counts from its `effective_at_us`; it is published before the change it announces takes effect, and *awaited*:
entries that a worker judges in ignorance of a fact are judged wrongly. Its id follows from its content, so publishing
it twice is harmless.
"""

import asyncio
import hashlib
import threading
import time
import uuid
from collections.abc import Iterable, Mapping

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ..schemas.config import KafkaConfig
from ..schemas.epochs import require_epoch
from ..schemas.errors import BrokerError
from ..schemas.facts import EpochFact, Fact, FactBody, TemplateFact, decode_fact, encode_fact
from ..schemas.topics import FACTS
from .client_end import end
from .kafka_client import connection

TIMEOUT_S = 10.0


def make_fact(body: FactBody, *, effective_at_us: int | None = None, source: str = "", fact_id: str = "") -> Fact:
    """A fact with its id and time; effective now unless given, in microseconds since the epoch.

    Raises `InvalidField` or `NameInDigestPlace` where the body holds what no reader takes.
    """
    at = time.time_ns() // 1000 if effective_at_us is None else effective_at_us
    if not fact_id:
        fact_id = hashlib.sha256(msgspec.json.encode([at, source, body])).hexdigest()[:32]
    fact = Fact(id=fact_id, effective_at_us=at, body=body, source=source)
    decode_fact(encode_fact(fact))
    return fact


def template_published(
    template_id: str, template_digest: str, *, effective_at_us: int | None = None, source: str = ""
) -> Fact:
    """A template was published, or rolled back to, under its id. The digest is of the template as rendered."""
    body = TemplateFact(template_id=template_id, template_digest=template_digest)
    return make_fact(body, effective_at_us=effective_at_us, source=source)


def epoch_bumped(
    epoch: str,
    where: Mapping[str, str] | None = None,
    *,
    why: str = "",
    effective_at_us: int | None = None,
    source: str = "",
) -> Fact:
    """Entries that agree with `where` (dimension -> value; none: all) and carry an earlier epoch are out. `corpus_id`
    may stand there too: every revision of that corpus.

    Raises `InvalidField` for an epoch that no marker can carry.
    """
    require_epoch(epoch)
    body = EpochFact(epoch=epoch, where=dict(where or {}), why=why)
    return make_fact(body, effective_at_us=effective_at_us, source=source)


async def publish_facts_async(kafka: KafkaConfig, facts: Iterable[Fact], *, timeout_s: float = TIMEOUT_S) -> None:
    """Publish facts in order and return when the broker has them all. Raises `BrokerError`; some may be there then,
    and publishing all of them again is harmless."""
    # A key of its own: the topic is compacted to shed workers' ticks, and a fact published twice must keep its first
    # place in the log, since that is from when it applies.
    records = [(f"{fact.id}/{uuid.uuid4().hex}".encode(), encode_fact(fact)) for fact in facts]
    if not records:
        return
    producer = AIOKafkaProducer(
        **connection(kafka), enable_idempotence=True, acks="all",
        request_timeout_ms=int(timeout_s * 1000),
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            await producer.start()
            for key, value in records:
                await producer.send_and_wait(FACTS, value=value, key=key)
    except (KafkaError, OSError, TimeoutError) as error:
        raise BrokerError(
            f"the facts could not be published ({type(error).__name__}).",
            field="kafka.bootstrap",
            remedy="Check that the broker is up and `kvtrail.facts` exists, then publish them again.",
        ) from error
    finally:
        await end(producer)  # nothing is left to flush, and after a failure nothing may be waited for


def publish_facts(kafka: KafkaConfig, facts: Iterable[Fact], *, timeout_s: float = TIMEOUT_S) -> None:
    """As `publish_facts_async`, for a thread: blocks until the broker has them. Also where an event loop is running."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(publish_facts_async(kafka, facts, timeout_s=timeout_s))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="kvtrail-facts")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def publish_fact(kafka: KafkaConfig, fact: Fact, *, timeout_s: float = TIMEOUT_S) -> None:
    """One fact; see `publish_facts`."""
    publish_facts(kafka, [fact], timeout_s=timeout_s)
