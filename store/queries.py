"""Named queries: the only place SELECTs over the store are written.

`EVENTS_BY_REQUEST.run(client, request_id="r-1")` gives typed rows. Parameters that have a default may be left out; an
empty string or array means *any*. `since_us`, `until_us` bound the producer's event time, microseconds since the epoch.
"""

from typing import Any

from .audit_queries import (
    FINDING_IDS_BY_PREFIX,
    FINDINGS_LOUDEST,
    FRESHNESS,
    KEYS_BY_PREFIX,
    LIFE_OF_KEY,
    REFUSED_AT_HOMES,
)
from .dead_letter_queries import DEAD_LETTERS_FOUND, DEAD_LETTERS_OF_RECORD, REFUSED_OFFSETS
from .epoch_queries import EPOCH_COST, EPOCH_NODES, EPOCH_TRAFFIC, EPOCH_USES
from .event_queries import (
    BARRIERS,
    BLAST_RADIUS,
    COVERAGE,
    EVENT_COLUMNS,
    EVENT_TAIL,
    EVENTS_BY_ID,
    EVENTS_BY_KEY,
    EVENTS_BY_REQUEST,
    EVENTS_BY_TRACE,
    EVENTS_OF_FINDING,
    FACT_COUNTS,
    INSTANCE_HISTORY,
    PROVENANCE,
    RECORD,
    RESOLUTIONS,
    RESOLVED_DIMENSIONS,
    TELLS,
)
from .finding_queries import (
    FINDING_REVISIONS,
    FINDINGS_BY_KEY,
    FINDINGS_BY_REQUEST,
    FINDINGS_CURRENT,
    INCIDENT_NAMES,
    INCIDENT_REQUESTS,
    INCIDENTS,
)
from .operation_queries import (
    BATCH_GAPS,
    BATCHES_WITHIN,
    DEAD_LETTER_COLUMNS,
    DEAD_LETTER_COUNTS,
    DEAD_LETTERS,
    DUPLICATES,
    FACTS,
    HIT_RATES,
    INGESTION_LAG,
    LANE_INTERVALS,
    LOOKUPS,
    LOOKUPS_UNACCOUNTED,
    PUBLISH_TO_QUERYABLE,
    RATES,
    STORED_UNTIL,
)
from .query import FAR_FUTURE_US, FAR_PAST_US, Query
from .replay_queries import APPENDED_BETWEEN, EVIDENCE_PAGE, EVIDENCE_PLACES, FACTS_APPENDED

QUERIES: tuple[Query[Any], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Query))
"""Every named query, for tests and documentation."""

__all__ = [
    "APPENDED_BETWEEN",
    "BARRIERS",
    "BATCHES_WITHIN",
    "BATCH_GAPS",
    "BLAST_RADIUS",
    "COVERAGE",
    "DEAD_LETTERS",
    "DEAD_LETTERS_FOUND",
    "DEAD_LETTERS_OF_RECORD",
    "DEAD_LETTER_COLUMNS",
    "DEAD_LETTER_COUNTS",
    "DUPLICATES",
    "EPOCH_COST",
    "EPOCH_NODES",
    "EPOCH_TRAFFIC",
    "EPOCH_USES",
    "EVENTS_BY_ID",
    "EVENTS_BY_KEY",
    "EVENTS_BY_REQUEST",
    "EVENTS_BY_TRACE",
    "EVENTS_OF_FINDING",
    "EVENT_COLUMNS",
    "EVENT_TAIL",
    "EVIDENCE_PAGE",
    "EVIDENCE_PLACES",
    "FACTS",
    "FACTS_APPENDED",
    "FACT_COUNTS",
    "FAR_FUTURE_US",
    "FAR_PAST_US",
    "FINDINGS_BY_KEY",
    "FINDINGS_BY_REQUEST",
    "FINDINGS_CURRENT",
    "FINDINGS_LOUDEST",
    "FINDING_IDS_BY_PREFIX",
    "FINDING_REVISIONS",
    "FRESHNESS",
    "HIT_RATES",
    "INCIDENTS",
    "INCIDENT_NAMES",
    "INCIDENT_REQUESTS",
    "INGESTION_LAG",
    "INSTANCE_HISTORY",
    "KEYS_BY_PREFIX",
    "LANE_INTERVALS",
    "LIFE_OF_KEY",
    "LOOKUPS",
    "LOOKUPS_UNACCOUNTED",
    "PROVENANCE",
    "PUBLISH_TO_QUERYABLE",
    "QUERIES",
    "RATES",
    "RECORD",
    "REFUSED_AT_HOMES",
    "REFUSED_OFFSETS",
    "RESOLUTIONS",
    "RESOLVED_DIMENSIONS",
    "STORED_UNTIL",
    "TELLS",
    "Query",
]
