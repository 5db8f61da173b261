"""A small history with everything in it: the incident, its findings, a refused record, every event type."""

import base64
import importlib.resources
from collections.abc import Sequence

from kvtrail.schemas.dead_letters import DeadLetter, dead_letter
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import EVENT_TYPES, Event
from kvtrail.schemas.facts import Fact, PolicyFact, TemplateFact
from kvtrail.schemas.findings import Difference, Finding, Party, cause_id, finding_id
from kvtrail.store.rows import Record, Source
from msgspec.structs import replace

TOPIC = "kvtrail.lifecycle"
NONSENSE = b"\xff\xfe not JSON"


def example_events() -> list[Event]:
    """One event of each type, one lane, in order of seq."""
    decoder = EnvelopeDecoder()
    events: list[Event] = []
    for name in EVENT_TYPES:
        raw = (importlib.resources.files("kvtrail.schemas.examples") / f"{name}.json").read_bytes()
        batch = decoder.decode(raw)
        assert not batch.rejects
        events.extend(batch.events)
    return sorted(events, key=lambda event: event.seq)


def record(events: Sequence[Event], offset: int, *, partition: int = 0, append_us: int | None = None) -> Record:
    """These events as one record read from Kafka."""
    raw = EnvelopeEncoder().encode(events)
    at = events[-1].time_us + 1500 if append_us is None else append_us
    return Record(Source(TOPIC, partition, offset, at), raw, EnvelopeDecoder().decode(raw))


def refused_record(offset: int, at_us: int, raw: bytes = NONSENSE) -> Record:
    """A record that does not decode."""
    return Record(Source(TOPIC, 0, offset, at_us), raw, EnvelopeDecoder().decode(raw))


def many(event: Event, count: int, *, first: int = 1, prefix: str = "r") -> list[Event]:
    """`count` events like `event`, each with its own seq, request id, key and time."""
    return [
        replace(
            event, seq=first + n, request_id=f"{prefix}-{first + n}", key=f"{prefix}-key-{first + n}",
            time_us=event.time_us + n * 1000,
        )
        for n in range(count)
    ]  # fmt: skip


def finding(event: Event, creator: Event, *, revision: int = 1, cause: str = "CROSS_TENANT_REUSE") -> Finding:
    """The finding about a hit."""
    assert event.identity is not None
    assert creator.identity is not None
    return Finding(
        id=finding_id(event.id), revision=revision, status="open", rule="cross_tenant_reuse", cause=cause,
        severity=Severity.CRITICAL, title="served from another tenant's entry", deployment="test",
        cause_id=cause_id("test", event.store, cause, "tenant_id"), dimension="tenant_id", subject=event.id,
        event_time_us=event.time_us, store=event.store, tier=event.tier, home=event.home, key=event.key,
        key_origin=event.key_origin, kind=event.kind, creator=party(creator), requester=party(event),
        differing=(Difference(dimension="tenant_id", created="northwind", requested="contoso"),),
        reused_tokens=8992, complete=revision > 1, facts=("f-1",), evidence=(creator.id, event.id),
        reason="" if revision == 1 else "its creator arrived",
    )  # fmt: skip


def party(event: Event) -> Party:
    """One side of a finding, from its event."""
    assert event.identity is not None
    return Party(
        event_id=event.id, time_us=event.time_us, tenant_id=event.identity.tenant_id, request_id=event.request_id,
        node=event.node, identity=event.identity.to_wire(),
    )  # fmt: skip


def letter(record: Record) -> DeadLetter:
    """The dead letter of a record that was refused."""
    reject = record.batch.rejects[0]
    source = record.source
    return dead_letter(
        reject.error, record.raw, topic=source.topic, partition=source.partition, offset=source.offset, stage="decode",
        at_us=source.append_us,
    )  # fmt: skip


def facts() -> list[Fact]:
    """Two facts."""
    return [
        Fact(id="f-1", effective_at_us=1, body=PolicyFact(tenant_id="contoso", sharing="none"), source="policy"),
        Fact(id="f-2", effective_at_us=2, body=TemplateFact(template_id="support_v7", template_digest="ab" * 32)),
    ]


def decoded(text: str) -> bytes:
    """Base64 as bytes."""
    return base64.b64decode(text)
