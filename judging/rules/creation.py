"""Creation: alarms that need no hit."""

from ...schemas.dimensions import Severity
from ..comparison import Comparison
from ..ledger.rows import FINISHED, Row
from ..verdicts import CreateCase, Verdict, uncovered, with_first

LIMITED = frozenset({"length", "max_tokens"})


def contradicts_key(case: CreateCase) -> Verdict | None:
    """The store's own key function gives another key for this identity."""
    rederived = case.create.rederived_key
    if rederived is None or rederived == case.event.key:
        return None
    return Verdict(
        cause="KEY_MISMATCH",
        severity=Severity.MEDIUM,
        title="filed under a key that its own identity does not give",
    )


def caching_forbidden(case: CreateCase) -> Verdict | None:
    """Policy says that nothing of this tenant is cached."""
    context = case.context
    tenant = context.identities.tenant(case.row.identity)
    policy = context.facts.policy(tenant, case.append_us, case.event.time_us) if tenant else None
    if policy is None or policy[0].caching:
        return None
    return Verdict(
        cause="CACHING_FORBIDDEN",
        severity=Severity.MEDIUM,
        title="cached for a tenant that must not be cached",
        facts=(policy[1],),
    )


def place_taken(case: CreateCase) -> Verdict | None:
    """The place still holds a live entry."""
    row = case.row
    if not row.rare.place:
        return None
    owners = [
        owner
        for owner in case.home.places.before(row.scope, row.rare.place, case.order, case.order)
        if owner is not row
    ]
    if not owners or owners[-1].key == row.key:
        return None
    if (owners[-1].kind, owners[-1].rare.part) != (row.kind, row.rare.part):
        return None  # pools of their own
    if case.home.addresses.end_of(owners[-1], case.order) is not None:
        return None
    return Verdict(
        cause="PLACE_CONFLICT",
        severity=Severity.MEDIUM,
        title="two live entries in one place",
        evidence=(owners[-1].event_id,),
    )


def underspecified_key(case: CreateCase) -> Verdict | None:
    """Two entries of different identity live under one key: the next hit may get the wrong one."""
    context, row = case.context, case.row
    worst: tuple[Comparison, Row] | None = None
    for other in case.live:
        if other.rare.version != row.rare.version:
            continue  # versions tell them apart
        comparison = context.comparator.compare(other, row, row.kind, "exact", row.tokens or None)
        if comparison.content or (comparison.domain and worst is None):
            worst = comparison, other
    if worst is None:
        return None
    comparison, other = worst
    first = comparison.content[0] if comparison.content else "isolation_domain"
    differing = with_first(comparison.differing, first)
    return Verdict(
        cause="KEY_UNDERSPECIFIED",
        severity=Severity.MEDIUM if comparison.content else Severity.INFO,
        title=uncovered(differing),
        dimension=first,
        differing=differing,
        other=other,
    )


def incomplete(case: CreateCase) -> Verdict | None:
    """A stored response whose generation did not finish; each time it is served repeats the damage."""
    finish, rare = case.create.finish, case.row.rare
    if finish is None or case.row.kind != "response" or finish in FINISHED:
        return None
    if finish in LIMITED:
        return Verdict(
            cause="INCOMPLETE_ENTRY", severity=Severity.LOW, title="a response cut at its length limit was stored"
        )
    served = bool(rare.served) or rare.served_for_good
    return Verdict(
        cause="INCOMPLETE_ENTRY",
        severity=Severity.HIGH if served else Severity.MEDIUM,
        title="an unfinished response was stored",
    )
