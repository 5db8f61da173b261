"""Queries for running kvtrail: rates, lags, refusals, and what the sink must know after a restart."""

from functools import partial

from ..schemas.dead_letters import DeadLetter
from ..schemas.facts import Fact
from ..schemas.reserved import HEARTBEAT_NODE
from .query import FAR_PAST_US, Query
from .results import (
    Duplicate,
    Gap,
    HitRate,
    Lag,
    LaneInterval,
    Latency,
    LedgerRow,
    LookupTotal,
    Rate,
    Refusals,
    StoredUntil,
    Unaccounted,
    struct,
)
from .rows import dead_letter_from_row, fact_from_row

RATES = Query(
    "rates",
    "Events a minute by type and tenant.",
    """SELECT toInt64(toUnixTimestamp(minute)) * 1000000 AS minute_us, type, tenant_id, sum(m.n) AS events,
  sum(m.tokens) AS tokens, sum(m.reused_tokens) AS reused_tokens
FROM per_minute AS m WHERE minute >= toDateTime(intDiv({since_us:Int64}, 1000000), 'UTC')
  AND minute <= toDateTime(intDiv({until_us:Int64}, 1000000), 'UTC')
  AND ({tenant_id:String} = '' OR tenant_id = {tenant_id:String})
GROUP BY minute, type, tenant_id ORDER BY minute, type, tenant_id""",
    partial(struct, kind=Rate),
    {"tenant_id": ""},
)
HIT_RATES = Query(
    "hit_rates",
    "Lookups a minute by tenant, as nodes counted them.",
    """SELECT toInt64(toUnixTimestamp(minute)) * 1000000 AS minute_us, tenant_id, sum(l.hit) AS hit,
  sum(l.partial) AS partial, sum(l.miss) AS miss, sum(l.bypassed) AS bypassed
FROM lookups AS l WHERE minute >= toDateTime(intDiv({since_us:Int64}, 1000000), 'UTC')
  AND minute <= toDateTime(intDiv({until_us:Int64}, 1000000), 'UTC')
GROUP BY minute, tenant_id ORDER BY minute, tenant_id""",
    partial(struct, kind=HitRate),
)
LOOKUPS = Query(
    "lookups",
    "Lookups as nodes counted them, by any of tenant, template, model and tier; the busiest first.",
    """SELECT if({by_tenant:UInt8} = 1, l.tenant_id, '') AS tenant,
  if({by_template:UInt8} = 1, l.template_id, '') AS template,
  if({by_model:UInt8} = 1, l.model_id, '') AS model, if({by_tier:UInt8} = 1, l.tier, '') AS tier_name,
  sum(l.hit) AS hit, sum(l.partial) AS partial, sum(l.miss) AS miss, sum(l.bypassed) AS bypassed
FROM lookups AS l
WHERE minute >= toStartOfMinute(toDateTime(intDiv({since_us:Int64}, 1000000), 'UTC'))
  AND minute <= toDateTime(intDiv({until_us:Int64}, 1000000), 'UTC')
GROUP BY tenant, template, model, tier_name
ORDER BY hit + partial + miss + bypassed DESC, tenant, template, model, tier_name""",
    partial(struct, kind=LookupTotal),
    {"by_tenant": 0, "by_template": 0, "by_model": 0, "by_tier": 0},
)
LOOKUPS_UNACCOUNTED = Query(
    "lookups_unaccounted",
    "What may have held counts of lookups and is not stored, in lanes of nodes' own homes heard of since `since_us`.",
    f"""SELECT sum(gap) AS missing, uniqExactIf((node, incarnation), gap > 0) AS lanes, sum(refused) AS refused,
  any(quiet) AS quiet_nodes
FROM (
  SELECT node, incarnation, append_time, toUInt64(n_rejects) AS refused,
    greatest(0, toInt64(first_seq) - 1 - toInt64(max(last_seq) OVER (PARTITION BY node, incarnation
      ORDER BY first_seq, last_seq, k_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))) AS gap
  FROM evidence WHERE first_seq > 0 AND home = concat('n:', node) AND node != '{HEARTBEAT_NODE}'
    AND (node, incarnation) IN (
    SELECT node, incarnation FROM evidence WHERE append_time >= fromUnixTimestamp64Micro({{since_us:Int64}}))
) AS records CROSS JOIN (
  SELECT count() AS quiet FROM (
    SELECT node FROM events WHERE type IN ('hit', 'lookups')
      AND append_time >= fromUnixTimestamp64Micro({{since_us:Int64}})
    GROUP BY node HAVING countIf(type = 'lookups') = 0)
) AS others
WHERE append_time >= fromUnixTimestamp64Micro({{since_us:Int64}})""",
    partial(struct, kind=Unaccounted),
)
INGESTION_LAG = Query(
    "ingestion_lag",
    "From Kafka's append to stored, by partition, over records appended after `after_us`.",
    """SELECT k_topic AS topic, k_partition AS partition, max(k_offset) AS last_offset,
  toUnixTimestamp64Micro(max(append_time)) AS last_append_us, count() AS records, quantile(0.5)(lag) AS median_ms,
  toFloat64(max(lag)) AS worst_ms
FROM (SELECT *, toUnixTimestamp64Milli(inserted_at) - intDiv(toUnixTimestamp64Micro(append_time), 1000) AS lag
  FROM evidence WHERE append_time > fromUnixTimestamp64Micro({after_us:Int64}))
GROUP BY k_topic, k_partition ORDER BY k_topic, k_partition""",
    partial(struct, kind=Lag),
    {"after_us": FAR_PAST_US},
)
PUBLISH_TO_QUERYABLE = Query(
    "publish_to_queryable",
    "From a producer's event time to stored, over events appended after `after_us`.",
    """SELECT count() AS events, ifNotFinite(q[1], 0) AS p50_ms, ifNotFinite(q[2], 0) AS p90_ms,
  ifNotFinite(q[3], 0) AS p99_ms,
  toFloat64(max(latency)) AS worst_ms, quantiles(0.5, 0.9, 0.99)(latency) AS q
FROM (SELECT toUnixTimestamp64Milli(inserted_at) - intDiv(toUnixTimestamp64Micro(event_time), 1000) AS latency
  FROM events WHERE append_time > fromUnixTimestamp64Micro({after_us:Int64}))""",
    partial(struct, kind=Latency),
    {"after_us": FAR_PAST_US},
)
DEAD_LETTER_COUNTS = Query(
    "dead_letter_counts",
    "Refusals by stage, reason and field, each counted once.",
    """SELECT stage, code, field, uniqExact(topic, partition_id, record_offset, ifNull(event_index, -1)) AS letters,
  toUnixTimestamp64Micro(max(at)) AS last_us
FROM dead_letters GROUP BY stage, code, field ORDER BY letters DESC, stage, code, field""",
    partial(struct, kind=Refusals),
)
DEAD_LETTER_COLUMNS = """topic, partition_id, record_offset, event_index, seq, stage, code, field, message, remedy,
  toUnixTimestamp64Micro(at) AS at_us, node, incarnation, home, base64Encode(raw) AS raw_base64"""
