"""A history and its verdict for a terminal.

The table's shape is fixed: time, what happened, key, tenant, details, and behind an arrow what a finding says.
Without `width` no line is broken (a pipe, a file); with it, lines wrap between columns and words. Colour is ANSI,
and only the caller knows whether there is a terminal to show it.
"""

import textwrap
from collections.abc import Sequence

from ..schemas.dimensions import Severity
from ..schemas.events import Check, Commit, Create, Event, Expire, Hit, Invalidate, NodeStart
from ..schemas.findings import Finding
from . import wording
from .causes import cause_name
from .folding import Fold, fold_rows
from .history import History, Row
from .verdict import Outcome, Verdict, reach_verdict

ROWS = 40
"""Lines of a table before runs of ordinary hits are folded; `--json` is never folded."""
INDENT = "         "
_OPERATIONS = {"node_start": "node.start"}
_COLOURS = {Severity.CRITICAL: "31;1", Severity.HIGH: "31", Severity.MEDIUM: "33", Severity.LOW: "36"}
_OUTCOMES = {Outcome.IMPLICATED: "31;1", Outcome.AT_RISK: "33;1", Outcome.CLEARED: "32;1", Outcome.UNKNOWN: "33;1"}


def render_history(history: History, *, width: int | None = None, colour: bool = False, rows: int = ROWS) -> str:
    """The table, a blank line, and the verdict."""
    table = render_table(history, width=width, colour=colour, rows=rows)
    verdict = render_verdict(reach_verdict(history), width=width, colour=colour)
    return f"{table}\n\n{verdict}" if table else verdict


def render_table(history: History, *, width: int | None = None, colour: bool = False, rows: int = ROWS) -> str:
    """The rows of the history, under a line with their date where they share one; empty for no rows."""
    if not history.rows:
        return ""
    lines = fold_rows(history.rows, rows)
    shown = [line for line in lines if isinstance(line, Row)]
    days = {wording.day(row.time_us) for row in shown}
    columns = _Columns(shown, dated=len(days) > 1)
    head = f"{days.pop()}, times in UTC" if len(days) == 1 else "times in UTC"
    return "\n".join([paint(head, "2", colour), *(columns.line(line, width, colour) for line in lines)])


def render_verdict(verdict: Verdict, *, width: int | None = None, colour: bool = False) -> str:
    """The verdict in short paragraphs: what happened, what to do now, what is not known, what it rests on."""
    loud = f" ({verdict.severity})" if verdict.severity is not None else ""
    headline = wording.clean(f"{verdict.headline}{loud}")
    out = [paint(f"Verdict: {headline}", _OUTCOMES[verdict.outcome], colour)]
    for sentence in verdict.happened:
        out += wrap(sentence, "  ", "  ", width)
    for title, lines, numbered in (
        ("What to do now", verdict.steps, True),
        ("Not known", verdict.unknown, False),
        ("Evidence", verdict.evidence, False),
    ):
        if lines:
            out += ["", paint(title, "1", colour)]
        for index, line in enumerate(lines, 1):
            mark = f"  {index}. " if numbered else "  - "
            out += wrap(line, mark, " " * len(mark), width)
    return "\n".join(out)


def note(row: Row) -> str:
    """What the arrow behind a row says; empty for an ordinary one."""
    finding = row.finding
    if finding is None:
        return "creator unknown" if isinstance(row.event.body, Hit) and row.creator is None else ""
    if finding.status == "retracted":
        return f"{cause_name(finding)} was retracted: {finding.reason or 'no reason given'}"
    said = _said(finding)
    if not isinstance(row.event.body, Hit):
        return said
    if row.creator is None:
        return f"creator unknown: {said}"
    return f"created by {wording.name(row.creator.tenant_id)}: {said}"


def operation(event: Event) -> str:
    """`cache.create`, `cache.hit`, `node.start`, ..."""
    return _OPERATIONS.get(event.type, f"cache.{event.type}")


def details(row: Row) -> list[str]:
    """What a row says beside key and tenant, as `name=value`. A producer's clock that is off comes first: the row
    stands at the time at which the broker had the event."""
    event, body, found = row.event, row.event.body, list[str]()
    if row.received_us:
        found.append(f"clock=off:{wording.day(event.time_us)}T{wording.clock(event.time_us)}")
    if isinstance(body, Create):
        identity = event.identity
        if identity is not None and identity.template_id:
            found.append(f"template={wording.column(identity.template_id)}")
        found.append(f"tokens={body.tokens}")
        found += [f"ttl={body.ttl_s:g}s"] if body.ttl_s is not None else []
        found += [f"max_age={body.max_age_s:g}s"] if body.max_age_s is not None else []
        found += ["state=pending"] if body.state == "pending" else []
    elif isinstance(body, Hit):
        found.append(f"reused={body.reused_tokens}")
        found += [f"match={body.match_mode}"] if body.match_mode != "exact" else []
        found += [f"outcome={wording.column(body.outcome)}"] if body.outcome != "ok" else []
    elif isinstance(body, Expire):
        found.append(f"reason={body.reason}")
    elif isinstance(body, Invalidate):
        found += [f"scope={body.scope}"] if body.scope != "entry" else []
        found += [f"cause={wording.column(body.cause)}"] if body.cause else []
        found += [f"outcome={body.outcome}"] if body.outcome != "done" else []
    elif isinstance(body, Check):
        found += [f"check={body.check}", f"result={body.result}"]
        found += [f"expected={wording.column(body.expected)}"] if body.expected else []
        found += [f"observed={wording.column(body.observed)}"] if body.observed else []
        found += [f"reused={body.reused_tokens}"] if body.reused_tokens is not None else []
        found += [f"diverged_at={body.first_divergence}"] if body.first_divergence is not None else []
    elif isinstance(body, Commit):
        found += [f"bytes={body.bytes}"] if body.bytes is not None else []
    elif isinstance(body, NodeStart):
        found.append(f"survives={','.join(map(wording.column, body.surviving_tiers)) or 'nothing'}")
    return found


