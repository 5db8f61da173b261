"""Findings and incidents as lists for a terminal."""

from collections.abc import Sequence

from ..schemas.findings import Finding, Party
from . import wording
from .causes import cause_name
from .incidents import Incident
from .render import paint, severity_colour, wrap

SHORT_ID = 12
"""Digits of a finding's id that are shown: enough for `kvtrail investigate --finding`."""


def render_findings(findings: Sequence[Finding], *, width: int | None = None, colour: bool = False) -> str:
    """One finding a line (two on a narrow terminal): time, severity, cause, key, who from whom, id."""
    if not findings:
        return "No finding."
    days = {wording.day(finding.event_time_us) for finding in findings}
    head = f"{days.pop()}, times in UTC" if len(days) == 1 else "times in UTC"
    dated = len({wording.day(finding.event_time_us) for finding in findings}) > 1
    keys = wording.table_keys(finding.key for finding in findings if finding.key)
    ids = _short_ids([finding.id for finding in findings])
    title = max(len(_title(finding)) for finding in findings)
    key = max(len(keys.get(finding.key, "")) for finding in findings) + 4
    lines = [paint(head, "2", colour)]
    for finding in findings:
        stamp = wording.clock(finding.event_time_us)
        stamp = f"{wording.day(finding.event_time_us)} {stamp}" if dated else stamp
        shown = f"key={keys[finding.key]}" if finding.key else ""
        level = paint(f"{finding.severity:<8}", severity_colour(finding.severity), colour)
        first = f"{stamp} {level}  {_title(finding):<{title}}  {shown:<{key}}  {ids[finding.id]}"
        plain = len(stamp) + 11 + title + 2 + key + 2 + len(ids[finding.id])
        rest = _who(finding)
        if width is None or plain + 2 + len(rest) <= width:
            lines.append(f"{first}  {rest}".rstrip())
        else:
            lines += [first.rstrip(), *wrap(rest, "         ", "         ", width)]
    return "\n".join(lines)


def render_incidents(
    incidents: Sequence[Incident], *, now_s: float, width: int | None = None, colour: bool = False
) -> str:
    """`this key does not cover tenant: 1 240 hits, 3 tenants`, with where, who and since when below."""
    if not incidents:
        return "No open incident."
    lines: list[str] = []
    for incident in incidents:
        level = paint(f"{incident.severity:<8}", severity_colour(incident.severity), colour)
        body = wrap(incident.sentence, "", " " * 10, None if width is None else width - 10)
        lines += [f"{level}  {body[0]}", *body[1:]]
        who = wording.listing(wording.name(tenant) for tenant in incident.tenants) or "nobody"
        owners = wording.listing(wording.name(tenant) for tenant in incident.owners)
        served = f"served: {who}" + (f"; content of: {owners}" if owners else "")
        where = f"store {wording.name(incident.store, '(unnamed)')}, {wording.plural(incident.entries, 'key')}, "
        since = (
            f"{where}{incident.cause}, since {wording.moment(incident.first_us)}, last "
            f"{wording.span(now_s - incident.last_us / 1e6)} ago, incident {incident.cause_id[:SHORT_ID]}"
        )
        for line in (served, since):
            lines += wrap(line, " " * 10, " " * 10, width)
    return "\n".join(lines)


def _title(finding: Finding) -> str:
    retracted = " (retracted)" if finding.status == "retracted" else ""
    return wording.clean(f"{cause_name(finding)}{retracted}")


def _who(finding: Finding) -> str:
    def tenant(party: Party) -> str:
        return wording.column(party.tenant_id) if party.tenant_id else "?"

    asked, made = finding.requester, finding.creator
    parts = [tenant(asked)] if asked is not None else []
    if made is not None and (asked is None or asked.tenant_id != made.tenant_id):
        parts.append(f"from {tenant(made)}" if parts else tenant(made))
    return wording.clean(": ".join(part for part in (" ".join(parts), finding.title) if part))


def _short_ids(ids: Sequence[str]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for one in ids:
        length = SHORT_ID
        while length < len(one) and sum(other[:length] == one[:length] for other in set(ids)) > 1:
            length += 4
        shown[one] = wording.column_key(one[:length])
    return shown
