"""Schemas to column lists and back, without loss: what goes into one INSERT, and what a row says again.

Column names are the contract with `migrations/`; golden rows in the tests hold both to it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from ..schemas.dead_letters import DeadLetter
from ..schemas.envelope import Batch
from ..schemas.events import Body, Check, Commit, Create, Event, Expire, Hit, Invalidate, Resolve
from ..schemas.facts import Fact, decode_fact, encode_fact
from ..schemas.findings import Finding, Party, decode_finding, encode_finding
from ..schemas.foreign import known_body
from ..schemas.identity import DIMENSIONS, Identity
from ..schemas.reserved import HEARTBEAT_NODE, is_own

EVENTS_IN = "events_in"
FINDINGS = "findings"
DEAD_LETTERS = "dead_letters"
FACTS = "facts"

NO_DIGEST = bytes(32)


class Rows(NamedTuple):
    """Equally long columns for one table: `client.insert(*rows, token=...)`."""

    table: str
    columns: dict[str, list[Any]]

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values()), []))


class Source(Struct, frozen=True):
    """Where in Kafka something was read. `append_us`: Kafka's own time stamp, microseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    append_us: int


class Record(Struct, frozen=True):
    """One record of the lifecycle topic: its exact bytes and what they decoded to.

    `drop` holds the sequence numbers of events that are stored already (a producer sent them twice): the record
    stays as evidence, those events are left out.
    """

    source: Source
    raw: bytes
    batch: Batch
    drop: frozenset[int] = frozenset()


_HOT: tuple[str, ...] = (
    "tokens", "reused_tokens", "bytes", "payload_digest", "ttl_s", "age_s", "match_mode", "state", "scope", "outcome",
    "reason", "op_id", "ref",
)  # fmt: skip
_BLANK_HOT: tuple[Any, ...] = (0, 0, 0, "", 0.0, 0.0, "", "", "", "", "", "", "")
_RECORD_COLUMNS: tuple[str, ...] = (
    "record", "k_topic", "k_partition", "k_offset", "k_index", "append_time", "raw", "sha256", "first_seq", "last_seq",
    "n_events", "n_rejects",
)  # fmt: skip
_EVENT_COLUMNS: tuple[str, ...] = (
    "node", "incarnation", "home", "seq", "event_time", "type", "tenant_id", "store", "tier", "rank", "copy", "key",
    "key_origin", "kind", "part", "span", "entry_version", "place", "generation", "request_id", "trace_id", "identity",
    "body",
)  # fmt: skip
LANDING_COLUMNS: tuple[str, ...] = _RECORD_COLUMNS + _EVENT_COLUMNS + _HOT

_BLANK_EVENT: tuple[Any, ...] = (
    "",
    "",
    "",
    0,
    0,
    "",
    "",
    "",
    "",
    0,
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    None,
    "",
    "",
    {},
    "",
)
_encode = msgspec.json.Encoder().encode
_body_decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(Body)


def _body(text: str) -> Body:
    """A stored body, also one that a newer sink has stored."""
    try:
        return _body_decoder.decode(text)
    except msgspec.ValidationError:
        return _body_decoder.decode(msgspec.json.encode(known_body(msgspec.json.decode(text))))


