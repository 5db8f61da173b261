"""Queries for findings, by revision and by root cause."""

from functools import partial

from ..schemas.clocks import AHEAD_US, EARLIEST_US
from .query import ANY_TIME, Query
from .results import Incident, IncidentNames, TouchedRequest, struct
from .rows import finding_from_row

NEWEST = "id, revision DESC, event_time, finding"
"""Orders the revisions of a finding, the current one first. Where partitions raised it apart from each other (its
subject spans them), two may have one number: then the earliest event counts, whichever arrived first."""

_EARLIEST = f"fromUnixTimestamp64Micro(toInt64({EARLIEST_US}))"
# As `plausible_us` has it: for lists, not for what is current.
SHOWN = f"""if(append_time >= {_EARLIEST}
    AND (event_time < {_EARLIEST} OR event_time > addMicroseconds(append_time, {AHEAD_US})), append_time, event_time)"""

# Filters on what a revision may change come after the newest revision was chosen, never before.
CURRENT = f"""SELECT *, {SHOWN} AS shown_time FROM findings
  WHERE shown_time >= fromUnixTimestamp64Micro({{since_us:Int64}})
    AND shown_time <= fromUnixTimestamp64Micro({{until_us:Int64}})
    AND (append_time >= fromUnixTimestamp64Micro({{since_us:Int64}} - {AHEAD_US}) OR append_time < {_EARLIEST})
  ORDER BY {NEWEST} LIMIT 1 BY id"""

FINDINGS_CURRENT = Query(
    "findings_current",
    "The newest revision of each finding, newest event first.",
    f"""SELECT finding FROM ({CURRENT}) WHERE severity_rank >= {{min_rank:UInt8}}
  AND ({{status:String}} = '' OR status = {{status:String}}) AND ({{cause:String}} = '' OR cause = {{cause:String}})
  AND ({{cause_id:String}} = '' OR cause_id = {{cause_id:String}})
  AND ({{tenant_id:String}} = '' OR creator_tenant = {{tenant_id:String}} OR requester_tenant = {{tenant_id:String}})
ORDER BY shown_time DESC, id LIMIT {{limit:UInt32}}""",
    finding_from_row,
    {"min_rank": 0, "status": "open", "cause": "", "cause_id": "", "tenant_id": "", "limit": 1000, **ANY_TIME},
)
FINDING_REVISIONS = Query(
    "finding_revisions",
    "Every revision of one finding, oldest first.",
    """SELECT finding FROM findings WHERE id = {finding_id:String}
ORDER BY revision, event_time, finding LIMIT 1 BY revision""",
    finding_from_row,
)
FINDINGS_BY_REQUEST = Query(
    "findings_by_request",
    "The newest revision of each finding in which a request is a party, retracted ones included.",
    f"""SELECT finding FROM findings WHERE id IN (
    SELECT id FROM findings WHERE requester_request = {{request_id:String}} OR creator_request = {{request_id:String}})
ORDER BY {NEWEST} LIMIT 1 BY id""",
    finding_from_row,
)
FINDINGS_BY_KEY = Query(
    "findings_by_key",
    "The newest revision of each finding about a store key, retracted ones included.",
    f"""SELECT finding FROM findings WHERE id IN (
    SELECT id FROM findings WHERE key = {{key:String}} AND ({{store:String}} = '' OR store = {{store:String}}))
ORDER BY {NEWEST} LIMIT 1 BY id LIMIT {{limit:UInt32}}""",
    finding_from_row,
    {"store": "", "limit": 10_000},
)
INCIDENTS = Query(
    "incidents",
    "Open findings by root cause, the loudest first.",
    f"""SELECT cause_id, any(f.cause) AS cause, any(f.dimension) AS dimension, any(f.store) AS store,
  any(f.key_origin) AS key_origin,
  arraySort(groupUniqArrayIf(1000)(toString(f.requester_node), f.requester_node != '')) AS nodes,
  argMax(f.severity, f.severity_rank) AS severity,
  argMax(f.title, (f.severity_rank, -toUnixTimestamp64Micro(f.event_time))) AS title, count() AS findings,
  uniqExact(f.key) AS keys, uniqExactIf(f.requester_request, f.requester_request != '') AS requests,
  arraySort(groupUniqArrayIf(1000)(toString(f.creator_tenant), f.creator_tenant != '')) AS creator_tenants,
  arraySort(groupUniqArrayIf(1000)(toString(f.requester_tenant), f.requester_tenant != '')) AS requester_tenants,
  uniqExactArray(arrayFilter(one -> one != '', [toString(f.creator_tenant), toString(f.requester_tenant)])) AS tenants,
  sum(f.reused_tokens) AS reused_tokens, countIf(f.complete = 0) AS incomplete,
  toUnixTimestamp64Micro(min(f.shown_time)) AS first_us, toUnixTimestamp64Micro(max(f.shown_time)) AS last_us,
  argMax(f.id, (f.severity_rank, -toUnixTimestamp64Micro(f.event_time))) AS example
FROM ({CURRENT}) AS f WHERE f.status = 'open' AND f.severity_rank >= {{min_rank:UInt8}}
  AND ({{cause_id:String}} = '' OR f.cause_id = {{cause_id:String}})
GROUP BY cause_id ORDER BY max(f.severity_rank) DESC, last_us DESC, cause_id LIMIT {{limit:UInt32}}""",
    partial(struct, kind=Incident),
    {"min_rank": 0, "cause_id": "", "limit": 1000, **ANY_TIME},
)
NAMES_LISTED = 1000
INCIDENT_NAMES = Query(
    "incident_names",
    "What each incident reached, by name: at most a thousand requests, keys with their stores, and findings.",
    f"""SELECT cause_id,
  arraySlice(arraySort(groupUniqArrayIf(toString(f.requester_request), f.requester_request != '')), 1, {NAMES_LISTED})
    AS request_ids,
  arraySlice(arraySort(groupUniqArrayIf((toString(f.store), f.key), f.key != '')), 1, {NAMES_LISTED}) AS keys,
  arraySlice(arraySort(groupUniqArray(f.id)), 1, {NAMES_LISTED}) AS finding_ids
FROM ({CURRENT}) AS f WHERE f.status = 'open' AND f.severity_rank >= {{min_rank:UInt8}}
  AND f.cause_id IN {{cause_ids:Array(String)}} GROUP BY cause_id""",
    partial(struct, kind=IncidentNames),
    {"min_rank": 0, **ANY_TIME},
)
INCIDENT_REQUESTS = Query(
    "incident_requests",
    "Every request an incident reached, in time order.",
    f"""SELECT id AS finding_id, requester_request AS request_id, requester_tenant AS tenant_id, creator_tenant, key,
  severity,
  toUnixTimestamp64Micro(shown_time) AS time_us
FROM ({CURRENT}) WHERE status = 'open' AND cause_id = {{cause_id:String}}
ORDER BY time_us, finding_id LIMIT {{limit:UInt32}}""",
    partial(struct, kind=TouchedRequest),
    {"limit": 10_000, **ANY_TIME},
)
