"""Verdicts as `check` events: numbers and reasons, never what was asked or answered."""

from typing import Literal

from msgspec import Struct

from ...producers.publisher import LifecyclePublisher
from ...schemas.errors import BrokerError
from ...schemas.events import Tier
from ...schemas.identity import Identity
from .bypass import Made
from .bypass_verdict import Diff, Outcome
from .bypass_words import Told
from .isolation import Tenant
from .isolation_verdict import Isolation, Probe

Result = Literal["pass", "fail", "inconclusive"]
_DIFFS: dict[Outcome, Result] = {
    Outcome.IMPLICATED: "fail",
    Outcome.NOT_IMPLICATED: "pass",
    Outcome.INCONCLUSIVE: "inconclusive",
}
_PROBES: dict[Isolation, Result] = {
    Isolation.HELD: "pass",
    Isolation.ALLOWED: "pass",
    Isolation.BROKEN: "fail",
    Isolation.INCONCLUSIVE: "inconclusive",
}
SENT_S = 10.0
_LONGEST = 1000


class Subject(Struct, frozen=True, kw_only=True):
    """What a check is about. `request_id`: of the complaint, where there is one, so that its investigation shows the
    check; `key`, `store`, `tier`, `owner`: the entry, whose home the check then joins; `tenant`: who asked."""

    request_id: str = ""
    key: str = ""
    store: str = ""
    tier: Tier = "gpu"
    owner: str = ""
    tenant: str = ""


def record_diff(publisher: LifecyclePublisher, made: Made, told: Told, subject: Subject) -> None:
    """Publish a bypass diff. What the endpoint itself said of the entry it used fills in what `subject` leaves out."""
    diff = made.diff
    answered = next((answer for answer in made.runs.reuse if answer.key or answer.request_id), None)
    named = answered if answered is not None and answered.key and not subject.key else None
    publisher.check(
        named.key if named is not None else subject.key,
        check="bypass_diff",
        result=_DIFFS[diff.outcome],
        store=(named.store if named is not None else "") or subject.store,
        tier=_tier(named.tier, subject.tier) if named is not None else subject.tier,
        owner=(named.owner if named is not None else "") or subject.owner,
        expected=f"{diff.agreed} {diff.basis}, as without reuse" if diff.basis is not None else "",
        observed=_observed(diff),
        detail=_brief(told, 1 if diff.basis is not None else 0),
        reused_tokens=diff.reused_tokens,
        first_divergence=diff.position if diff.basis != "text" else None,
        identity=Identity(tenant_id=subject.tenant) if subject.tenant else None,
        request_id=subject.request_id or (answered.request_id if answered is not None else ""),
    )


def record_probe(publisher: LifecyclePublisher, probe: Probe, told: Told, subject: Subject, other: Tenant) -> None:
    """Publish an isolation probe; the requester is the tenant that should have found nothing."""
    publisher.check(
        "",
        check="isolation_probe",
        result=_PROBES[probe.isolation],
        store=subject.store,
        tier=subject.tier,
        owner=subject.owner,
        expected="any" if probe.policy == "shared" else "0 hits of the other tenant",
        observed=f"{probe.cross_hits} hits of the other tenant in {probe.pairs} pairs",
        detail=_brief(told, 1 if probe.timing is not None else 0),
        reused_tokens=probe.cross_tokens,
        identity=Identity(tenant_id=other.name),
        request_id=subject.request_id,
    )


def sent(publisher: LifecyclePublisher, timeout_s: float = SENT_S) -> None:
    """Wait until what was recorded is acknowledged. Raises `BrokerError` where it is not in time."""
    if publisher.flush(timeout_s):
        refused = publisher.stats().refused
        if not refused:
            return
        raise BrokerError(
            f"the check could not be recorded (refused: {', '.join(sorted(refused))}).",
            field="check",
            remedy="Shorten --about, --key, --store or tenant names.",
        )
    raise BrokerError(
        f"the check was not acknowledged in {timeout_s:g} s ({publisher.stats().last_error or 'no answer'}).",
        field="kafka.bootstrap",
        remedy="Check that the broker is up, or use --no-publish.",
    )


def _observed(diff: Diff) -> str:
    """What the runs with reuse gave; one that passes does not say that the answers part."""
    if diff.basis is None:
        return ""
    if diff.position is None:
        return "equal"
    if diff.outcome is Outcome.NOT_IMPLICATED:
        return f"equal up to a near tie at {diff.position}, within noise"
    return f"parts at {diff.position}"


def _brief(told: Told, sentence: int) -> str:
    """The headline and the sentence with the numbers: what stands beside other rows."""
    return f"{told.headline}. {told.happened[sentence]}"[:_LONGEST]


def _tier(reported: str, given: Tier) -> Tier:
    for tier in ("gpu", "host", "nvme", "shared"):
        if reported == tier:
            return tier
    return given
