"""Queries for dead letters, one by one: what a person asks for, and what the sink must remember after a restart."""

from ..schemas.dead_letters import DeadLetter
from .operation_queries import DEAD_LETTER_COLUMNS
from .query import Query
from .rows import dead_letter_from_row

_ONCE = "LIMIT 1 BY topic, partition_id, record_offset, event_index, stage, code"

DEAD_LETTERS_FOUND = Query[DeadLetter](
    "dead_letters_found",
    "Refused input by stage, code and topic, newest first; refused since `since_us` by the broker's clock.",
    f"""SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters
WHERE at >= fromUnixTimestamp64Micro({{since_us:Int64}}) AND ({{stage:String}} = '' OR stage = {{stage:String}})
  AND ({{code:String}} = '' OR code = {{code:String}}) AND ({{topic:String}} = '' OR topic = {{topic:String}})
ORDER BY at DESC, topic, partition_id, record_offset, event_index, code {_ONCE} LIMIT {{limit:UInt32}}""",
    dead_letter_from_row,
    {"since_us": 0, "stage": "", "code": "", "topic": "", "limit": 100},
)
DEAD_LETTERS_OF_RECORD = Query[DeadLetter](
    "dead_letters_of_record",
    "Every refusal of one record.",
    f"""SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters
WHERE topic = {{topic:String}} AND partition_id = {{partition:Int64}} AND record_offset = {{offset:Int64}}
ORDER BY event_index, stage, code {_ONCE}""",
    dead_letter_from_row,
)
REFUSED_OFFSETS = Query[int](
    "refused_offsets",
    "Offsets `from_offset` up to, not with, `before_offset` of records that were refused whole at one stage.",
    """SELECT DISTINCT record_offset AS offset FROM dead_letters
WHERE topic = {topic:String} AND partition_id = {partition:Int64} AND record_offset >= {from_offset:Int64}
  AND record_offset < {before_offset:Int64} AND event_index IS NULL AND stage = {stage:String} ORDER BY offset""",
    lambda row: int(row["offset"]),
)