def record_rows(records: Iterable[Record]) -> Rows:
    """Rows of `events_in` for records of one partition, in offset order: one for the record, one for each event; of
    the heartbeat's records nothing but the record."""
    columns: list[list[Any]] = [[] for _ in LANDING_COLUMNS]
    wires = _Wires()
    for record in records:
        source, batch = record.source, record.batch
        events = [event for event in batch.events if event.seq not in record.drop]
        if batch.node == HEARTBEAT_NODE:  # its bytes are evidence, and there it ends
            events = []
        first, n = batch.first or 0, len(events)
        where, lane = (source.topic, source.partition, source.offset), (batch.node, batch.incarnation, batch.home)
        head = (
            1, *where, 0, source.append_us, record.raw, hashlib.sha256(record.raw).digest(), first, batch.last or 0, n,
            len(batch.rejects), *lane, *_BLANK_EVENT[3:], *_BLANK_HOT,
        )  # fmt: skip
        for column, value in zip(columns, head, strict=True):
            column.append(value)
        if not events:
            continue
        identities = [event.identity for event in events]
        # Column by column: a tuple for each row costs twice as much, and the garbage collector walks all of them.
        rest: tuple[Iterable[Any], ...] = (
            [0] * n, *([each] * n for each in where), [event.seq - first for event in events], [source.append_us] * n,
            [b""] * n, [NO_DIGEST] * n, [0] * n, [0] * n, [0] * n, [0] * n, *([each] * n for each in lane),
            [event.seq for event in events], [event.time_us for event in events], [event.type for event in events],
            ["" if each is None else each.tenant_id for each in identities],
            [event.store for event in events], [event.tier for event in events], [event.rank for event in events],
            [event.copy for event in events], [event.key for event in events], [event.key_origin for event in events],
            [event.kind for event in events], [event.part for event in events], [event.span for event in events],
            [event.entry_version for event in events], [event.place for event in events],
            [event.generation for event in events], [event.request_id for event in events],
            [event.trace_id for event in events], [wires.of(each) for each in identities],
            [_encode(event.body).decode() for event in events],
            *zip(*[_hot(event.body) for event in events], strict=True),
        )  # fmt: skip
        for column, values in zip(columns, rest, strict=True):
            column += values
    return Rows(EVENTS_IN, dict(zip(LANDING_COLUMNS, columns, strict=True)))


class _Wires:
    """Identities as maps, each made once. Known by object, not by value: the events of a batch share what the decoder
    made, and hashing an identity costs more than the rest of its row."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Identity | None, dict[str, str]]] = {}

    def of(self, identity: Identity | None) -> dict[str, str]:
        known = self._known.get(id(identity))
        if known is None:  # the identity is kept beside its map, so that its number is not used again
            known = self._known[id(identity)] = identity, {} if identity is None else identity.to_wire()
        return known[1]


def _hot(body: Body) -> tuple[Any, ...]:
    """The body fields that are often asked for, in the order of `_HOT`; the body's JSON has all of them."""
    if isinstance(body, Hit):
        return (
            0, body.reused_tokens, body.bytes_read or 0, body.payload_digest or "", 0.0, body.age_s or 0.0,
            body.match_mode, "", "", body.outcome, "", "", "",
        )  # fmt: skip
    if isinstance(body, Create):
        return (
            body.tokens, 0, body.bytes or 0, body.payload_digest or "", body.ttl_s or 0.0, 0.0, "", body.state, "", "",
            "", "", "",
        )  # fmt: skip
    if isinstance(body, Expire):
        return (0, 0, 0, "", 0.0, 0.0, "", "", "", "", body.reason, "", "")
    if isinstance(body, Invalidate):
        return (0, 0, 0, "", 0.0, 0.0, "", "", body.scope, body.outcome, body.cause, body.op_id, "")
    if isinstance(body, Commit):
        return (0, 0, body.bytes or 0, body.payload_digest or "", 0.0, 0.0, "", "", "", "", "", "", "")
    if isinstance(body, Check):
        return (0, 0, 0, "", 0.0, 0.0, "", "", body.check, body.result, body.detail, "", "")
    if isinstance(body, Resolve):
        return (*_BLANK_HOT[:-1], body.event_id)
    return _BLANK_HOT


def event_from_row(row: Mapping[str, Any]) -> Event:
    """The event of a row that holds `queries.EVENT_COLUMNS`: equal to the one that was stored."""
    identity = row["identity"]
    return Event(
        node=row["node"], incarnation=row["incarnation"], home=row["home"], seq=row["seq"], time_us=row["time_us"],
        body=_body(row["body"]), store=row["store"], tier=row["tier"], rank=row["rank"],
        copy=row["copy"], key=row["key"], key_origin=row["key_origin"], kind=row["kind"], part=row["part"],
        span=row["span"], entry_version=row["entry_version"], place=row["place"], generation=row["generation"],
        request_id=row["request_id"], trace_id=row["trace_id"],
        identity=Identity.from_wire(identity) if identity else None,
    )  # fmt: skip


_NOBODY = Party()


