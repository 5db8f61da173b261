"""What people type, on a command line or in an address, as what the archive is asked."""

import difflib
import re

from ..judging.rules import RULES
from ..schemas.dimensions import Severity
from ..schemas.errors import KvtrailError
from .archive import Wanted
from .history import Question

_SPAN = re.compile(r"^(\d{1,9})(s|m|h|d|w)$")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
MOST = 10_000
"""Findings in one answer."""


class BadQuestion(KvtrailError):
    """A parameter that means nothing."""

    code = "bad_question"


def parse_span(text: str, field: str = "since") -> int:
    """Seconds in `90s`, `15m`, `1h`, `7d`, `2w`. Raises `BadQuestion`."""
    found = _SPAN.match(text.strip())
    if found is None:
        raise BadQuestion("is not a duration.", field=field, remedy="Write 90s, 15m, 1h, 7d or 2w.")
    return int(found[1]) * _UNITS[found[2]]


def known_cause(text: str, field: str = "cause") -> str:
    """The cause as findings name it. Raises `BadQuestion` for one that no finding can have: nothing would be found."""
    cause = _upper(text)
    if cause in RULES:
        return cause
    near = difflib.get_close_matches(cause, RULES, 1)
    raise BadQuestion(
        "is no cause.", field=field, remedy=f"Did you mean {near[0]}?" if near else "`kvtrail rules list` names them."
    )


def _upper(text: str) -> str:
    return text.strip().upper().replace("-", "_")


def wanted(
    *,
    now_us: int,
    since: str = "",
    severity: str = "",
    cause: str = "",
    status: str = "open",
    limit: int = 200,
    cause_id: str = "",
) -> Wanted:
    """Filters for findings from their text. Raises `BadQuestion` naming the parameter."""
    try:
        least = Severity(severity.lower()) if severity else Severity.INFO
    except ValueError:
        raise BadQuestion("is no severity.", field="severity", remedy=f"Choose of {', '.join(Severity)}.") from None
    if status not in ("open", "retracted", "all", ""):
        raise BadQuestion("is no status.", field="status", remedy="Choose of open, retracted, all.")
    if not 1 <= limit <= MOST:
        raise BadQuestion("is out of range.", field="limit", remedy=f"Choose 1 to {MOST}.")
    return Wanted(
        since_us=max(0, now_us - parse_span(since) * 1_000_000) if since else 0,
        severity=least,
        cause=_upper(cause),
        cause_id=cause_id,
        status="open" if status == "open" else "retracted" if status == "retracted" else "",
        limit=limit,
    )


def question(
    *, request: str | None = None, key: str | None = None, finding: str | None = None, store: str = ""
) -> Question:
    """The one question asked. Raises `BadQuestion` unless exactly one is given and not empty."""
    given = {kind: value for kind, value in (("request", request), ("key", key), ("finding", finding)) if value}
    if len(given) != 1:
        raise BadQuestion("exactly one of request, key and finding must be given.", remedy="Name one of them.")
    if request:
        return Question(kind="request", value=request)
    if finding:
        return Question(kind="finding", value=finding)
    return Question(kind="key", value=key or "", store=store)
