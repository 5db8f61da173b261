"""What a publisher says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """A snapshot. Every accepted event is sent, buffered or dropped: `accepted == sent + buffered + dropped`.

    `buffered`: in the engine's process, not acknowledged yet. `sent`: acknowledged; with a spool: by the other end or
    on disk, where `spooled` records of `spooled_bytes` wait, those of earlier processes of the node too. `dropped` by
    reason: `full` (the buffer was at its bound), `closed` (published after `close`, or not acknowledged by its
    deadline), `rejected` (the other end will never take the record). `refused` by field: calls with arguments no
    event can hold; one that says what happened to an entry is a gap, too. `records`, `bytes`: acknowledged.
    `failures`: attempts that were not; `last_error`: the last one's reason, empty again after an outage. Drops for
    `full` and `rejected` show as gaps of their lanes. `spool_trouble`: why the spool takes no more (`spool_full`,
    `disk_full`, `disk_error`).
    `lag_s`: how long the oldest record has been waiting to be acknowledged; with a spool, by the other end.
    """

    node: str
    incarnation: str
    accepted: int = 0
    buffered: int = 0
    sent: int = 0
    records: int = 0
    bytes: int = 0
    failures: int = 0
    last_error: str = ""
    spooled: int = 0
    spooled_bytes: int = 0
    spool_trouble: str = ""
    lag_s: float = 0.0
    dropped: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """All drops, whatever the reason."""
        return sum(self.dropped.values())


def metrics(stats: PublisherStats) -> str:
    """A snapshot in Prometheus' text format, for an engine that has a page of its own to put it on."""
    node = stats.node.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = []
    for name, kind, text, values in (
        ("accepted_events_total", "counter", "Events accepted.", {"": stats.accepted}),
        ("buffered_events", "gauge", "Events in the engine's process.", {"": stats.buffered}),
        ("sent_events_total", "counter", "Events acknowledged, or safe on disk.", {"": stats.sent}),
        ("sent_bytes_total", "counter", "Bytes of those records.", {"": stats.bytes}),
        ("failures_total", "counter", "Attempts that were not acknowledged.", {"": stats.failures}),
        ("spooled_records", "gauge", "Records that wait on disk.", {"": stats.spooled}),
        ("spooled_bytes", "gauge", "Bytes on disk.", {"": stats.spooled_bytes}),
        ("lag_seconds", "gauge", "How long the oldest record has been waiting.", {"": round(stats.lag_s, 3)}),
        ("dropped_events_total", "counter", "Events lost, by reason.", _labelled("reason", stats.dropped)),
        (
            "refused_calls_total",
            "counter",
            "Calls that no event can hold, by field.",
            _labelled("field", stats.refused),
        ),
    ):
        lines.append(f"# HELP kvtrail_publisher_{name} {text}\n# TYPE kvtrail_publisher_{name} {kind}\n")
        lines += [f'kvtrail_publisher_{name}{{node="{node}"{label}}} {value}\n' for label, value in values.items()]
    return "".join(lines)


def _labelled(label: str, counts: Mapping[str, int]) -> dict[str, float]:
    return {f',{label}="{name}"': count for name, count in counts.items()}
