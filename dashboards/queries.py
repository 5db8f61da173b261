"""The dashboard's SQL, by name. Tables are not qualified: the data source names the database.

Two times matter. Charts and tables place things at `event_time`, when they happened by the producer's clock;
freshness and alerts use `append_time` and `inserted_at`, when kvtrail learnt of them, so that a late verdict still
wakes somebody.
"""

from ..store.finding_queries import NEWEST
from .shapes import Format, PanelQuery

_CURRENT = f"""(
  SELECT {{columns}}
  FROM findings{{where}}
  ORDER BY {NEWEST}
  LIMIT 1 BY id
)"""
"""Findings come in revisions and every one is kept: only the last one of each counts, and it may be retracted."""

_OPEN = "status = 'open' AND $__timeFilter(event_time)"
_TENANT = (
    "$__conditionalAll("
    "hasAny([toString(creator_tenant), toString(requester_tenant)], [${tenant:singlequote}]), $tenant)"
)
CHECK_CAUSES = (
    "CANARY_MISMATCH", "SPOT_CHECK_FAILED", "BYPASS_DIFF_IMPLICATED", "ISOLATION_NOT_ENFORCED", "CHECK_INCONCLUSIVE",
)  # fmt: skip
"""Causes about active checks. Such a finding is about a check, not about one more hit."""
_CHECKED = f"({', '.join(map(repr, CHECK_CAUSES))})"
_OF_TENANT = "$__conditionalAll(tenant_id IN (${tenant:singlequote}), $tenant)"


def _current(columns: str, where: str = "") -> str:
    return _CURRENT.format(columns=columns, where=where and f"\n  WHERE {where}")


OPEN_FINDINGS = PanelQuery(
    name="open_findings",
    why="Open findings of severity critical or high whose event lies in the time range. Each is one wrong use of a "
    "cached entry; retracted ones do not count.",
    columns={"value": "number"},
    sql=f"""
SELECT count() AS value
FROM {_current("event_time, status, severity, creator_tenant, requester_tenant")}
WHERE {_OPEN} AND severity IN ('critical', 'high')
  AND {_TENANT}
""",
)

TENANTS_AFFECTED = PanelQuery(
    name="tenants_affected",
    why="Tenants on either side of an open finding of severity critical or high: whose entry was served, or who was "
    "served from it.",
    columns={"value": "number"},
    sql=f"""
SELECT uniqExact(tenant) AS value
FROM (
  SELECT arrayJoin([toString(creator_tenant), toString(requester_tenant)]) AS tenant
  FROM {_current("event_time, status, severity, creator_tenant, requester_tenant")}
  WHERE {_OPEN} AND severity IN ('critical', 'high')
    AND {_TENANT}
)
WHERE tenant != ''
""",
)

EVENT_RATE = PanelQuery(
    name="event_rate",
    why="Lifecycle events a second over the time range, all types. Zero while engines serve means that nothing is "
    "watched.",
    columns={"value": "number"},
    sql=f"""
SELECT sum(n) / greatest(1, dateDiff('second', $__fromTime, $__toTime)) AS value
FROM per_minute
WHERE $__timeFilter(minute) AND {_OF_TENANT}
""",
)

NEWEST_EVENT_AGE = PanelQuery(
    name="newest_event_age",
    why="Time since Kafka took the newest event that ClickHouse has. It grows when producers stop, and when the sink "
    "lags or is down.",
    columns={"value": "number"},
    sql="""
SELECT if(count() = 0, NULL, dateDiff('millisecond', max(append_time), now64(6)) / 1000) AS value
FROM batches
WHERE $__timeFilter(append_time) AND events > 0
""",
)

DEAD_LETTERS = PanelQuery(
    name="dead_letters",
    why="Records and events refused in the time range. Each is kept with its raw bytes and the reason; what it would "
    "have told is missing from the verdicts.",
    columns={"value": "number"},
    sql="""
SELECT uniqExact(topic, partition_id, record_offset, ifNull(event_index, -1), stage, code) AS value
FROM dead_letters
WHERE $__timeFilter(at)
""",
)

