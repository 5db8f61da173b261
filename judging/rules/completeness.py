"""Completeness: a hit on something whose create is not known."""

from ...schemas.dimensions import Severity
from ..verdicts import HitCase, Verdict


def unmatched(case: HitCase) -> Verdict | None:
    """No instance is known: a violation where the history is complete, else an open question."""
    if case.row is not None:
        return None
    if case.blind:
        return Verdict(
            cause="UNATTRIBUTED_HIT",
            severity=Severity.LOW,
            title="nobody knows yet who created this entry",
            reason="the history of its home is not complete",
        )
    return Verdict(
        cause="HIT_UNKNOWN_ENTRY",
        severity=Severity.HIGH,
        title="served an entry that nobody created",
    )
