"""When was the heartbeat last found, in each partition, and is it overdue? Pure: time is given."""

from ..judging.incidents import Incident
from ..schemas.dimensions import Severity
from ..schemas.findings import Finding, cause_id
from ..schemas.homes import partition_of
from ..schemas.notifications import PIPELINE_SILENT
from ..schemas.paging import HeartbeatConfig


class HeartbeatWatch:
    """Told of every finding about the heartbeat. `since_us`: nothing is expected before."""

    def __init__(self, settings: HeartbeatConfig, partitions: int, since_us: int) -> None:
        self.last = dict.fromkeys(range(partitions), since_us)
        """Partition -> when its newest finding was appended."""
        self._settings = settings

    def seen(self, finding: Finding, append_us: int) -> float | None:
        """A finding about the heartbeat. Seconds from the hit to its finding on the topic; None where it is no hit."""
        if finding.requester is None:
            return None
        partition = partition_of(finding.home, len(self.last))
        self.last[partition] = max(self.last[partition], append_us)
        return max(append_us - finding.event_time_us, 0) / 1e6 if finding.revision == 1 else None

    def silent(self, now_us: int) -> list[int]:
        """The partitions whose heartbeat is overdue."""
        if not self._settings.enabled:
            return []
        overdue_us = now_us - round(self._settings.deadline_s * 1e6)
        return [partition for partition, seen_us in self.last.items() if seen_us < overdue_us]

    def incident(self, deployment: str, silent: list[int]) -> Incident:
        """The silence, as an incident of its own; `findings` counts partitions."""
        times = [self.last[partition] for partition in silent] or [0]
        return Incident(
            cause_id=cause_id(deployment, "", PIPELINE_SILENT, ""), cause=PIPELINE_SILENT, dimension="", store="",
            severity=Severity.CRITICAL, findings=len(silent), tenants=(), keys=0, first_us=min(times),
            last_us=max(times),
        )  # fmt: skip