"""What `rows.dead_letter_from_row` reads."""
DEAD_LETTERS = Query[DeadLetter](
    "dead_letters",
    "Refused input with its exact bytes, newest first.",
    f"""SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters
ORDER BY at DESC, topic, partition_id, record_offset, event_index, code
LIMIT 1 BY topic, partition_id, record_offset, event_index, stage, code LIMIT {{limit:UInt32}}""",
    dead_letter_from_row,
    {"limit": 100},
)
FACTS = Query[Fact](
    "facts",
    "Every fact, the first with its id, in the order Kafka had them.",
    "SELECT fact FROM facts ORDER BY append_time, k_partition, k_offset LIMIT 1 BY id",
    fact_from_row,
)
LANE_INTERVALS = Query(
    "lane_intervals",
    "What is stored of each lane, in records below `before_offset`: touching runs are joined, refused events count.",
    """SELECT node, incarnation, home, min(i.first_seq) AS first, max(i.last_seq) AS last FROM (
  SELECT *, sum(s.starts) OVER (PARTITION BY node, incarnation, home ORDER BY first_seq, last_seq, k_offset
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS island
  FROM (
    SELECT node, incarnation, home, first_seq, last_seq, k_offset,
      first_seq > 1 + max(last_seq) OVER (PARTITION BY node, incarnation, home ORDER BY first_seq, last_seq, k_offset
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS starts
    FROM evidence WHERE k_topic = {topic:String} AND k_partition = {partition:UInt32}
      AND k_offset < {before_offset:UInt64} AND append_time > fromUnixTimestamp64Micro({after_us:Int64})
      AND first_seq > 0
  ) AS s
) AS i GROUP BY node, incarnation, home, island ORDER BY node, incarnation, home, first""",
    partial(struct, kind=LaneInterval),
    {"before_offset": 2**63, "after_us": FAR_PAST_US},
)
STORED_UNTIL = Query(
    "stored_until",
    "How far a partition is stored.",
    """SELECT if(count() = 0, -1, toInt64(max(k_offset))) AS last_offset, count() AS records, sum(n_events) AS events
FROM evidence WHERE k_topic = {topic:String} AND k_partition = {partition:UInt32}""",
    partial(struct, kind=StoredUntil),
)
BATCHES_WITHIN = Query(
    "batches_within",
    "What the ledger holds of a range of offsets, by insert.",
    """SELECT first_offset, last_offset, records, events, rejects, hash_xor FROM batches
WHERE k_topic = {topic:String} AND k_partition = {partition:UInt32} AND first_offset >= {first_offset:UInt64}
  AND last_offset <= {last_offset:UInt64} ORDER BY first_offset, last_offset""",
    partial(struct, kind=LedgerRow),
)
BATCH_GAPS = Query(
    "batch_gaps",
    "Offsets that no batch of the ledger covers.",
    """SELECT k_topic AS topic, k_partition AS partition, b.previous AS after, toInt64(b.first_offset) AS before FROM (
  SELECT k_topic, k_partition, first_offset, max(toInt64(last_offset)) OVER (PARTITION BY k_topic, k_partition
    ORDER BY first_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS previous,
    row_number() OVER (PARTITION BY k_topic, k_partition ORDER BY first_offset) AS place
  FROM batches) AS b WHERE place > 1 AND toInt64(first_offset) > previous + 1 ORDER BY topic, partition, before""",
    partial(struct, kind=Gap),
)
DUPLICATES = Query(
    "duplicates",
    "Event ids stored more than once among events appended after `after_us`: always none, or the sink is at fault.",
    """SELECT id, count() AS copies FROM events WHERE append_time > fromUnixTimestamp64Micro({after_us:Int64})
GROUP BY id HAVING copies > 1 ORDER BY id LIMIT 1000""",
    partial(struct, kind=Duplicate),
    {"after_us": FAR_PAST_US},
)
