"""Accounting: what the client was told about reuse."""

from ...schemas.dimensions import Severity
from ..verdicts import CreateCase, HitCase, Verdict


def reused(case: HitCase) -> Verdict | None:
    """The client was told of less reuse than there was."""
    row, hit = case.row, case.hit
    if row is None or hit.reported_tokens is None:
        return None
    used = hit.reused_tokens
    if not used and not hit.reported_tokens:
        used = hit.tokens_read if hit.tokens_read is not None else row.tokens
    return _unreported(used, hit.reported_tokens)


def computed(case: CreateCase) -> Verdict | None:
    """Fewer tokens were computed than the entry covers, and the difference was not reported as reuse."""
    create = case.create
    if create.computed_tokens is None or create.reported_tokens is None:
        return None
    return _unreported(create.tokens - create.computed_tokens, create.reported_tokens)


def _unreported(used: int, reported: int) -> Verdict | None:
    if used <= reported:
        return None
    return Verdict(
        cause="UNREPORTED_REUSE",
        severity=Severity.HIGH,
        title=f"{used} tokens were reused and {reported} reported",
    )
