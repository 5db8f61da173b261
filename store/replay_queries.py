"""Queries for judging history again: evidence in the order of the log, and facts with the time of their append."""

import base64
from functools import partial
from typing import Any

from msgspec import Struct

from ..schemas.facts import Fact
from .query import IN_TIME, Query
from .results import struct
from .rows import fact_from_row


class EvidencePlace(Struct, frozen=True):
    """How much evidence of one partition there is."""

    partition: int
    first_offset: int
    last_offset: int
    records: int


class Evidence(Struct, frozen=True):
    """One record as it was read from Kafka; `sha256` is what was noted of `raw` then, in hexadecimal."""

    offset: int
    append_us: int
    sha256: str
    raw: bytes


EVIDENCE_PLACES = Query(
    "evidence_places",
    "The partitions of a topic of which records are stored, up to an append time.",
    """SELECT k_partition AS partition, toInt64(min(k_offset)) AS first_offset, toInt64(max(k_offset)) AS last_offset,
  count() AS records
FROM evidence WHERE k_topic = {topic:String} AND append_time >= fromUnixTimestamp64Micro({since_us:Int64})
  AND append_time <= fromUnixTimestamp64Micro({until_us:Int64})
GROUP BY k_partition ORDER BY k_partition""",
    partial(struct, kind=EvidencePlace),
)


APPENDED_BETWEEN = Query(
    "appended_between",
    "When events of a span of their own time were appended: (events, first append_us, last append_us).",
    f"""SELECT count() AS events, toUnixTimestamp64Micro(min(e.append_time)) AS first_us,
  toUnixTimestamp64Micro(max(e.append_time)) AS last_us FROM events AS e WHERE {IN_TIME}""",
    lambda row: (int(row["events"]), int(row["first_us"]), int(row["last_us"])),
)


def _evidence(row: Any) -> Evidence:
    return Evidence(row["offset"], row["append_us"], row["digest"], base64.b64decode(row["raw_base64"]))


EVIDENCE_PAGE = Query(
    "evidence_page",
    "The next records of one partition, with their exact bytes, in the order of the log, each once.",
    """SELECT toInt64(k_offset) AS offset, toUnixTimestamp64Micro(append_time) AS append_us,
  lower(hex(sha256)) AS digest, base64Encode(raw) AS raw_base64
FROM evidence WHERE k_topic = {topic:String} AND k_partition = {partition:UInt32}
  AND k_offset >= {from_offset:UInt64} AND append_time >= fromUnixTimestamp64Micro({since_us:Int64})
  AND append_time <= fromUnixTimestamp64Micro({until_us:Int64})
ORDER BY k_topic, k_partition, k_offset LIMIT 1 BY k_offset LIMIT {limit:UInt32}""",
    _evidence,
    {"limit": 200},
)


def _appended(row: Any) -> tuple[int, Fact]:
    return row["append_us"], fact_from_row(row)


FACTS_APPENDED = Query(
    "facts_appended",
    "Every fact, the first with its id, and when it was appended: (append_us, fact).",
    """SELECT toUnixTimestamp64Micro(append_time) AS append_us, fact FROM facts
ORDER BY append_time, k_partition, k_offset LIMIT 1 BY id""",
    _appended,
)
