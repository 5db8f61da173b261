"""Queries for epochs: what a bump would cost, and whether everybody has moved on from the epoch before it.

A scope is two arrays, dimensions and their values, and for a corpus the digests that it has had; empty: everything.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from .query import Query
from .results import EpochCost, EpochNode, EpochTraffic, EpochUse, struct

NO_SCOPE: Mapping[str, Any] = {"names": [], "values": [], "corpora": []}


def _scope(identity: str) -> str:
    return f"""(arrayAll((n, v) -> mapContains({identity}, n) AND {identity}[n] = v,
    {{names:Array(String)}}, {{values:Array(String)}})
    AND (empty({{corpora:Array(String)}}) OR has({{corpora:Array(String)}}, {identity}['corpus_digest'])))"""


_AFTER = "event_time > fromUnixTimestamp64Micro({bump_us:Int64})"
_SINCE = "event_time >= fromUnixTimestamp64Micro({since_us:Int64})"
# A cache that knows only the request has its identity in a resolution.
_TOLD = f"""SELECT event_id, anyLast(identity) AS late FROM resolutions
      WHERE {_SINCE} GROUP BY event_id"""

EPOCH_USES = Query(
    "epoch_uses",
    "Hits and creates of a scope after a bump, by node, template, tenant and the epochs asked for and served.",
    f"""SELECT node, template_id, tenant_id, created, asked, asked_known, served, served_known,
  count() AS uses, sum(u.reused_tokens) AS reused_tokens,
  toUnixTimestamp64Micro(min(u.event_time)) AS first_us, toUnixTimestamp64Micro(max(u.event_time)) AS last_us
FROM (
  SELECT a.node AS node, a.event_time AS event_time, a.reused_tokens AS reused_tokens,
    toUInt8(a.type = 'create') AS created, a.who['template_id'] AS template_id, a.who['tenant_id'] AS tenant_id,
    a.who['epoch'] AS asked, toUInt8(mapContains(a.who, 'epoch') AND {_scope("a.who")}) AS asked_known,
    if(created, a.who, m.identity) AS maker, maker['epoch'] AS served,
    toUInt8(mapContains(maker, 'epoch') AND {_scope("maker")}) AS served_known
  FROM (
    SELECT e.node AS node, e.type AS type, e.event_time AS event_time, e.reused_tokens AS reused_tokens,
      e.home AS home, e.store AS store, e.tier AS tier, e.rank AS rank, e.copy AS copy, e.key AS key,
      mapUpdate(CAST(r.late, 'Map(String, String)'), CAST(e.identity, 'Map(String, String)')) AS who
    FROM events AS e LEFT JOIN ({_TOLD}) AS r ON r.event_id = e.id
    WHERE type IN ('hit', 'create') AND {_AFTER}
  ) AS a ASOF LEFT JOIN (
    SELECT home, store, tier, rank, copy, key, event_time, CAST(identity, 'Map(String, String)') AS identity
    FROM events WHERE type = 'create' AND {_SINCE}
      AND key IN (SELECT key FROM events WHERE type = 'hit' AND {_AFTER})
  ) AS m ON a.home = m.home AND a.store = m.store AND a.tier = m.tier AND a.rank = m.rank AND a.copy = m.copy
    AND a.key = m.key AND a.event_time >= m.event_time
  WHERE {_scope("who")} OR {_scope("m.identity")}
) AS u
GROUP BY node, template_id, tenant_id, created, asked, asked_known, served, served_known
ORDER BY node, template_id, tenant_id, last_us""",
    partial(struct, kind=EpochUse),
    dict(NO_SCOPE),
)
EPOCH_NODES = Query(
    "epoch_nodes",
    "Nodes that used a scope before a bump, and when anything was last heard of each.",
    f"""SELECT node, countIf(NOT {_AFTER} AND type IN ('hit', 'create') AND {_scope("identity")}) AS uses_before,
  toUnixTimestamp64Micro(max(event_time)) AS heard_us
