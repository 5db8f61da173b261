"""Queries for events, their evidence and the entries they are about."""

from functools import partial

from .query import ANY_TIME, FAR_PAST_US, IN_TIME, Query
from .results import Coverage, Provenance, StoredRecord, Touched, stored_event, struct

EVENT_COLUMNS = """node, incarnation, home, seq, toUnixTimestamp64Micro(event_time) AS time_us, body,
  store, tier, rank, copy, key, key_origin, kind, part, span, entry_version, place, generation, request_id, trace_id,
  identity,
  k_topic, k_partition, k_offset, k_index, toUnixTimestamp64Micro(append_time) AS append_us,
  toUnixTimestamp64Milli(inserted_at) * 1000 AS inserted_us"""
"""What `results.stored_event` reads: an event without loss, and its place in Kafka."""

_ORDER = "ORDER BY event_time, node, incarnation, home, seq"

EVENTS_BY_REQUEST = Query(
    "events_by_request",
    "Every event that carries a request id, in time order.",
    f"SELECT {EVENT_COLUMNS} FROM events WHERE request_id = {{request_id:String}} {_ORDER} LIMIT {{limit:UInt32}}",
    stored_event,
    {"limit": 10_000},
)
EVENTS_BY_TRACE = Query(
    "events_by_trace",
    "Every event that carries a trace id, in time order.",
    f"SELECT {EVENT_COLUMNS} FROM events WHERE trace_id = {{trace_id:String}} {_ORDER} LIMIT {{limit:UInt32}}",
    stored_event,
    {"limit": 10_000},
)
EVENTS_BY_KEY = Query(
    "events_by_key",
    "The history of a store key: every event at it, in time order.",
    f"""SELECT {EVENT_COLUMNS} FROM events WHERE key = {{key:String}}
  AND ({{store:String}} = '' OR store = {{store:String}}) AND {IN_TIME} {_ORDER} LIMIT {{limit:UInt32}}""",
    stored_event,
    {"store": "", "limit": 10_000, **ANY_TIME},
)
EVENTS_BY_ID = Query(
    "events_by_id",
    "Events by their ids, `node/incarnation/home/seq`.",
    f"SELECT {EVENT_COLUMNS} FROM events WHERE id IN {{ids:Array(String)}} {_ORDER}",
    stored_event,
)
EVENTS_OF_FINDING = Query(
    "events_of_finding",
    "The events a finding rests on: its subject, its parties' events and its evidence, of every revision.",
    f"""SELECT {EVENT_COLUMNS} FROM events WHERE id IN (
    SELECT arrayJoin(arrayConcat(f.evidence, [f.subject, f.creator_event, f.requester_event])) FROM findings AS f
    WHERE f.id = {{finding_id:String}}) {_ORDER}""",
    stored_event,
)
INSTANCE_HISTORY = Query(
    "instance_history",
    "What happened at one address (store, tier, rank, copy, key; a home for node-local tiers), in time order.",
    f"""SELECT {EVENT_COLUMNS} FROM events WHERE key = {{key:String}} AND store = {{store:String}}
  AND ({{home:String}} = '' OR home = {{home:String}}) AND ({{tier:String}} = '' OR tier = {{tier:String}})
  AND rank = {{rank:Int64}} AND copy = {{copy:String}} AND {IN_TIME} {_ORDER} LIMIT {{limit:UInt32}}""",
    stored_event,
    {"home": "", "tier": "", "rank": 0, "copy": "", "limit": 10_000, **ANY_TIME},
)
BARRIERS = Query(
    "barriers",
    "What ended entries without naming them: starts of nodes and invalidations of a node or store, of one home.",
    f"""SELECT {EVENT_COLUMNS} FROM events WHERE home = {{home:String}} AND {IN_TIME}
  AND (type = 'node_start' OR (type = 'invalidate' AND scope != 'entry')) {_ORDER} LIMIT {{limit:UInt32}}""",
    stored_event,
    {"limit": 10_000, **ANY_TIME},
)
EVENT_TAIL = Query(
    "event_tail",
    "The newest events as Kafka has them, newest first.",
    f"""SELECT {EVENT_COLUMNS} FROM events WHERE append_time > fromUnixTimestamp64Micro({{after_us:Int64}})
  AND ({{type:String}} = '' OR type = {{type:String}})
  AND ({{tenant_id:String}} = '' OR tenant_id = {{tenant_id:String}})
ORDER BY append_time DESC, k_partition DESC, k_offset DESC, k_index DESC LIMIT {{limit:UInt32}}""",
    stored_event,
    {"after_us": FAR_PAST_US, "type": "", "tenant_id": "", "limit": 50},
)
RESOLUTIONS = Query(
    "resolutions",
    "Identities that arrived later, for these event ids: (event_id, identity).",
    """SELECT event_id, identity FROM resolutions WHERE event_id IN {ids:Array(String)}
ORDER BY event_id, append_time, k_partition, k_offset, k_index""",
    lambda row: (str(row["event_id"]), dict(row["identity"])),
)
RECORD = Query(
    "record",
    "One record as evidence, with its exact bytes.",
    """SELECT k_topic AS topic, k_partition AS partition, k_offset AS offset,
  toUnixTimestamp64Micro(append_time) AS append_us, lower(hex(sha256)) AS sha256, base64Encode(raw) AS raw_base64
FROM evidence WHERE k_topic = {topic:String} AND k_partition = {partition:UInt32} AND k_offset = {offset:UInt64}""",
    partial(struct, kind=StoredRecord),
)