STREAM_GAPS = PanelQuery(
    name="stream_gaps",
    why="Lanes (one process's events in one order) from which events are missing in the time range. Verdicts that rest "
    "on them are marked incomplete.",
    columns={"value": "number"},
    sql=f"""
SELECT count() AS value
FROM {_current("event_time, status, cause")}
WHERE {_OPEN} AND cause = 'STREAM_GAP'
""",
)

FINDINGS_BY_CAUSE = PanelQuery(
    name="findings_by_cause",
    why="Open findings by cause, at the time of the event they are about.",
    columns={"time": "time", "cause": "text", "findings": "number"},
    format=Format.TIMESERIES,
    sql=f"""
SELECT $__timeInterval(event_time) AS time, toString(cause) AS cause, count() AS findings
FROM {_current("event_time, status, cause, creator_tenant, requester_tenant")}
WHERE {_OPEN} AND {_TENANT}
GROUP BY time, cause
ORDER BY time, cause
""",
)

INCIDENTS = PanelQuery(
    name="incidents",
    why="Open findings grouped by root cause: one store, one cause, one dimension that its key does not cover. Follow "
    "the incident into the console for every request and tenant it touched.",
    columns={
        "severity": "text", "cause": "text", "dimension": "text", "store": "text", "findings": "number",
        "tenants": "number", "keys": "number", "tokens": "number", "first": "time", "last": "time", "incident": "text",
    },
    sql=f"""
SELECT toString(argMax(severity, severity_rank)) AS severity, toString(any(cause)) AS cause,
  toString(any(dimension)) AS dimension, toString(any(store)) AS store, count() AS findings,
  length(arrayFilter(tenant -> tenant != '',
    groupUniqArrayArray([toString(creator_tenant), toString(requester_tenant)]))) AS tenants,
  uniqExact(key) AS keys, sum(reused_tokens) AS tokens, min(event_time) AS first, max(event_time) AS last,
  cause_id AS incident
FROM {_current(
    "event_time, status, severity, severity_rank, cause, dimension, store, key, reused_tokens, cause_id,"
    " creator_tenant, requester_tenant"
)}
WHERE {_OPEN} AND cause_id != '' AND {_TENANT}
GROUP BY cause_id
ORDER BY max(severity_rank) DESC, findings DESC
LIMIT 100
""",
)  # fmt: skip

WRONG_HITS = PanelQuery(
    name="wrong_hits",
    why="The latest wrong hits: whose entry it was, who was served from it, and on what the two disagree.",
    columns={
        "time": "time", "severity": "text", "cause": "text", "creator": "text", "requester": "text", "request": "text",
        "key": "text", "differing": "text", "reused": "number", "finding": "text",
    },
    sql=f"""
SELECT event_time AS time, toString(severity) AS severity, toString(cause) AS cause,
  toString(creator_tenant) AS creator, toString(requester_tenant) AS requester, requester_request AS request, key,
  arrayStringConcat(differing, ', ') AS differing, reused_tokens AS reused, id AS finding
FROM {_current(
    "id, event_time, status, severity, cause, key, differing, reused_tokens, creator_tenant, requester_tenant,"
    " requester_request, requester_event"
)}
WHERE {_OPEN} AND requester_event != '' AND cause NOT IN {_CHECKED} AND {_TENANT}
ORDER BY time DESC
LIMIT 100
""",
)  # fmt: skip

TENANT_MATRIX = PanelQuery(
    name="tenant_matrix",
    why="Hits on another tenant's entry: rows are whose entry it was, columns who was served from it. An empty matrix "
    "is the normal state.",
    columns={"creator": "text", "requester": "text", "hits": "number"},
    sql=f"""
SELECT toString(creator_tenant) AS creator, toString(requester_tenant) AS requester, count() AS hits
FROM {_current("event_time, status, cause, creator_tenant, requester_tenant")}
WHERE {_OPEN} AND creator_tenant != '' AND requester_tenant != '' AND creator_tenant != requester_tenant
  AND cause NOT IN {_CHECKED} AND {_TENANT}
GROUP BY creator, requester
ORDER BY hits DESC
LIMIT 400
""",
)

