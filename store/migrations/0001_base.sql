-- The base schema. Statements are separated by marker lines, never by semicolons; each can be run again.
-- Times come from two clocks: event_time is the producer's and may be anything, append_time is Kafka's.
-- Partitions and retention follow append_time, so that a producer's wild clock cannot scatter an insert over a
-- hundred partitions or have its events expire at once.

-- statement: landing
-- One row an event (record = 0) and one row a Kafka record (record = 1): one INSERT for each batch fans out from here.
CREATE TABLE IF NOT EXISTS ${database}.events_in (
  record UInt8,
  k_topic LowCardinality(String), k_partition UInt32, k_offset UInt64, k_index UInt32,
  append_time DateTime64(6, 'UTC'), inserted_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC'),
  raw String, sha256 FixedString(32), first_seq UInt64, last_seq UInt64, n_events UInt32, n_rejects UInt32,
  node LowCardinality(String), incarnation String, home LowCardinality(String), seq UInt64,
  event_time DateTime64(6, 'UTC'), type LowCardinality(String), tenant_id LowCardinality(String),
  store LowCardinality(String), tier LowCardinality(String), rank Int64, copy LowCardinality(String), key String,
  key_origin LowCardinality(String), kind LowCardinality(String), part String, span String, entry_version String,
  place String, generation Nullable(Int64), request_id String, trace_id String,
  identity Map(LowCardinality(String), String), body String,
  tokens UInt64, reused_tokens UInt64, bytes UInt64, payload_digest String, ttl_s Float64, age_s Float64,
  match_mode LowCardinality(String), state LowCardinality(String), scope LowCardinality(String),
  outcome LowCardinality(String), reason LowCardinality(String), op_id String, ref String
) ENGINE = Null

