"""What active checks add to a history: what each kind came to, and the entry that a check knows only by its request."""

from ..schemas.events import Check, Hit
from ..schemas.findings import Finding
from .history import History, Row
from .wording import clean, listing, plural

CHECK_CAUSES = frozenset({"CANARY_MISMATCH", "SPOT_CHECK_FAILED", "BYPASS_DIFF_IMPLICATED"})
"""Causes by which a check says that a request was answered from a wrong entry."""
_RESULTS = {"pass": "passed", "fail": "failed", "inconclusive": "came to no result"}


def entry_of(history: History, finding: Finding) -> Row | None:
    """The hit that a finding without a key is about: of its request, first one whose creator is the finding's."""
    asked, made = finding.requester, finding.creator
    if finding.key or asked is None or not asked.request_id:
        return None
    hits = [row for row in history.rows if isinstance(row.event.body, Hit) and row.event.request_id == asked.request_id]
    tenant = made.tenant_id if made is not None else ""
    theirs = [row for row in hits if row.creator is not None and row.creator.tenant_id == tenant]
    return next(iter(theirs or hits), None)


def check_sentences(history: History) -> list[str]:
    """One sentence for each kind of check among the rows that the question is about: how many passed, failed or came
    to no result, and what the last one of the worst said."""
    found: dict[str, list[Check]] = {}
    for row in history.rows:
        check = row.event.body
        if isinstance(check, Check) and check.check != "heartbeat" and _about(history, row):
            found.setdefault(check.check, []).append(check)
    told: list[str] = []
    for kind, checks in found.items():
        counts = {result: sum(one.result == result for one in checks) for result in ("fail", "inconclusive", "pass")}
        what = listing(f"{count} {_RESULTS[result]}" for result, count in counts.items() if count)
        worst = next(result for result, count in counts.items() if count)
        last = next(one for one in reversed(checks) if one.result == worst)
        detail = f" ({clean(last.detail).removesuffix('.')})" if last.detail else ""
        told.append(f"{plural(len(checks), kind.replace('_', ' ')).capitalize()}: {what}{detail}.")
    return told


def failed_checks(history: History) -> list[Row]:
    """The failed checks that the question is about: nothing beside one is cleared."""
    return [
        row
        for row in history.rows
        if isinstance(row.event.body, Check) and row.event.body.result == "fail" and _about(history, row)
    ]


def _about(history: History, row: Row) -> bool:
    question, event = history.question, row.event
    if question.kind == "request":
        return event.request_id == question.value
    if question.kind == "key":
        return event.key == question.value and question.store in ("", event.store)
    return True