REUSE_BY_TENANT = PanelQuery(
    name="reuse_by_tenant",
    why="Hits and creates a second by tenant: what the cache does, beside what it does wrong.",
    columns={"time": "time", "series": "text", "rate": "number"},
    format=Format.TIMESERIES,
    sql=f"""
SELECT $__timeInterval(minute) AS time, concat(tenant_id, ' ', type) AS series,
  sum(n) / greatest(60, $__interval_s) AS rate
FROM per_minute
WHERE $__timeFilter(minute) AND type IN ('hit', 'create') AND {_OF_TENANT}
GROUP BY time, series
ORDER BY time, series
""",
)

COVERAGE = PanelQuery(
    name="coverage",
    why="Share of hits whose requester told each dimension of its identity. What is not told cannot be compared: it "
    "lowers coverage and is never taken for equal.",
    columns={"dimension": "text", "known": "number", "hits": "number"},
    sql=f"""
WITH (
  SELECT count() FROM events WHERE type = 'hit' AND $__timeFilter(append_time) AND {_OF_TENANT}
) AS total
SELECT toString(arrayJoin(mapKeys(identity))) AS dimension, count() / greatest(1, total) AS known, count() AS hits
FROM events
WHERE type = 'hit' AND $__timeFilter(append_time) AND {_OF_TENANT}
GROUP BY dimension
ORDER BY known DESC, dimension
LIMIT 64
""",
)

LATENCY = PanelQuery(
    name="latency",
    why="How old things are when they get here: an event when Kafka takes it (99th percentile), the oldest event of a "
    "batch when it can be queried, and a finding when it can be queried, since its event (99th percentile).",
    columns={"time": "time", "stage": "text", "seconds": "number"},
    format=Format.TIMESERIES,
    sql="""
SELECT time, stage, seconds
FROM (
  SELECT $__timeInterval(minute) AS time, 'event to Kafka' AS stage,
    greatest(0, quantilesTDigestMerge(0.5, 0.9, 0.99)(lag_ms)[3]) / 1000 AS seconds
  FROM per_minute
  WHERE $__timeFilter(minute)
  GROUP BY time
  UNION ALL
  SELECT $__timeInterval(b.append_time) AS time, 'Kafka to ClickHouse' AS stage,
    max(dateDiff('millisecond', b.append_time, b.inserted_at)) / 1000 AS seconds
  FROM batches AS b
  WHERE $__timeFilter(b.append_time)
  GROUP BY time
  UNION ALL
  SELECT $__timeInterval(f.event_time) AS time, 'event to finding' AS stage,
    quantileExact(0.99)(greatest(0, dateDiff('millisecond', f.event_time, f.inserted_at))) / 1000 AS seconds
  FROM findings AS f
  WHERE $__timeFilter(f.event_time) AND f.revision = 1
  GROUP BY time
)
ORDER BY time, stage
""",
)

CHECKS_BY_RESULT = PanelQuery(
    name="checks_by_result",
    why="Active checks by kind and result: canaries, spot checks, bypass diffs, isolation probes. No result is no "
    "proof of anything, and a kind that is missing here watches nothing.",
    columns={"time": "time", "series": "text", "checks": "number"},
    format=Format.TIMESERIES,
    sql=f"""
SELECT $__timeInterval(event_time) AS time,
  concat(replaceAll(JSONExtractString(body, 'check'), '_', ' '), ', ', JSONExtractString(body, 'result')) AS series,
  count() AS checks
FROM events
WHERE type = 'check' AND $__timeFilter(event_time) AND JSONExtractString(body, 'check') != 'heartbeat'
  AND {_OF_TENANT}
GROUP BY time, series
ORDER BY time, series
""",
)