-- statement: events
-- Identity lives in the map (lossless: absent is unknown, empty is none); each dimension is a column besides, stored
-- where it is often filtered by, computed on reading otherwise. There, unknown and none both read as ''.
CREATE TABLE IF NOT EXISTS ${database}.events (
  tenant_id LowCardinality(String),
  event_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
  type LowCardinality(String),
  node LowCardinality(String), incarnation String CODEC(ZSTD(1)), home LowCardinality(String),
  seq UInt64 CODEC(T64, ZSTD(1)),
  store LowCardinality(String), tier LowCardinality(String), rank Int64 CODEC(T64, ZSTD(1)), copy LowCardinality(String),
  key String CODEC(ZSTD(1)), key_origin LowCardinality(String), kind LowCardinality(String),
  part String CODEC(ZSTD(1)), span String CODEC(ZSTD(1)), entry_version String CODEC(ZSTD(1)),
  place String CODEC(ZSTD(1)), generation Nullable(Int64) CODEC(ZSTD(1)),
  request_id String CODEC(ZSTD(1)), trace_id String CODEC(ZSTD(1)),
  identity Map(LowCardinality(String), String) CODEC(ZSTD(1)), body String CODEC(ZSTD(1)),
  tokens UInt64 CODEC(T64, ZSTD(1)), reused_tokens UInt64 CODEC(T64, ZSTD(1)), bytes UInt64 CODEC(T64, ZSTD(1)),
  payload_digest String CODEC(ZSTD(1)), ttl_s Float64 CODEC(ZSTD(1)), age_s Float64 CODEC(ZSTD(1)),
  match_mode LowCardinality(String), state LowCardinality(String), scope LowCardinality(String),
  outcome LowCardinality(String), reason LowCardinality(String), op_id String CODEC(ZSTD(1)), ref String CODEC(ZSTD(1)),
  k_topic LowCardinality(String), k_partition UInt32, k_offset UInt64 CODEC(Delta, ZSTD(1)), k_index UInt32 CODEC(T64, ZSTD(1)),
  append_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)), inserted_at DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
  id String MATERIALIZED concat(node, '/', incarnation, '/', home, '/', toString(seq)) CODEC(ZSTD(1)),
  principal LowCardinality(String) MATERIALIZED identity['principal'],
  isolation_domain LowCardinality(String) MATERIALIZED identity['isolation_domain'],
  weights_digest LowCardinality(String) MATERIALIZED identity['weights_digest'],
  resolved_model LowCardinality(String) MATERIALIZED identity['resolved_model'],
  model_id LowCardinality(String) MATERIALIZED identity['model_id'],
  adapter_name LowCardinality(String) MATERIALIZED identity['adapter_name'],
  adapter_digest LowCardinality(String) MATERIALIZED identity['adapter_digest'],
  template_id LowCardinality(String) MATERIALIZED identity['template_id'],
  template_digest LowCardinality(String) MATERIALIZED identity['template_digest'],
  tool_schema_digest LowCardinality(String) MATERIALIZED identity['tool_schema_digest'],
  corpus_digest LowCardinality(String) MATERIALIZED identity['corpus_digest'],
  epoch LowCardinality(String) MATERIALIZED identity['epoch'],
  token_ids_digest String MATERIALIZED identity['token_ids_digest'] CODEC(ZSTD(1)),
  adapter_scale String ALIAS identity['adapter_scale'],
  adapter_kind String ALIAS identity['adapter_kind'],
  adapter_switch String ALIAS identity['adapter_switch'],
  kv_dtype String ALIAS identity['kv_dtype'],
  kv_layout String ALIAS identity['kv_layout'],
  kv_geometry String ALIAS identity['kv_geometry'],
  quant_scale_digest String ALIAS identity['quant_scale_digest'],
  tokenizer_id String ALIAS identity['tokenizer_id'],
  media_digest String ALIAS identity['media_digest'],
  media_geometry String ALIAS identity['media_geometry'],
  media_preprocessing String ALIAS identity['media_preprocessing'],
  embedding_digest String ALIAS identity['embedding_digest'],
  request_params_digest String ALIAS identity['request_params_digest'],
  guardrail_digest String ALIAS identity['guardrail_digest'],
  authz_revision String ALIAS identity['authz_revision'],
  parent_digest String ALIAS identity['parent_digest'],
  block_digest String ALIAS identity['block_digest'],
  prefix_digest String ALIAS identity['prefix_digest'],
  INDEX ix_event_time event_time TYPE minmax GRANULARITY 1,
  INDEX ix_append_time append_time TYPE minmax GRANULARITY 1,
  INDEX ix_key key TYPE bloom_filter(0.001) GRANULARITY 1,
  INDEX ix_request request_id TYPE bloom_filter(0.001) GRANULARITY 1,
  INDEX ix_id id TYPE bloom_filter(0.001) GRANULARITY 1,
  INDEX ix_trace trace_id TYPE bloom_filter(0.01) GRANULARITY 1
) ENGINE = MergeTree PARTITION BY toYYYYMM(append_time)
ORDER BY (tenant_id, event_time, k_partition, k_offset, k_index)
TTL toDateTime(append_time) + INTERVAL ${events_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: events_mv
CREATE MATERIALIZED VIEW IF NOT EXISTS ${database}.events_mv TO ${database}.events AS
SELECT tenant_id, event_time, type, node, incarnation, home, seq, store, tier, rank, copy, key, key_origin, kind, part,
  span, entry_version, place, generation, request_id, trace_id, identity, body, tokens, reused_tokens, bytes,
  payload_digest, ttl_s, age_s, match_mode, state, scope, outcome, reason, op_id, ref,
  k_topic, k_partition, k_offset, k_index, append_time, inserted_at
FROM ${database}.events_in WHERE record = 0

-- statement: evidence
-- The exact bytes read from Kafka, a row a record, and the run of its lane that the record announced (0: unreadable).
CREATE TABLE IF NOT EXISTS ${database}.evidence (
  k_topic LowCardinality(String), k_partition UInt32, k_offset UInt64 CODEC(Delta, ZSTD(1)),
  append_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)), inserted_at DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
  node LowCardinality(String), incarnation String CODEC(ZSTD(1)), home LowCardinality(String),
  first_seq UInt64 CODEC(T64, ZSTD(1)), last_seq UInt64 CODEC(T64, ZSTD(1)),
  n_events UInt32 CODEC(T64, ZSTD(1)), n_rejects UInt32 CODEC(T64, ZSTD(1)),
  sha256 FixedString(32) CODEC(NONE), raw String CODEC(ZSTD(3))
) ENGINE = MergeTree PARTITION BY toYYYYMM(append_time) ORDER BY (k_topic, k_partition, k_offset)
TTL toDateTime(append_time) + INTERVAL ${evidence_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: evidence_mv
CREATE MATERIALIZED VIEW IF NOT EXISTS ${database}.evidence_mv TO ${database}.evidence AS
SELECT k_topic, k_partition, k_offset, append_time, inserted_at, node, incarnation, home, first_seq, last_seq,
  n_events, n_rejects, sha256, raw
FROM ${database}.events_in WHERE record = 1

-- statement: batches
-- The ledger: one row an insert. A retried batch whose hash_xor differs means that its content changed on the way.
CREATE TABLE IF NOT EXISTS ${database}.batches (
  k_topic LowCardinality(String), k_partition UInt32, first_offset UInt64, last_offset UInt64,
  records UInt64, events UInt64, rejects UInt64, hash_xor String, append_time DateTime64(6, 'UTC'),
  inserted_at DateTime64(3, 'UTC')
) ENGINE = MergeTree PARTITION BY toYYYYMM(append_time) ORDER BY (k_topic, k_partition, first_offset)
TTL toDateTime(append_time) + INTERVAL ${evidence_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: batches_mv
CREATE MATERIALIZED VIEW IF NOT EXISTS ${database}.batches_mv TO ${database}.batches AS
SELECT k_topic, k_partition, min(k_offset) AS first_offset, max(k_offset) AS last_offset, count() AS records,
  sum(n_events) AS events, sum(n_rejects) AS rejects,
  lower(hex(groupBitXor(reinterpretAsUInt256(sha256)))) AS hash_xor, max(e.append_time) AS append_time,
  max(e.inserted_at) AS inserted_at
FROM ${database}.events_in AS e WHERE record = 1 GROUP BY k_topic, k_partition

-- statement: per_minute
-- The minute is the event's own, or Kafka's where the two clocks are more than a day apart.
CREATE TABLE IF NOT EXISTS ${database}.per_minute (
  minute DateTime('UTC'), tenant_id LowCardinality(String), type LowCardinality(String), store LowCardinality(String),
  tier LowCardinality(String), kind LowCardinality(String), model_id LowCardinality(String),
  template_id LowCardinality(String), outcome LowCardinality(String),
  n SimpleAggregateFunction(sum, UInt64), tokens SimpleAggregateFunction(sum, UInt64),
  reused_tokens SimpleAggregateFunction(sum, UInt64), bytes SimpleAggregateFunction(sum, UInt64),
  lag_max_ms SimpleAggregateFunction(max, Int64), lag_ms AggregateFunction(quantilesTDigest(0.5, 0.9, 0.99), Int64)
) ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(minute)
ORDER BY (tenant_id, minute, type, store, tier, kind, model_id, template_id, outcome)
TTL minute + INTERVAL ${evidence_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: per_minute_mv
CREATE MATERIALIZED VIEW IF NOT EXISTS ${database}.per_minute_mv TO ${database}.per_minute AS
SELECT toStartOfMinute(toDateTime(if(abs(toUnixTimestamp64Micro(event_time) - toUnixTimestamp64Micro(append_time)) <= 86400000000,
    event_time, append_time), 'UTC')) AS minute,
  tenant_id, type, store, tier, kind, identity['model_id'] AS model_id, identity['template_id'] AS template_id, outcome,
  count() AS n, sum(e.tokens) AS tokens, sum(e.reused_tokens) AS reused_tokens, sum(e.bytes) AS bytes,
  max(intDiv(toUnixTimestamp64Micro(append_time) - toUnixTimestamp64Micro(event_time), 1000)) AS lag_max_ms,
  quantilesTDigestState(0.5, 0.9, 0.99)(intDiv(toUnixTimestamp64Micro(append_time) - toUnixTimestamp64Micro(event_time), 1000)) AS lag_ms
FROM ${database}.events_in AS e WHERE record = 0
GROUP BY minute, tenant_id, type, store, tier, kind, model_id, template_id, outcome

-- statement: lookups
-- Lookups as reported by nodes: what a hit rate needs.
CREATE TABLE IF NOT EXISTS ${database}.lookups (
  minute DateTime('UTC'), tenant_id LowCardinality(String), store LowCardinality(String), tier LowCardinality(String),
  model_id LowCardinality(String), template_id LowCardinality(String),
  hit SimpleAggregateFunction(sum, UInt64), partial SimpleAggregateFunction(sum, UInt64),
  miss SimpleAggregateFunction(sum, UInt64), bypassed SimpleAggregateFunction(sum, UInt64)
) ENGINE = AggregatingMergeTree PARTITION BY toYYYYMM(minute)
ORDER BY (tenant_id, minute, store, tier, model_id, template_id)
TTL minute + INTERVAL ${evidence_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: lookups_mv
CREATE MATERIALIZED VIEW IF NOT EXISTS ${database}.lookups_mv TO ${database}.lookups AS
SELECT toStartOfMinute(toDateTime(if(abs(toUnixTimestamp64Micro(event_time) - toUnixTimestamp64Micro(append_time)) <= 86400000000,
    event_time, append_time), 'UTC')) AS minute,
  c.tenant_id AS tenant_id, store, if(c.tier = '', e.tier, c.tier) AS tier, c.model_id AS model_id, c.template_id AS template_id,
  sum(c.hit) AS hit, sum(c.partial) AS partial, sum(c.miss) AS miss, sum(c.bypassed) AS bypassed
FROM (
  SELECT event_time, append_time, store, tier, arrayJoin(JSONExtract(body, 'counts',
    'Array(Tuple(tenant_id String, template_id String, model_id String, tier String, hit UInt64, partial UInt64, miss UInt64, bypassed UInt64))')) AS c
  FROM ${database}.events_in WHERE record = 0 AND type = 'lookups'
) AS e GROUP BY minute, tenant_id, store, tier, model_id, template_id

-- statement: entry
-- Provenance of a key in a store: who created it, who was served from it, when it was first and last seen.
CREATE TABLE IF NOT EXISTS ${database}.entry (
  store LowCardinality(String), key String CODEC(ZSTD(1)),
  first_seen SimpleAggregateFunction(min, DateTime64(6, 'UTC')), last_seen SimpleAggregateFunction(max, DateTime64(6, 'UTC')),
  last_append SimpleAggregateFunction(max, DateTime('UTC')),
  creates SimpleAggregateFunction(sum, UInt64), hits SimpleAggregateFunction(sum, UInt64),
  expiries SimpleAggregateFunction(sum, UInt64), invalidations SimpleAggregateFunction(sum, UInt64),
  reused_tokens SimpleAggregateFunction(sum, UInt64),
  creator AggregateFunction(argMinIf, Tuple(tenant_id String, principal String, request_id String, node String, template_id String, time_us Int64), Int64, UInt8),
  last_creator AggregateFunction(argMaxIf, Tuple(tenant_id String, principal String, request_id String, node String, template_id String, time_us Int64), Int64, UInt8),
  creators AggregateFunction(groupUniqArrayIf(64), String, UInt8), readers AggregateFunction(groupUniqArrayIf(64), String, UInt8)
) ENGINE = AggregatingMergeTree ORDER BY (store, key)
TTL last_append + INTERVAL ${evidence_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: entry_mv
CREATE MATERIALIZED VIEW IF NOT EXISTS ${database}.entry_mv TO ${database}.entry AS
SELECT store, key, min(event_time) AS first_seen, max(event_time) AS last_seen,
  max(toDateTime(append_time, 'UTC')) AS last_append,
  countIf(type = 'create') AS creates, countIf(type = 'hit') AS hits, countIf(type = 'expire') AS expiries,
  countIf(type = 'invalidate') AS invalidations, sum(e.reused_tokens) AS reused_tokens,
  argMinIfState((toString(tenant_id), identity['principal'], request_id, toString(node), identity['template_id'], toUnixTimestamp64Micro(event_time))
    ::Tuple(tenant_id String, principal String, request_id String, node String, template_id String, time_us Int64),
    toUnixTimestamp64Micro(event_time), toUInt8(type = 'create')) AS creator,
  argMaxIfState((toString(tenant_id), identity['principal'], request_id, toString(node), identity['template_id'], toUnixTimestamp64Micro(event_time))
    ::Tuple(tenant_id String, principal String, request_id String, node String, template_id String, time_us Int64),
    toUnixTimestamp64Micro(event_time), toUInt8(type = 'create')) AS last_creator,
  groupUniqArrayIfState(64)(toString(tenant_id), toUInt8(type = 'create')) AS creators,
  groupUniqArrayIfState(64)(toString(tenant_id), toUInt8(type = 'hit')) AS readers
FROM ${database}.events_in AS e
WHERE record = 0 AND key != '' AND type IN ('create', 'hit', 'expire', 'invalidate', 'commit')
GROUP BY store, key

-- statement: resolutions
-- Identities that arrived after the event they belong to.
CREATE TABLE IF NOT EXISTS ${database}.resolutions (
  event_id String CODEC(ZSTD(1)), request_id String CODEC(ZSTD(1)), tenant_id LowCardinality(String),
  identity Map(LowCardinality(String), String) CODEC(ZSTD(1)), event_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
  k_topic LowCardinality(String), k_partition UInt32, k_offset UInt64, k_index UInt32,
  append_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)), inserted_at DateTime64(3, 'UTC')
) ENGINE = MergeTree PARTITION BY toYYYYMM(append_time) ORDER BY (event_id, k_partition, k_offset, k_index)
TTL toDateTime(append_time) + INTERVAL ${events_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: resolutions_mv
CREATE MATERIALIZED VIEW IF NOT EXISTS ${database}.resolutions_mv TO ${database}.resolutions AS
SELECT ref AS event_id, request_id, tenant_id, identity, event_time, k_topic, k_partition, k_offset, k_index,
  append_time, inserted_at
FROM ${database}.events_in WHERE record = 0 AND type = 'resolve'

-- statement: findings
-- Every revision is kept; a revision written twice collapses. What is current is a query (LIMIT 1 BY id).
CREATE TABLE IF NOT EXISTS ${database}.findings (
  id String, revision UInt32, status LowCardinality(String), rule LowCardinality(String), cause LowCardinality(String),
  severity LowCardinality(String), severity_rank UInt8, title String, deployment LowCardinality(String),
  cause_id String, dimension LowCardinality(String), subject String,
  event_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)), store LowCardinality(String), tier LowCardinality(String),
  home LowCardinality(String), key String, key_origin LowCardinality(String), kind LowCardinality(String),
  creator_event String, creator_tenant LowCardinality(String), creator_request String, creator_node LowCardinality(String),
  creator_time DateTime64(6, 'UTC'),
  requester_event String, requester_tenant LowCardinality(String), requester_request String,
  requester_node LowCardinality(String), requester_time DateTime64(6, 'UTC'),
  differing Array(LowCardinality(String)), reused_tokens UInt64, complete UInt8, facts Array(String),
  evidence Array(String), reason String, finding String CODEC(ZSTD(1)),
  k_topic LowCardinality(String), k_partition UInt32, k_offset UInt64,
  append_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)), inserted_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC'),
  INDEX ix_event_time event_time TYPE minmax GRANULARITY 1,
  INDEX ix_cause cause_id TYPE bloom_filter(0.01) GRANULARITY 1,
  INDEX ix_key key TYPE bloom_filter(0.001) GRANULARITY 1,
  INDEX ix_requester requester_request TYPE bloom_filter(0.001) GRANULARITY 1,
  INDEX ix_creator creator_request TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(append_time) ORDER BY (id, revision)
TTL toDateTime(append_time) + INTERVAL ${evidence_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: dead_letters
-- Refused input with its exact bytes. A refusal written twice collapses; until then it is counted once by query.
CREATE TABLE IF NOT EXISTS ${database}.dead_letters (
  topic LowCardinality(String), partition_id Int64, record_offset Int64, event_index Nullable(Int64), seq Nullable(UInt64),
  stage LowCardinality(String), code LowCardinality(String), field String, message String, remedy String,
  at DateTime64(6, 'UTC'), node String, incarnation String, home String, raw String CODEC(ZSTD(3)),
  k_topic LowCardinality(String), k_partition UInt32, k_offset UInt64,
  append_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)), inserted_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(append_time)
ORDER BY (topic, partition_id, record_offset, ifNull(event_index, -1), stage, code)
TTL toDateTime(append_time) + INTERVAL ${evidence_days} DAY DELETE
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000

-- statement: facts
-- What the fleet knows outside the cache; kept for ever, as history cannot be judged again without it.
CREATE TABLE IF NOT EXISTS ${database}.facts (
  id String, type LowCardinality(String), effective_at DateTime64(6, 'UTC'), source LowCardinality(String), fact String,
  k_topic LowCardinality(String), k_partition UInt32, k_offset UInt64,
  append_time DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD(1)), inserted_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
) ENGINE = ReplacingMergeTree ORDER BY (id, k_partition, k_offset)
SETTINGS non_replicated_deduplication_window = 10000
