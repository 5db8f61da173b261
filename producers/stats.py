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
    event can hold, which got no sequence number. `records`, `bytes`: acknowledged. `failures`: attempts that were
    not; `last_error`: the last one's reason, empty again after an outage. Drops for `full` and `rejected` show as
    gaps of their lanes. `spool_trouble`: why the spool takes no more (`spool_full`, `disk_full`, `disk_error`).
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
    dropped: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """All drops, whatever the reason."""
        return sum(self.dropped.values())