CHECKS_NOT_PASSED = PanelQuery(
    name="checks_not_passed",
    why="The latest checks that failed or came to no result, with what should have been seen and what was: tenants for "
    "a canary, numbers otherwise.",
    columns={
        "time": "time", "check": "text", "result": "text", "tenant": "text", "expected": "text", "observed": "text",
        "request": "text", "key": "text", "detail": "text",
    },
    sql=f"""
SELECT event_time AS time, replaceAll(JSONExtractString(body, 'check'), '_', ' ') AS check,
  JSONExtractString(body, 'result') AS result, tenant_id AS tenant, JSONExtractString(body, 'expected') AS expected,
  JSONExtractString(body, 'observed') AS observed, request_id AS request, key,
  JSONExtractString(body, 'detail') AS detail
FROM events
WHERE type = 'check' AND $__timeFilter(event_time) AND JSONExtractString(body, 'check') != 'heartbeat'
  AND JSONExtractString(body, 'result') != 'pass' AND {_OF_TENANT}
ORDER BY time DESC
LIMIT 100
""",
)  # fmt: skip

TENANTS = PanelQuery(
    name="tenants",
    why="Tenants with events in the time range.",
    columns={"tenant_id": "text"},
    sql="""
SELECT DISTINCT toString(tenant_id) AS tenant_id
FROM per_minute
WHERE $__timeFilter(minute) AND tenant_id != ''
ORDER BY tenant_id
LIMIT 500
""",
)

CRITICAL_MARKS = PanelQuery(
    name="critical_marks",
    why="Critical findings, as marks on every chart.",
    columns={"time": "time", "text": "text", "tags": "text"},
    sql=f"""
SELECT event_time AS time, title AS text, toString(cause) AS tags
FROM {_current("event_time, status, severity, title, cause")}
WHERE {_OPEN} AND severity = 'critical'
ORDER BY time
LIMIT 200
""",
)

CRITICAL_ALERT = PanelQuery(
    name="critical_alert",
    why="Open critical findings that arrived within the rule's window. The last revision of a finding is its newest, "
    "so looking at the window alone is enough to know whether it is still open.",
    columns={"value": "number"},
    sql=f"""
SELECT count() AS value
FROM {_current("status, severity", "$__timeFilter(append_time)")}
WHERE status = 'open' AND severity = 'critical'
""",
)

CHECK_ALERT = PanelQuery(
    name="check_alert",
    why="Open findings about active checks that arrived within the rule's window. The critical ones page by the rule "
    "for critical findings.",
    columns={"value": "number"},
    sql=f"""
SELECT count() AS value
FROM {_current("status, severity, cause", "$__timeFilter(append_time)")}
WHERE status = 'open' AND severity != 'critical' AND cause IN {_CHECKED}
""",
)

EVENTS_ALERT = PanelQuery(
    name="events_alert",
    why="Events that Kafka took and ClickHouse has within the rule's window: zero means that nothing is watched.",
    columns={"value": "number"},
    sql="""
SELECT sum(events) AS value
FROM batches
WHERE $__timeFilter(append_time)
""",
)

QUERIES: tuple[PanelQuery, ...] = (
    OPEN_FINDINGS, TENANTS_AFFECTED, EVENT_RATE, NEWEST_EVENT_AGE, DEAD_LETTERS, STREAM_GAPS, FINDINGS_BY_CAUSE,
    INCIDENTS, WRONG_HITS, TENANT_MATRIX, REUSE_BY_TENANT, COVERAGE, LATENCY, CHECKS_BY_RESULT, CHECKS_NOT_PASSED,
    TENANTS, CRITICAL_MARKS, CRITICAL_ALERT, CHECK_ALERT, EVENTS_ALERT,
)  # fmt: skip
"""Every query of panels, variables, annotations and alert rules."""
