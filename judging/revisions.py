"""Findings over time: opened, changed and retracted in numbered revisions, never silently."""

import msgspec

from ..schemas.findings import Finding

STANDING_KEPT = 200_000


class Revisions:
    """The standing revision of every finding that may still change, and the log of new ones."""

    def __init__(self) -> None:
        self.standing: dict[str, Finding] = {}
        self.fresh: list[Finding] = []

    def put(self, subject_id: str, finding: Finding | None, reason: str = "") -> None:
        """What is found about a subject now, None for nothing. Says so if that is news."""
        known = self.standing.get(subject_id)
        if finding is None:
            if known is not None and known.status == "open":
                self._log(
                    msgspec.structs.replace(known, status="retracted", revision=known.revision + 1, reason=reason)
                )
            return
        if known is None:
            self._log(finding)
            return
        finding = msgspec.structs.replace(finding, revision=known.revision, reason=known.reason)
        if finding != known:
            self._log(msgspec.structs.replace(finding, revision=known.revision + 1, reason=reason))

    def settle(self, subject_id: str) -> None:
        """The finding about this subject will not change any more."""
        self.standing.pop(subject_id, None)

    def drain(self) -> list[Finding]:
        """New revisions since the last call, in order: of each finding its opening, and how it stands now.

        What one record changes again and again is one change: a record that arrives behind its successor closes a gap
        number by number. Revision numbers count every step, so they do not depend on how events are packed into
        records; the opening is always told, so that nobody hears of an end without a beginning.
        """
        fresh, self.fresh = self.fresh, []
        if len(fresh) < 2:
            return fresh
        newest = {finding.id: finding.revision for finding in fresh}
        return [finding for finding in fresh if finding.revision in (1, newest[finding.id])]

    def _log(self, finding: Finding) -> None:
        self.standing[finding.id] = finding
        if len(self.standing) > STANDING_KEPT:
            del self.standing[next(iter(self.standing))]
        self.fresh.append(finding)
