"""Queries of the read side: what a person's words name, how fresh the store is, and the parts of long histories."""

from functools import partial

from .event_queries import EVENT_COLUMNS
from .finding_queries import CURRENT
from .query import ANY_TIME, IN_TIME, Query
from .results import Freshness, NamedKey, RefusedAt, listed_finding, stored_event, struct

KEYS_BY_PREFIX = Query(
    "keys_by_prefix",
    "Store keys that begin like this.",
    """SELECT store, key FROM entry WHERE startsWith(key, {prefix:String})
  AND ({store:String} = '' OR store = {store:String}) GROUP BY store, key ORDER BY key, store LIMIT {limit:UInt32}""",
    partial(struct, kind=NamedKey),
    {"store": "", "limit": 11},
)
FINDING_IDS_BY_PREFIX = Query(
    "finding_ids_by_prefix",
    "Ids of findings that begin like this.",
    "SELECT id FROM findings WHERE startsWith(id, {prefix:String}) GROUP BY id ORDER BY id LIMIT {limit:UInt32}",
    lambda row: str(row["id"]),
    {"limit": 11},
)
FINDINGS_LOUDEST = Query(
    "findings_loudest",
    "The newest revision of each finding: open ones first, then the loudest, then the newest event.",
    f"""SELECT finding, toUnixTimestamp64Micro(append_time) AS append_us FROM ({CURRENT})
WHERE severity_rank >= {{min_rank:UInt8}}
  AND ({{status:String}} = '' OR status = {{status:String}}) AND ({{cause:String}} = '' OR cause = {{cause:String}})
  AND ({{cause_id:String}} = '' OR cause_id = {{cause_id:String}})
ORDER BY status = 'open' DESC, severity_rank DESC, shown_time DESC, id LIMIT {{limit:UInt32}}""",
    listed_finding,
    {"min_rank": 0, "status": "open", "cause": "", "cause_id": "", "limit": 200, **ANY_TIME},
)
LIFE_OF_KEY = Query(
    "life_of_key",
    "Every event at a store key but its hits, newest first: creates and ends of a key with very many hits.",
    f"""SELECT {EVENT_COLUMNS} FROM events WHERE key = {{key:String}} AND store = {{store:String}} AND type != 'hit'
  AND {IN_TIME} ORDER BY event_time DESC, node, incarnation, home, seq LIMIT {{limit:UInt32}}""",
    stored_event,
    {"limit": 2_000, **ANY_TIME},
)
REFUSED_AT_HOMES = Query(
    "refused_at_homes",
    "Refused records and events of these homes, by when they were refused.",
    """SELECT home, uniqExact(topic, partition_id, record_offset, ifNull(event_index, -1)) AS letters FROM dead_letters
WHERE (empty({homes:Array(String)}) OR home IN {homes:Array(String)})
  AND at >= fromUnixTimestamp64Micro({since_us:Int64})
  AND at <= fromUnixTimestamp64Micro({until_us:Int64}) GROUP BY home ORDER BY home""",
    partial(struct, kind=RefusedAt),
    {"homes": [], **ANY_TIME},
)
FRESHNESS = Query(
    "freshness",
    "Counts, and the newest of everything; the newest event time is sought among what Kafka had last.",
    """WITH (SELECT max(append_time) FROM batches) AS appended
SELECT (SELECT count() FROM events) AS events, (SELECT sum(m.n) FROM per_minute AS m WHERE m.type = 'hit') AS hits,
  (SELECT toUnixTimestamp64Micro(max(event_time)) FROM events WHERE append_time >= appended - INTERVAL 1 HOUR)
    AS newest_event_us,
  toUnixTimestamp64Micro(appended) AS newest_append_us,
  (SELECT toUnixTimestamp64Milli(max(inserted_at)) * 1000 FROM batches) AS newest_insert_us,
  (SELECT count() FROM (SELECT status FROM findings ORDER BY id, revision DESC LIMIT 1 BY id) WHERE status = 'open')
    AS findings_open,
  (SELECT count() FROM (SELECT status FROM findings ORDER BY id, revision DESC LIMIT 1 BY id) WHERE status != 'open')
    AS findings_retracted,
  (SELECT toUnixTimestamp64Milli(max(inserted_at)) * 1000 FROM findings) AS newest_finding_us,
  (SELECT uniqExact(id) FROM facts) AS facts""",
    partial(struct, kind=Freshness),
)
