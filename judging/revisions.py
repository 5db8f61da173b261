"""Findings over time: opened, changed and retracted in numbered revisions, never silently.

Of what may still be judged again, whole findings are kept as long as there is room, and then their numbers: a finding
that began again at 1 would be taken for an old revision of itself.
"""

import msgspec

from ..schemas.findings import Finding

STANDING_KEPT = 200_000
NUMBERS_KEPT = 500_000
"""Last revisions of findings for which there was no room."""
_UNTIL_FILLED = frozenset({"STREAM_GAP", "CHECK_INCONCLUSIVE"})
"""Causes that end by what comes later, whenever that is: while they are open, others make room first."""
_PASSED_OVER = 16


class Revisions:
    """The standing revision of every finding that may still change, and the log of new ones."""

    def __init__(self) -> None:
        self.standing: dict[str, Finding] = {}
        self.numbers: dict[bytes, int] = {}
        """Finding id, packed -> its last revision: what was pushed out of `standing` and may still be judged again."""
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
            last = self.numbers.pop(bytes.fromhex(subject_id), 0) if self.numbers else 0
            self._log(msgspec.structs.replace(finding, revision=last + 1, reason=reason) if last else finding)
            return
        finding = msgspec.structs.replace(finding, revision=known.revision, reason=known.reason)
        if finding != known:
            self._log(msgspec.structs.replace(finding, revision=known.revision + 1, reason=reason))

    def __contains__(self, subject_id: str) -> bool:
        """Whether something was found about this subject, and may still change."""
        return subject_id in self.standing or bool(self.numbers and bytes.fromhex(subject_id) in self.numbers)

    def settle(self, subject_id: str) -> None:
        """The finding about this subject will not change any more: nothing that is still known is judged again."""
        self.standing.pop(subject_id, None)
        if self.numbers:
            self.numbers.pop(bytes.fromhex(subject_id), None)

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
            self._make_room()
        self.fresh.append(finding)

    def _make_room(self) -> None:
        """The oldest keeps its verdict unless it is found again; its number goes on."""
        for _ in range(_PASSED_OVER):
            oldest = self.standing.pop(next(iter(self.standing)))
            if oldest.cause not in _UNTIL_FILLED or oldest.status != "open":
                break
            self.standing[oldest.id] = oldest
        else:
            oldest = self.standing.pop(next(iter(self.standing)))
        self.numbers[bytes.fromhex(oldest.id)] = oldest.revision
        if len(self.numbers) > NUMBERS_KEPT:
            del self.numbers[next(iter(self.numbers))]