def _said(finding: Finding) -> str:
    return finding.title or cause_name(finding)


class _Columns:
    """Widths and short forms that all rows of one table share."""

    def __init__(self, rows: Sequence[Row], *, dated: bool) -> None:
        events = [row.event for row in rows]
        self.dated = dated
        self.keys = wording.table_keys(event.key for event in events)
        self.nodes = len({event.node for event in events}) > 1
        self.stores = len({event.store for event in events if event.key}) > 1
        self.tiers = len({event.tier for event in events if event.key}) > 1
        self.operation = max((len(operation(event)) for event in events), default=0)
        self.key = max((len(self.cells(event)[0]) for event in events), default=0)
        self.tenant = max((len(self.cells(event)[1]) for event in events), default=0)
        noted = [row for row in rows if note(row)]
        self.details = max((len("  ".join(self.facts(row))) for row in noted), default=0)

    def cells(self, event: Event) -> tuple[str, str]:
        if not event.key and not isinstance(event.body, Invalidate):
            return "", ""
        key = f"key={self.keys[event.key]}" if event.key else "key=*"
        tenant = event.identity.tenant_id if event.identity is not None else ""
        return key, f"tenant={wording.column(tenant) if tenant else '?'}"

    def facts(self, row: Row) -> list[str]:
        event, found = row.event, details(row)
        found += [f"store={wording.column(event.store)}"] if self.stores and event.key else []
        found += [f"tier={event.tier}"] if self.tiers and event.key else []
        return found + ([f"node={wording.column(event.node)}"] if self.nodes or not event.key else [])

    def line(self, line: Row | Fold, width: int | None, colour: bool) -> str:
        if isinstance(line, Fold):
            who = f" of {wording.listing(map(wording.name, line.tenants))}" if line.tenants else ""
            text = f"{INDENT}… {wording.plural(line.events, 'more event')}{who}"
            return "\n".join(paint(part, "2", colour) for part in wrap(text.strip(), INDENT, INDENT, width))
        event = line.event
        key, tenant = self.cells(event)
        stamp = wording.clock(line.time_us)
        if self.dated:
            stamp = f"{wording.day(line.time_us)} {stamp}"
        head = f"{stamp} {operation(event):<{self.operation}}"
        body = [f"{key:<{self.key}}", f"{tenant:<{self.tenant}}"] if key else []
        told = note(line)
        facts = "  ".join(self.facts(line))
        if told:
            facts = f"{facts:<{self.details}}"
        first = "  ".join([head, *body, facts]).rstrip() if not told else "  ".join([head, *body, facts])
        return _finish(first, [*body, *self.facts(line)], head, told, _shade(line), width, colour)


def _shade(row: Row) -> str:
    finding = row.finding
    if finding is None:
        return "33"
    return severity_colour(finding.severity) if finding.status == "open" else "2"


def _finish(first: str, cells: Sequence[str], head: str, told: str, shade: str, width: int | None, colour: bool) -> str:
    told = wording.clean(told)
    inline = f"{first}   ← {told}" if told else first
    if width is None or len(inline) <= width:
        return f"{first}   {paint('← ' + told, shade, colour)}" if told else first
    lines = [head]
    for cell in cells:
        if len(lines[-1]) + 2 + len(cell.rstrip()) > width and lines[-1].strip():
            lines.append(INDENT + cell)
        else:
            lines[-1] += "  " + cell
    lines = [line.rstrip() for line in lines]
    if told:
        lines += [paint(part, shade, colour) for part in wrap(told, f"{INDENT}← ", f"{INDENT}  ", width)]
    return "\n".join(lines)


def severity_colour(severity: Severity) -> str:
    """The ANSI code a severity is shown in."""
    return _COLOURS.get(severity, "36")


def wrap(text: str, first: str, rest: str, width: int | None) -> list[str]:
    """`text` in lines of `width` behind `first` and, from the second on, `rest`; one line without `width`."""
    text = wording.clean(text)
    if width is None:
        return [first + text]
    return textwrap.wrap(
        text, width=max(width, 30), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [first + text]


def paint(text: str, code: str, colour: bool) -> str:
    """`text` in an ANSI colour, its indentation left alone; as it is where `colour` is false."""
    if not colour:
        return text
    lead = text[: len(text) - len(text.lstrip())]
    return f"{lead}\x1b[{code}m{text[len(lead) :]}\x1b[0m"