def finding_rows(findings: Iterable[tuple[Source, Finding]]) -> Rows:
    """Rows of `findings`, one for each revision; the heartbeat's are left out."""
    columns: dict[str, list[Any]] = {name: [] for name in _FINDING_COLUMNS}
    for source, finding in findings:
        if is_own(finding):
            continue
        creator, requester = finding.creator or _NOBODY, finding.requester or _NOBODY
        encoded = encode_finding(finding)
        values = (
            finding.id, finding.revision, finding.status, finding.rule, finding.cause, finding.severity.value,
            finding.severity.rank, finding.title, finding.deployment, finding.cause_id, finding.dimension,
            finding.subject, finding.event_time_us, finding.store, finding.tier, finding.home, finding.key,
            finding.key_origin, finding.kind,
            creator.event_id, creator.tenant_id, creator.request_id, creator.node, creator.time_us,
            requester.event_id, requester.tenant_id, requester.request_id, requester.node, requester.time_us,
            [difference.dimension for difference in finding.differing], finding.reused_tokens, int(finding.complete),
            list(finding.facts), list(finding.evidence), finding.reason, encoded.decode(),
            int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big"),
            source.topic, source.partition, source.offset, source.append_us,
        )  # fmt: skip
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return Rows(FINDINGS, columns)


_FINDING_COLUMNS: tuple[str, ...] = (
    "id", "revision", "status", "rule", "cause", "severity", "severity_rank", "title", "deployment", "cause_id",
    "dimension", "subject", "event_time", "store", "tier", "home", "key", "key_origin", "kind",
    "creator_event", "creator_tenant", "creator_request", "creator_node", "creator_time",
    "requester_event", "requester_tenant", "requester_request", "requester_node", "requester_time",
    "differing", "reused_tokens", "complete", "facts", "evidence", "reason", "finding", "content",
    "k_topic", "k_partition", "k_offset", "append_time",
)  # fmt: skip


def finding_from_row(row: Mapping[str, Any]) -> Finding:
    """The finding of a row that holds the column `finding`."""
    return decode_finding(_raw(row["finding"]))


_DEAD_LETTER_COLUMNS: tuple[str, ...] = (
    "topic", "partition_id", "record_offset", "event_index", "seq", "stage", "code", "field", "message", "remedy",
    "at", "node", "incarnation", "home", "raw", "k_topic", "k_partition", "k_offset", "append_time",
)  # fmt: skip


def dead_letter_rows(letters: Iterable[tuple[Source, DeadLetter]]) -> Rows:
    """Rows of `dead_letters`; `source` is where the dead letter itself was read or written."""
    columns: dict[str, list[Any]] = {name: [] for name in _DEAD_LETTER_COLUMNS}
    for source, letter in letters:
        values = (
            letter.topic, letter.partition, letter.offset, letter.index, letter.seq, letter.stage, letter.code,
            letter.field, letter.message, letter.remedy, letter.at_us, letter.node, letter.incarnation, letter.home,
            letter.raw, source.topic, source.partition, source.offset, source.append_us,
        )  # fmt: skip
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return Rows(DEAD_LETTERS, columns)


def dead_letter_from_row(row: Mapping[str, Any]) -> DeadLetter:
    """The dead letter of a row that holds `queries.DEAD_LETTER_COLUMNS`."""
    return DeadLetter(
        topic=row["topic"], partition=row["partition_id"], offset=row["record_offset"], stage=row["stage"],
        code=row["code"], field=row["field"], message=row["message"], remedy=row["remedy"], at_us=row["at_us"],
        raw_base64=row["raw_base64"], node=row["node"], incarnation=row["incarnation"], home=row["home"],
        seq=row["seq"], index=row["event_index"],
    )  # fmt: skip


_FACT_COLUMNS: tuple[str, ...] = (
    "id", "type", "effective_at", "source", "fact", "k_topic", "k_partition", "k_offset", "append_time",
)  # fmt: skip


def fact_rows(facts: Iterable[tuple[Source, Fact]]) -> Rows:
    """Rows of `facts`."""
    columns: dict[str, list[Any]] = {name: [] for name in _FACT_COLUMNS}
    for source, fact in facts:
        values = (
            fact.id, str(fact.body.__struct_config__.tag), fact.effective_at_us, fact.source,
            encode_fact(fact).decode(), source.topic, source.partition, source.offset, source.append_us,
        )  # fmt: skip
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return Rows(FACTS, columns)


def fact_from_row(row: Mapping[str, Any]) -> Fact:
    """The fact of a row that holds the column `fact`."""
    return decode_fact(_raw(row["fact"]))


def _raw(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


DIMENSION_COLUMNS: tuple[str, ...] = tuple(DIMENSIONS)
"""Every dimension of identity is a column of `events`, by its own name."""
