"""Facts joined to events: what held for an event, as of its own time, among the facts that had been appended."""

from ..schemas.facts import Fact


class FactBook:
    """Every fact a worker has read. Shared by all judges of a worker; not part of snapshots."""

    def add(self, fact: Fact, append_us: int) -> bool:
        """Take one fact, appended to the log at `append_us`. False when its id is known already."""
        raise NotImplementedError
