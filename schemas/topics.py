"""The topics, as they must be: workers refuse to start on anything else."""

from typing import Literal

from msgspec import Struct

LIFECYCLE = "kvtrail.lifecycle"
FINDINGS = "kvtrail.findings"
FACTS = "kvtrail.facts"
CONTEXT = "kvtrail.context"
STATE = "kvtrail.state"
DEAD_LETTER = "kvtrail.dead-letter"
DIGESTS = "kvtrail.digests"
NOTIFICATIONS = "kvtrail.notifications"
OBSERVATIONS = "kvtrail.observations"


class TopicSpec(Struct, frozen=True, kw_only=True):
    """One topic. `partitioned`: has the deployment's fixed partition count; else exactly one partition.
    `append_time`: Kafka stamps records itself (LogAppendTime), which is what orders records between topics.
    `segment_ms`: how long until what a compacted topic no longer needs can go; only closed segments are compacted."""

    name: str
    partitioned: bool
    cleanup: Literal["delete", "compact"] = "delete"
    append_time: bool = True
    retention_ms: int = 7 * 24 * 3600 * 1000
    segment_ms: int = 3600 * 1000
    purpose: str = ""


TOPICS: tuple[TopicSpec, ...] = (
    TopicSpec(name=LIFECYCLE, partitioned=True, purpose="envelopes of lifecycle events, keyed by home"),
    TopicSpec(name=FINDINGS, partitioned=True, purpose="findings by revision, keyed by home"),
    TopicSpec(name=FACTS, partitioned=False, cleanup="compact", purpose="facts, read whole by every worker"),
    TopicSpec(name=CONTEXT, partitioned=True, purpose="request contexts, keyed by request id"),
    TopicSpec(name=STATE, partitioned=True, cleanup="compact", purpose="detector snapshots"),
    TopicSpec(name=DEAD_LETTER, partitioned=False, purpose="refused records with their raw bytes and cause"),
    TopicSpec(name=DIGESTS, partitioned=False, retention_ms=-1, purpose="signed digests of what was stored"),
    TopicSpec(
        name=OBSERVATIONS,
        partitioned=True,
        retention_ms=24 * 3600 * 1000,
        purpose="what detectors hand on to the rules that compare homes, by the partition it comes from",
    ),
    TopicSpec(
        name=NOTIFICATIONS,
        partitioned=False,
        retention_ms=90 * 24 * 3600 * 1000,
        purpose="what was told about incidents, and each delivery",
    ),
)