FROM events WHERE {_SINCE} GROUP BY node HAVING uses_before > 0 ORDER BY node""",
    partial(struct, kind=EpochNode),
    dict(NO_SCOPE),
)
_ENTRY_TYPES = "('create', 'hit', 'expire', 'invalidate', 'commit')"
EPOCH_COST = Query(
    "epoch_cost",
    "Live entries of a scope and the tokens to compute them again; of these, the ones hit since `hot_us`.",
    f"""SELECT count() AS entries, uniqExact(prefix) AS prefixes, sum(c.entry_tokens) AS tokens,
  countIf(hits > 0) AS hot_entries, uniqExactIf(prefix, hits > 0) AS hot_prefixes,
  sumIf(c.entry_tokens, hits > 0) AS hot_tokens, uniqExact(home) AS homes
FROM (
  SELECT store, home, key, max(l.made_tokens) AS entry_tokens, any(l.prefix) AS prefix, sum(l.hits) AS hits
  FROM (
    SELECT store, tier, home, rank, copy, key,
      argMaxIf(e.tokens, event_time, type = 'create') AS made_tokens,
      argMaxIf(CAST(e.identity, 'Map(String, String)'), event_time, type = 'create') AS who,
      argMaxIf(e.ttl_s, event_time, type = 'create') AS made_ttl_s,
      maxIf(event_time, type = 'create') AS made_at,
      maxIf(event_time, type = 'expire' OR (type = 'invalidate' AND scope = 'entry' AND outcome != 'refused'))
        AS ended_at,
      countIf(type = 'hit' AND event_time >= fromUnixTimestamp64Micro({{hot_us:Int64}})) AS hits,
      if(who['token_ids_digest'] != '', who['token_ids_digest'], if(who['prefix_digest'] != '', who['prefix_digest'],
        key)) AS prefix
    FROM events AS e WHERE {_SINCE} AND key != '' AND type IN {_ENTRY_TYPES}
    GROUP BY store, tier, home, rank, copy, key
    HAVING countIf(type = 'create') > 0 AND ended_at < made_at AND (made_ttl_s = 0
      OR toUnixTimestamp64Micro(made_at) + toInt64(made_ttl_s * 1000000) > {{now_us:Int64}})
  ) AS l LEFT JOIN (
    SELECT home, max(event_time) AS started FROM events WHERE {_SINCE} AND type = 'node_start' GROUP BY home
  ) AS s ON s.home = l.home
  WHERE (tier NOT IN ('gpu', 'host') OR s.started < l.made_at) AND {_scope("who")}
  GROUP BY store, home, key
) AS c""",
    partial(struct, kind=EpochCost),
    dict(NO_SCOPE),
)
EPOCH_TRAFFIC = Query(
    "epoch_traffic",
    "Hits since `since_us`, and what was computed for entries: all of it, and a scope's share.",
    f"""SELECT countIf(type = 'hit') AS hits, countIf(type = 'hit' AND {_scope("who")}) AS scope_hits,
  sumIf(t.reused_tokens, type = 'hit') AS reused_tokens,
  sumIf(t.reused_tokens, type = 'hit' AND {_scope("who")}) AS scope_reused_tokens,
  sumIf(t.computed, type = 'create') AS computed_tokens, uniqExact(node) AS nodes
FROM (
  SELECT e.type AS type, e.node AS node, e.reused_tokens AS reused_tokens,
    if(JSONHas(e.body, 'computed_tokens'), JSONExtractUInt(e.body, 'computed_tokens'), e.tokens) AS computed,
    mapUpdate(CAST(r.late, 'Map(String, String)'), CAST(e.identity, 'Map(String, String)')) AS who
  FROM events AS e LEFT JOIN ({_TOLD}) AS r ON r.event_id = e.id
  WHERE {_SINCE} AND type IN ('hit', 'create')
) AS t""",
    partial(struct, kind=EpochTraffic),
    dict(NO_SCOPE),
)
