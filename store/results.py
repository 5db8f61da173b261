"""What named queries answer: one struct a row. Times are microseconds since the epoch, lags milliseconds."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..schemas.events import Event
from ..schemas.findings import Finding
from .rows import event_from_row, finding_from_row

S = TypeVar("S", bound=Struct)


class StoredEvent(Struct, frozen=True):
    """An event and its proof: the record that carried it, and its index in that record."""

    event: Event
    topic: str
    partition: int
    offset: int
    index: int
    append_us: int
    inserted_us: int


class ListedFinding(Struct, frozen=True):
    """A finding, and when the broker had this revision of it."""

    finding: Finding
    append_us: int


class LaneInterval(Struct, frozen=True):
    """Sequence numbers `first`..`last` of a lane that are stored, every one."""

    node: str
    incarnation: str
    home: str
    first: int
    last: int


class Incident(Struct, frozen=True):
    """The current, open findings of one root cause."""

    cause_id: str
    cause: str
    dimension: str
    store: str
    severity: str
    title: str
    findings: int
    keys: int
    requests: int
    creator_tenants: tuple[str, ...]
    requester_tenants: tuple[str, ...]
    tenants: int
    """On either side, each once."""
    reused_tokens: int
    incomplete: int
    first_us: int
    last_us: int
    example: str
    """Id of its loudest, then earliest finding."""
    key_origin: str = ""
    nodes: tuple[str, ...] = ()
    """At most 1000 nodes whose requests were served."""


class IncidentNames(Struct, frozen=True):
    """What one incident reached. `keys` are pairs of store and key."""

    cause_id: str
    request_ids: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]
    finding_ids: tuple[str, ...]


class Touched(Struct, frozen=True):
    """One party's share of a blast radius: what this tenant did at this address."""

    tenant_id: str
    type: str
    events: int
    requests: int
    reused_tokens: int
    first_us: int
    last_us: int
    request_ids: tuple[str, ...]
    """At most 100 of them."""


class TouchedRequest(Struct, frozen=True):
    """A request that an incident reached."""

    finding_id: str
    request_id: str
    tenant_id: str
    creator_tenant: str
    key: str
    severity: str
    time_us: int


class Provenance(Struct, frozen=True):
    """Who made an entry and who was served from it, over its whole recorded life."""

    store: str
    key: str
    first_us: int
    last_us: int
    creates: int
    hits: int
    expiries: int
    invalidations: int
    reused_tokens: int
    creators: tuple[str, ...]
    readers: tuple[str, ...]
    first_creator: dict[str, Any]
    last_creator: dict[str, Any]


class Rate(Struct, frozen=True):
    """Events of one type and tenant in one minute."""

    minute_us: int
    type: str
    tenant_id: str
    events: int
    tokens: int
    reused_tokens: int


class HitRate(Struct, frozen=True):
    """Lookups of one tenant in one minute, as nodes counted them."""

    minute_us: int
    tenant_id: str
    hit: int
    partial: int
    miss: int
    bypassed: int


class LookupTotal(Struct, frozen=True):
    """Lookups of one group; what was not grouped by is empty, and so is what a node did not say."""

    tenant: str
    template: str
    model: str
    tier_name: str
    hit: int
    partial: int
    miss: int
    bypassed: int


class Unaccounted(Struct, frozen=True):
    """Events that may have held counts of lookups. `missing`: numbers of `lanes` lanes that never came; `refused`:
    dead letters; `quiet_nodes`: nodes that report hits and no lookups."""

    missing: int
    lanes: int
    refused: int
    quiet_nodes: int


class Lag(Struct, frozen=True):
    """How far behind Kafka the store is, by partition, over the records of the window asked for."""

    topic: str
    partition: int
    last_offset: int
    last_append_us: int
    records: int
    median_ms: float
    worst_ms: float


class Latency(Struct, frozen=True):
    """From a producer's event time to queryable here; negative where the producer's clock is ahead."""

    events: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    worst_ms: float


class Refusals(Struct, frozen=True):
    """Dead letters of one kind, each counted once."""

    stage: str
    code: str
    field: str
    letters: int
    last_us: int


class Coverage(Struct, frozen=True):
    """How many hits and creates said anything about a dimension."""

    dimension: str
    hits: int
    known_hits: int
    creates: int
    known_creates: int


class LedgerRow(Struct, frozen=True):
    """One insert: its offsets, both included, how much it held, and its records' SHA-256 folded by XOR, in hex."""

    first_offset: int
    last_offset: int
    records: int
    events: int
    rejects: int
    hash_xor: str


class Gap(Struct, frozen=True):
    """Offsets between two batches that are not stored; transactional producers leave such holes by right."""

    topic: str
    partition: int
    after: int
    before: int


class Duplicate(Struct, frozen=True):
    """An event id that is stored more than once."""

    id: str
    copies: int


class StoredRecord(Struct, frozen=True):
    """A record as evidence: its exact bytes."""

    topic: str
    partition: int
    offset: int
    append_us: int
    sha256: str
    raw_base64: str


class NamedKey(Struct, frozen=True):
    """A store key, in its store."""

    store: str
    key: str


class RefusedAt(Struct, frozen=True):
    """How many records and events of a home were refused."""

    home: str
    letters: int


class Freshness(Struct, frozen=True):
    """Counts, and the newest of everything; 0 where there is nothing."""

    events: int
    hits: int
    newest_event_us: int
    newest_append_us: int
    newest_insert_us: int
    findings_open: int
    findings_retracted: int
    newest_finding_us: int
    facts: int


class StoredUntil(Struct, frozen=True):
    """How far a partition is stored; `records` 0 and offset -1 where nothing is."""

    last_offset: int
    records: int
    events: int


class EpochUse(Struct, frozen=True):
    """Hits, or creates, of one node, template and tenant under one pair of epochs: as asked for by the requester and as
    carried by the entry that was served. `..._known` 0: not known, or outside of the scope."""

    node: str
    template_id: str
    tenant_id: str
    created: int
    asked: str
    asked_known: int
    served: str
    served_known: int
    uses: int
    reused_tokens: int
    first_us: int
    last_us: int


class EpochNode(Struct, frozen=True):
    """A node that used a scope before a bump. `heard_us`: its last event of any kind."""

    node: str
    uses_before: int
    heard_us: int


class EpochCost(Struct, frozen=True):
    """Live entries of a scope, the different prefixes among them, and the tokens that they cover; `hot`: hit lately."""

    entries: int
    prefixes: int
    tokens: int
    hot_entries: int
    hot_prefixes: int
    hot_tokens: int
    homes: int


class EpochTraffic(Struct, frozen=True):
    """Hits and reused tokens, a scope's share of them, and tokens computed for new entries."""

    hits: int
    scope_hits: int
    reused_tokens: int
    scope_reused_tokens: int
    computed_tokens: int
    nodes: int


def stored_event(row: Mapping[str, Any]) -> StoredEvent:
    """A row of `queries.EVENT_COLUMNS`."""
    return StoredEvent(
        event_from_row(row),
        row["k_topic"],
        row["k_partition"],
        row["k_offset"],
        row["k_index"],
        row["append_us"],
        row["inserted_us"],
    )


def struct(row: Mapping[str, Any], kind: type[S]) -> S:
    """A row as `kind`, whose fields are its columns."""
    return msgspec.convert(row, kind)


def listed_finding(row: Mapping[str, Any]) -> ListedFinding:
    """The finding of a row that holds the columns `finding` and `append_us`."""
    return ListedFinding(finding_from_row(row), int(row["append_us"]))
