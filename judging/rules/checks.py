"""Checks: what an active check of the cache found, beside what its history says. A check that passed is silent, and
one that came to no result proves nothing either way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...schemas.dimensions import Severity
from ...schemas.events import Check, Event
from ..comparison import Comparison
from ..interning import Who
from ..ledger.rows import Row
from ..verdicts import Context, Verdict


@dataclass(slots=True, kw_only=True)
class CheckCase:
    """One failed check and the instance at its address, None where it names no key or none is known there."""

    event: Event
    check: Check
    append_us: int
    who: Who
    row: Row | None
    comparison: Comparison
    context: Context

    @property
    def crossed(self) -> bool:
        """The instance belongs to another tenant or isolation domain than the one the check was made for."""
        return self.comparison.tenant or self.comparison.domain


CheckRule = Callable[[CheckCase], Verdict]


def canary(case: CheckCase) -> Verdict:
    """The answer shows a marker that is not this tenant's: made under the fleet's secret, it can only be another's."""
    shown, expected = case.check.observed, case.check.expected or case.context.identities.tenant(case.who.identity)
    named = bool(shown) and shown != expected
    return Verdict(
        cause="CANARY_MISMATCH",
        severity=Severity.CRITICAL,
        title="an answer shows another tenant's canary" if named else "an answer shows a canary that is not its own",
        differing=case.comparison.differing,
    )


def spot_check(case: CheckCase) -> Verdict:
    """Computed again, the entry is not what these tokens and weights give."""
    return Verdict(
        cause="SPOT_CHECK_FAILED",
        severity=Severity.CRITICAL if case.crossed else Severity.HIGH,
        title="the entry does not belong to these tokens and weights",
        differing=case.comparison.differing,
    )


def bypass_diff(case: CheckCase) -> Verdict:
    """The same request is answered differently with and without reuse, beyond what noise explains."""
    return Verdict(
        cause="BYPASS_DIFF_IMPLICATED",
        severity=Severity.CRITICAL if case.crossed else Severity.HIGH,
        title="the answer depends on whether the cache is used",
        differing=case.comparison.differing,
    )


def isolation_probe(case: CheckCase) -> Verdict:
    """A tenant was served what another one had just made, where nothing should have been found."""
    context, event, identity = case.context, case.event, case.who.identity
    declared = bool(context.identities.domain(identity)) or context.facts.partitioned(
        event.store, case.append_us, event.time_us
    )
    severity = Severity.HIGH if declared else Severity.MEDIUM
    return Verdict(
        cause="ISOLATION_NOT_ENFORCED",
        severity=Severity.CRITICAL if case.crossed and case.comparison.content else severity,
        title="another tenant's identical prefix was reused",
        differing=case.comparison.differing,
    )


CHECK_RULES: Mapping[str, CheckRule] = {
    "canary": canary,
    "spot_check": spot_check,
    "bypass_diff": bypass_diff,
    "isolation_probe": isolation_probe,
}
"""Kind of check -> the rule for its failure. A heartbeat has none: it only says that its lane goes on."""