BLAST_RADIUS = Query(
    "blast_radius",
    "Who else touched an address: events, requests and tokens by tenant and event type.",
    f"""SELECT tenant_id, type, count() AS events, uniqExactIf(request_id, request_id != '') AS requests,
  sum(e.reused_tokens) AS reused_tokens, toUnixTimestamp64Micro(min(event_time)) AS first_us,
  toUnixTimestamp64Micro(max(event_time)) AS last_us,
  arraySort(groupUniqArrayIf(100)(request_id, request_id != '')) AS request_ids
FROM events AS e WHERE key = {{key:String}} AND ({{store:String}} = '' OR store = {{store:String}}) AND {IN_TIME}
GROUP BY tenant_id, type ORDER BY first_us, tenant_id, type""",
    partial(struct, kind=Touched),
    {"store": "", **ANY_TIME},
)
PROVENANCE = Query(
    "provenance",
    "Who made an entry and who was served from it, by store.",
    """SELECT store, key, toUnixTimestamp64Micro(min(e.first_seen)) AS first_us,
  toUnixTimestamp64Micro(max(e.last_seen)) AS last_us,
  sum(e.creates) AS creates, sum(e.hits) AS hits, sum(e.expiries) AS expiries, sum(e.invalidations) AS invalidations,
  sum(e.reused_tokens) AS reused_tokens, arraySort(groupUniqArrayIfMerge(64)(e.creators)) AS creators,
  arraySort(groupUniqArrayIfMerge(64)(e.readers)) AS readers, argMinIfMerge(e.creator) AS first_creator,
  argMaxIfMerge(e.last_creator) AS last_creator
FROM entry AS e WHERE key = {key:String} AND ({store:String} = '' OR store = {store:String})
GROUP BY store, key ORDER BY store""",
    partial(struct, kind=Provenance),
    {"store": ""},
)
COVERAGE = Query(
    "coverage",
    "How many hits and creates said anything about each dimension that any of them knows.",
    f"""WITH (SELECT (countIf(type = 'hit'), countIf(type = 'create')) FROM events
    WHERE type IN ('hit', 'create') AND {IN_TIME}) AS totals
SELECT dimension, totals.1 AS hits, countIf(type = 'hit') AS known_hits, totals.2 AS creates,
  countIf(type = 'create') AS known_creates
FROM (SELECT type, arrayJoin(mapKeys(identity)) AS dimension FROM events WHERE type IN ('hit', 'create') AND {IN_TIME})
GROUP BY dimension ORDER BY dimension""",
    partial(struct, kind=Coverage),
    dict(ANY_TIME),
)
TELLS = Query[dict[str, int]](
    "tells",
    "How many events tell what rules look at beside identity: one row, a count for each thing.",
    f"""WITH type = 'create' AS c, type = 'hit' AS h,
  if(type = 'check', JSONExtractString(body, 'check'), '') AS checked
SELECT countIf(c) AS create, countIf(h) AS hit, countIf(type = 'expire') AS expire,
  countIf(type = 'invalidate') AS invalidate, countIf(type = 'commit') AS commit,
  countIf(type = 'node_start') AS node_start, countIf((c OR h) AND kind = 'response') AS "k:response",
  countIf((c OR h) AND kind = 'media') AS "k:media", countIf((c OR h) AND part != '') AS parts,
  countIf((c OR h) AND key_origin = 'client') AS client_keys,
  countIf((c OR h) AND JSONHas(body, 'reported_tokens')) AS reported,
  countIf((c OR h) AND JSONHas(body, 'weights_version')) AS version,
  countIf((c OR type = 'commit') AND (JSONHas(body, 'bytes') OR JSONHas(body, 'payload_digest'))) AS created_payload,
  countIf(c AND place != '') AS created_place, countIf(c AND JSONHas(body, 'max_age_s')) AS max_age,
  countIf(c AND JSONHas(body, 'ttl_s')) AS ttl, countIf(c AND JSONHas(body, 'finish')) AS finish,
  countIf(c AND state = 'pending') AS pending, countIf(c AND JSONHas(body, 'rederived_key')) AS rederived,
  toUInt64(uniqExactIf(node, c) > 1) AS nodes, countIf(h AND place != '') AS read_place,
  countIf(h AND (JSONHas(body, 'payload_digest') OR JSONHas(body, 'bytes_read') OR JSONHas(body, 'tokens_read')))
    AS read_payload,
  countIf(h AND request_id != '') AS request, countIf(h AND match_mode = 'semantic') AS semantic,
  countIf(JSONHas(body, 'parts_required')) AS parts_required, countIf(checked = 'canary') AS canary,
  countIf(checked = 'spot_check') AS spot_check, countIf(checked = 'bypass_diff') AS bypass_diff,
  countIf(checked = 'isolation_probe') AS isolation_probe
FROM events WHERE {IN_TIME}""",
    lambda row: {str(name): int(count) for name, count in row.items()},
    dict(ANY_TIME),
)
RESOLVED_DIMENSIONS = Query[tuple[str, int]](
    "resolved_dimensions",
    "How many events got each dimension from a resolution.",
    f"""SELECT dimension, uniqExact(event_id) AS events
FROM (SELECT event_id, arrayJoin(mapKeys(identity)) AS dimension FROM resolutions WHERE {IN_TIME})
GROUP BY dimension ORDER BY dimension""",
    lambda row: (str(row["dimension"]), int(row["events"])),
    dict(ANY_TIME),
)
FACT_COUNTS = Query[tuple[str, int]](
    "fact_counts",
    "How many facts of each kind there are.",
    "SELECT type, uniqExact(id) AS facts FROM facts GROUP BY type ORDER BY type",
    lambda row: (str(row["type"]), int(row["facts"])),
)
