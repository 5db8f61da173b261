"""What can go wrong in judging itself: only its own snapshots; bad input never gets here."""

from ..schemas.errors import KvtrailError


class SnapshotError(KvtrailError):
    """A snapshot is damaged, or was written by another version."""

    code = "snapshot"
